"""An engine on a tiny random model, with what it should say by arithmetic that knows no cache."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from radchat.engine.decoder import Decoder
from radchat.engine.device import Device
from radchat.engine.engine import Engine
from radchat.engine.forward import Forward, heads_of
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, Ids, Request
from radchat.engine.scheduler_options import SchedulerOptions
from radchat_kernels.executor import Executor, choose
from radchat_kernels.plan import Limits, Plan, Segment, plan
from tests.engine.general_toys import KINDS, opened, their_logits
from tests.engine.tiny import tiny_model
from tests.fakes import ByteTokenizer, drain, finished, greedy, output

PAGE = 16
VOCAB = 256
CHUNK = 64  # four pages
EXACT = (torch.float64, torch.float32)


class TinyModel:
    """A model with the limits the engine asks for; keeps the last logits and their positions,
    and the plans of all steps since ``plans`` was cleared.
    """

    def __init__(
        self,
        kind: str,
        dtype: torch.dtype,
        executor: Executor | None = None,
        device: str = "cpu",
        **overrides: Any,
    ) -> None:
        """``overrides``: of config.json."""
        self.dtype = dtype
        self.executor = executor or choose("cpu")
        self.device = device
        self.overrides = overrides
        self.decoder = self._open(kind)
        self.config = self.decoder.config
        self.vocab_size = self.config.vocab_size
        self.context_length = 512
        self.logits = torch.empty(0)
        self._at = torch.empty(0)
        self.plans: list[Plan] = []

    def _open(self, kind: str) -> Forward:
        config, weights, _ = tiny_model(kind, **self.overrides)
        return Decoder(config, weights, self.dtype, self.device, self.executor)

    def pool(self, num_pages: int, *, poison: bool = True) -> KVPool:
        c = self.config
        return KVPool(
            c.num_layers,
            num_pages,
            PAGE,
            c.num_kv_heads,
            c.head_dim,
            self.dtype,
            self.device,
            poison=poison,
            executor=self.executor,
        )

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        self._at = positions.index_select(0, logit_rows)
        self.plans.append(plan)
        self.logits = self.decoder.forward(ids, positions, slots, plan, pool, logit_rows)
        return self.logits

    @property
    def logits_at(self) -> list[int]:
        """Positions of the last ``logits``."""
        return [int(each) for each in self._at]

    def cold_logits(self, ids: Ids) -> Tensor:
        """[tokens, vocab] of a whole sequence in one go, in a pool of its own."""
        num = len(ids)
        table = list(range(1, -(-num // PAGE) + 1))
        pool = self.pool(len(table) + 1)
        t = torch.arange(num)
        with torch.inference_mode():
            return self.decoder.forward(
                torch.tensor(ids, dtype=torch.int64),
                t,
                t + PAGE,  # page 1 onwards
                plan([Segment(0, num, 0, table)], PAGE),
                pool,
                t,
            )

    def answer(self, ids: Ids, length: int) -> list[int]:
        """Greedy ids, each from a forward over everything before it."""
        whole = array("I", ids)
        for _ in range(length):
            whole.append(int(self.cold_logits(whole)[-1].argmax()))
        return list(whole[len(ids) :])


class GeneralTinyModel(TinyModel):
    """One on the general path. What is cold here is transformers' own eager attention."""

    def __init__(self, kind: str, *args: Any, **overrides: Any) -> None:
        self.kind = kind
        super().__init__(kind, *args, **overrides)

    def _open(self, kind: str) -> Forward:
        return opened(kind, self.dtype, self.device, self.executor)

    def cold_logits(self, ids: Ids) -> Tensor:
        return their_logits(self.kind, ids, self.dtype)


@cache
def model(kind: str = "llama", dtype: torch.dtype = torch.float64) -> TinyModel:
    return GeneralTinyModel(kind, dtype) if kind in KINDS else TinyModel(kind, dtype)


@cache
def cold_answer(ids: tuple[int, ...], length: int, kind: str, dtype: torch.dtype) -> list[int]:
    return model(kind, dtype).answer(array("I", ids), length)


class Bench:
    """An engine on a tiny model, and what it should say."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float64,
        kind: str = "llama",
        pool_tokens: int = 2048,
        *,
        on: TinyModel | None = None,
        device: Device | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        """``on``: a model of ``kind`` and ``dtype`` that runs otherwise than by default.
        ``limits``: of steps' plans, other than the executor's.
        """
        self.kind, self.dtype = kind, dtype
        self.model = on or model(kind, dtype)
        self.pool = self.model.pool(pool_tokens // PAGE + 1)
        self.cache = PrefixCache(self.pool.num_pages, PAGE)
        self.engine = Engine(
            self.model,
            self.pool,
            self.cache,
            ByteTokenizer().text,
            options=SchedulerOptions(**{"chunk_tokens": CHUNK, **options}),
            clock=clock,
            check=True,
            device=device or Device(self.model.device),
            executor=self.model.executor,
            limits=limits
            or self.model.executor.limits(
                heads_of(self.model.config), self.pool.data.element_size()
            ),
        )
        self._named = 0

    def request(self, ids: Ids, length: int = 6, **more: Any) -> Request:
        self._named += 1
        return Request(f"r{self._named}", ids, greedy(length), **more)

    def run(self, *requests: Request) -> list[Event]:
        for request in requests:
            self.engine.submit(request)
        return drain(self.engine)

    def expect(self, request: Request, events: Iterable[Event]) -> None:
        """The request said what arithmetic without a cache says."""
        length = request.params.max_tokens
        assert length is not None
        want = cold_answer(tuple(request.ids), length, self.kind, self.dtype)
        assert output(events, request.id) == want, request.id

    def ask(self, ids: Ids, length: int = 6) -> int:
        """Run one request, check its answer and its work; returns the tokens it reused."""
        before = self.model.decoder.tokens_computed
        request = self.request(ids, length)
        events = self.run(request)
        rows = self.model.decoder.tokens_computed - before
        usage = finished(events, request.id).usage
        assert usage.device + usage.computed == len(ids)
        assert rows == usage.computed + length - 1, "the decoder's own count"
        self.expect(request, events)
        self.engine.check_idle()
        return usage.device


def prompt(seed: int, length: int) -> Ids:
    return array("I", random.Random(seed).choices(range(VOCAB), k=length))
