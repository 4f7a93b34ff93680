"""Doubles that are given as arguments, never patched in.

``scripted_engine`` is the real engine (cache, scheduler, sampling, text) around a model that says
what a function tells it to. That model keeps each token's id in the KV pool and reads the whole
sequence back through the page table before it answers, so a wrong page, a slot that was never
written or was written twice shows as another answer.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from radchat.engine.block_store import LOOK_S, BlockStore
from radchat.engine.detokenize import ByteDetokenizer, StopChecker
from radchat.engine.device import Device
from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, Finished, Ids, Request, SamplingParams, Tokens
from radchat.engine.scheduler_options import SchedulerOptions
from radchat_kernels.executor import Executor
from radchat_kernels.plan import Plan

END = 256  # ByteTokenizer's end of turn
VOCAB = 260

Reply = Callable[[Sequence[int]], int]  # all ids so far -> the next one


class Cuda:
    """``torch.cuda`` of a machine with one GPU, or with none."""

    def __init__(
        self, *, sees_one: bool = True, is_broken: bool = False, is_old: bool = False
    ) -> None:
        """``is_broken``: its driver doesn't take it. ``is_old``: bf16 is emulated."""
        self._is_old = is_old
        self._sees_one = sees_one
        self._is_broken = is_broken
        self.called: list[str] = []

    def is_available(self) -> bool:
        return self._sees_one

    def get_device_name(self) -> str:
        if self._is_broken:
            raise RuntimeError("CUDA driver initialization failed")
        return "NVIDIA H200"

    def current_device(self) -> int:
        return 0

    def mem_get_info(self) -> tuple[int, int]:
        return 1000, 9000

    def memory_reserved(self) -> int:
        return 500

    def memory_allocated(self) -> int:
        return 200

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return including_emulation or not self._is_old

    def synchronize(self) -> None:
        self.called.append("synchronize")

    def empty_cache(self) -> None:
        self.called.append("empty_cache")


class LogicalClock:
    """Seconds that pass when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class ByteTokenizer:
    """One id a byte of UTF-8; 256 … 259 are control ids without text."""

    vocab_size = VOCAB

    def encode(self, text: str) -> Ids:
        return array("I", list(text.encode()))

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def text(self, request: Request) -> tuple[ByteDetokenizer, StopChecker]:
        """The engine's TextFactory."""
        table = [bytes([i]) for i in range(256)] + [b""] * (VOCAB - 256)
        return ByteDetokenizer(table, request.ids[len(request.ids) - request.said :]), StopChecker(
            request.params.stop
        )


def hashed(ids: Sequence[int]) -> int:
    """A next id that depends on every id before it: a letter, never the end of turn."""
    digest = hashlib.blake2b(array("I", ids).tobytes(), digest_size=2).digest()
    return 97 + int.from_bytes(digest, "little") % 26


def says(answer: str | Sequence[int], *, after: int = 257) -> Reply:
    """``answer`` behind the last id ``after`` (so each prompt should end with it), then END."""
    words = list(answer.encode()) if isinstance(answer, str) else list(answer)

    def reply(ids: Sequence[int]) -> int:
        start = max((i + 1 for i, token in enumerate(ids) if token == after), default=0)
        done = len(ids) - start
        return words[done] if done < len(words) else END

    return reply


def script(answers: Mapping[Sequence[int], str | Sequence[int]]) -> Reply:
    """An answer for each prompt (a tuple of ids; the first that fits decides), then END."""
    table = {
        tuple(prompt): list(answer.encode()) if isinstance(answer, str) else list(answer)
        for prompt, answer in answers.items()
    }

    def reply(ids: Sequence[int]) -> int:
        for prompt, words in table.items():
            done = len(ids) - len(prompt)
            if tuple(ids[: len(prompt)]) == prompt:
                return words[done] if done < len(words) else END
        return END

    return reply


class ScriptedModel:
    """Answers ``reply(ids)``, with ids read back from the KV pool; ``scores`` adds other logits."""

    def __init__(
        self,
        reply: Reply = hashed,
        *,
        vocab_size: int = VOCAB,
        context_length: int = 4096,
        on_forward: Callable[[int], None] | None = None,
        scores: Callable[[Sequence[int]], Mapping[int, float]] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.tokens_computed = 0
        self.steps = 0
        self._reply = reply
        self._scores = scores
        self._on_forward = on_forward  # gets the rows of a step, e.g. to advance a clock

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        self.steps += 1
        self.tokens_computed += len(ids)
        if self._on_forward is not None:
            self._on_forward(len(ids))
        memory = pool.data[0, 0].view(-1, pool.data.shape[-1])  # [slots, dim]: one KV head
        memory[slots, 0] = ids.to(memory.dtype)
        logits = torch.full((len(logit_rows), self.vocab_size), -20.0)
        for out, row in enumerate(logit_rows.tolist()):
            sequence = self._read(plan, memory, pool.page_size, row, int(positions[row]))
            if any(math.isnan(token) for token in sequence):
                logits[out] = math.nan  # what attention makes of a poisoned page
                continue
            whole = [int(token) for token in sequence]
            scores = self._scores(whole) if self._scores else {self._reply(whole): 20.0}
            logits[out, list(scores)] = torch.tensor(list(scores.values()))
        return logits

    def _read(
        self, plan: Plan, memory: Tensor, page_size: int, row: int, position: int
    ) -> list[float]:
        for segment in plan.segments:
            if segment.row_begin <= row < segment.row_begin + segment.row_count:
                places = torch.arange(position + 1)
                pages = torch.tensor(segment.table)[places // page_size]
                found: list[float] = memory[pages * page_size + places % page_size, 0].tolist()
                return found
        raise AssertionError(f"row {row} is in no segment")


def scripted_engine(
    reply: Reply = hashed,
    *,
    pool_tokens: int = 4096,
    page_size: int = 16,
    context_length: int = 4096,
    options: SchedulerOptions | None = None,
    clock: Callable[[], float] | None = None,
    wall_clock: Callable[[], float] | None = None,
    on_forward: Callable[[int], None] | None = None,
    scores: Callable[[Sequence[int]], Mapping[int, float]] | None = None,
    check: bool = True,
    blocks: BlockStore | None = None,
    model: ScriptedModel | None = None,
    pool_class: type[KVPool] = KVPool,
    device: Device | None = None,
    executor: Executor | None = None,
) -> Engine:
    """The real engine around a ScriptedModel and a ByteTokenizer, on a pool of ``pool_tokens``.

    ``blocks``: its KV on disk. A token's KV there is its id, so a wrong one shows. ``model``,
    ``pool_class``: the test's own; the first is else made of the rest.
    """
    num_pages = -(-pool_tokens // page_size) + 1
    pool = pool_class(1, num_pages, page_size, 1, 1, torch.float32, poison=True)
    clock = clock or LogicalClock()
    made = ScriptedModel(reply, context_length=context_length, on_forward=on_forward, scores=scores)
    return Engine(
        model or made,
        pool,
        PrefixCache(num_pages, page_size, wall_clock=wall_clock or clock),
        ByteTokenizer().text,
        options=options,
        clock=clock,
        check=check,
        blocks=blocks,
        device=device,
        executor=executor,
        pause=clock.advance if isinstance(clock, LogicalClock) else time.sleep,
    )


def greedy(max_tokens: int | None = None, **params: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **params)  # type: ignore[arg-type]


def drain(engine: Engine, *, max_steps: int = 10_000) -> list[Event]:
    """Step until there is nothing to do; all events."""
    events: list[Event] = []
    for _ in range(max_steps):
        if not engine.has_work():
            return events
        events += engine.step()
    raise AssertionError(f"not done after {max_steps} steps")


def output(events: Iterable[Event], request_id: str, choice: int = 0) -> list[int]:
    """All ids that a choice has sent."""
    return [
        token
        for event in events
        if isinstance(event, Tokens) and (event.request_id, event.choice) == (request_id, choice)
        for token in event.ids
    ]


def text(events: Iterable[Event], request_id: str, choice: int = 0) -> str:
    """All text that a choice has sent, the end's included."""
    return "".join(
        event.text
        for event in events
        if isinstance(event, Tokens | Finished)
        and (event.request_id, event.choice) == (request_id, choice)
    )


def finished(events: Iterable[Event], request_id: str, choice: int = 0) -> Finished:
    """The one end of a choice."""
    (end,) = (
        event
        for event in events
        if isinstance(event, Finished) and (event.request_id, event.choice) == (request_id, choice)
    )
    return end


def flush(engine: Engine, timeout_s: float = 10.0) -> bool:
    """Have all kept paths written, as an engine on its way out does. False: not in time."""
    deadline = time.monotonic() + timeout_s
    seconds = engine.save(now=True)
    while seconds is not None and seconds <= LOOK_S and time.monotonic() < deadline:
        if seconds:
            engine.drain(min(seconds, timeout_s))
        seconds = engine.save()
    return seconds is None
