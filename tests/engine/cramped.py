"""An engine on a device that has no memory for some steps, and requests for it."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.request import Event, Ids, Priority, Progress, Request, Started
from radchat_kernels.plan import Plan
from tests.fakes import ScriptedModel, drain, finished, greedy, output, scripted_engine

PAGE = 16
ROOMY = 10**9
TORCH_SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB"
FATAL = 255  # with this id among its rows no step has room


class CrampedModel(ScriptedModel):
    """``most``: rows that a step may have, at the attempt of this number."""

    def __init__(
        self, most: Callable[[int], int], *, fatal: int | None = FATAL, **more: Any
    ) -> None:
        super().__init__(**more)
        self._fatal = fatal
        self._most = most
        self.error: Exception = torch.OutOfMemoryError(TORCH_SAYS)
        self.rows: list[int] = []  # of steps that ran
        self.full: list[int] = []  # of steps that did not

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        num = len(ids)
        if num > self._most(len(self.rows) + len(self.full)) or self._fatal in ids.tolist():
            self.full.append(num)
            pool.data[0, 0].view(-1)[slots] = 1.0  # a part of it had been done
            raise self.error
        self.rows.append(num)
        return super().forward(ids, positions, slots, plan, pool, logit_rows)


def cramped(most: int | Callable[[int], int], **more: Any) -> tuple[Engine, CrampedModel]:
    model = CrampedModel(most if callable(most) else lambda _: most, context_length=4096)
    return scripted_engine(model=model, **more), model


def prompt(seed: int, length: int) -> Ids:
    return array("I", random.Random(seed).choices(range(97, 123), k=length))


def ask(name: str, ids: Ids, max_tokens: int = 20, **more: Any) -> Request:
    own = {key: more.pop(key) for key in ("n", "priority", "fill") if key in more}
    return Request(name, ids, greedy(max_tokens, **more), **own)


def crowd() -> list[Request]:
    """Prompts long and short, some that share a beginning, samples, a background, scores."""
    head = prompt(0, 150)
    asked = [ask(f"own{i}", prompt(i + 1, 9 + 61 * i), 24) for i in range(5)]
    asked += [ask(f"kin{i}", head + prompt(20 + i, 7), 18) for i in range(4)]
    asked += [ask(f"back{i}", prompt(40 + i, 90), 30, priority=Priority.BACKGROUND)
              for i in range(4)]  # fmt: skip
    asked.append(ask("many", prompt(60, 70), 16, n=6))
    asked.append(ask("score", prompt(61, 100), 5, prompt_logprobs=True, logprobs=2))
    return asked


def run(engine: Engine, requests: Sequence[Request]) -> list[Event]:
    for request in requests:
        engine.submit(request)
    return drain(engine, max_steps=1200)


def same(events: Sequence[Event], wanted: Sequence[Event], request: Request) -> None:
    """What was said is what a roomy device says, once; what it took adds up."""
    for choice in range(request.n):
        said = output(events, request.id, choice)
        assert said == output(wanted, request.id, choice)
        end, other = (finished(each, request.id, choice) for each in (events, wanted))
        assert (end.reason, end.kept, end.error) == (other.reason, other.kept, other.error)
        assert end.prompt_logprobs == other.prompt_logprobs
        usage = end.usage
        assert usage.device + usage.disk + usage.computed == usage.input_tokens == len(request.ids)
        assert usage.output_tokens == len(said)
    assert sum(isinstance(e, Started) and e.request_id == request.id for e in events) == 1
    done = [e.computed_tokens for e in events
            if isinstance(e, Progress) and e.request_id == request.id]  # fmt: skip
    assert done == sorted(done)
