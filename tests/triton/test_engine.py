"""The engine with kernels: what it says is what it says with plain torch, id for id.

Each conversation is held twice, on two engines alike but for their executor. The pools' free pages
are NaN, and every step is recounted.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from radchat.engine.convert import convert
from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.forward import Forward
from radchat.engine.kv_pool import KVPool
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Request,
    SamplingParams,
    Tokens,
)
from radchat.engine.weights import load_packed, load_weights
from radchat_kernels import _triton
from radchat_kernels.executor import Executor
from radchat_kernels.plan import Plan
from radchat_kernels.torch_executor import TorchExecutor
from radchat_kernels.triton_executor import TritonExecutor
from tests.engine.bench import PAGE, Bench, GeneralTinyModel, TinyModel, prompt
from tests.fakes import LogicalClock, drain
from tests.models import making

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
Said = dict[tuple[str, int], tuple[list[int], FinishReason]]


class Counting:
    """A launcher that counts launches by kernel."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, kernel: Any, *args: Any, **options: Any) -> None:
        self.calls[kernel.__name__] += 1
        _triton.launch(kernel, *args, **options)


class Watched(TinyModel):
    """Keeps the plans of its steps."""

    def __init__(self, *args: Any, **overrides: Any) -> None:
        super().__init__(*args, **overrides)
        self.plans: list[Plan] = []

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        self.plans.append(plan)
        return super().forward(ids, positions, slots, plan, pool, logit_rows)


class Twins:
    """An engine with kernels and one with plain torch, which hear the same."""

    def __init__(
        self, kind: str = "llama", *, config: dict[str, Any] | None = None, **options: Any
    ):
        self.launches = Counting()
        self.model = self._made(kind, TritonExecutor("cpu", launch=self.launches), config or {})
        plain = self._made(kind, TorchExecutor(), config or {})
        self.bench, self.plain = (
            Bench(torch.float32, kind, on=model, clock=LogicalClock(), **options)
            for model in (self.model, plain)
        )

    def _made(self, kind: str, executor: Executor, config: dict[str, Any]) -> Any:
        return Watched(kind, torch.float32, executor, **SMALL | config)

    def say(self, *prompts: Ids, length: int = 4, **more: Any) -> Sequence[Event]:
        """One answer to each prompt, all at once; the events of the engine with kernels."""
        return self.both(
            lambda bench: bench.run(*(bench.request(ids, length, **more) for ids in prompts))
        )

    def both(self, act: Callable[[Bench], list[Event]]) -> list[Event]:
        events = act(self.bench)
        assert said(events) == said(act(self.plain))
        assert all(reason is not FinishReason.ERROR for _, reason in said(events).values())
        return events

    def out(self, events: Sequence[Event]) -> Ids:
        """The ids of the only answer."""
        ((ids, _),) = said(events).values()
        return array("I", ids)


def said(events: Sequence[Event]) -> Said:
    found: dict[tuple[str, int], list[int]] = {}
    for event in events:
        if isinstance(event, Tokens):
            found.setdefault((event.request_id, event.choice), []).extend(event.ids)
    ends = [e for e in events if isinstance(e, Finished)]
    return {
        (e.request_id, e.choice): (found.get((e.request_id, e.choice), []), e.reason) for e in ends
    }


def held(requests: Sequence[Request], bench: Bench, *, cancels: bool) -> list[Event]:
    """All at once; ``cancels``: the first of them soon after it began."""
    for request in requests:
        bench.engine.submit(request)
    events = [event for _ in range(4) for event in bench.engine.step()]
    if cancels:
        bench.engine.abort(requests[0].id)
    events += drain(bench.engine)
    bench.engine.check_idle()
    return events


def cached(events: Sequence[Event]) -> int:
    (end,) = [e for e in events if isinstance(e, Finished)]
    return end.usage.device


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 7}),
    ],
)
def test_two_turns(kind: str, config: dict[str, Any]) -> None:
    twins = Twins(kind, config=config)
    first = prompt(1, 37)
    answer = twins.out(twins.say(first))
    second = twins.say(first + answer + prompt(2, 9))
    assert cached(second) == len(first) + len(answer) - 1


def test_forks_inside_a_page() -> None:
    twins = Twins()
    head = prompt(1, 45)
    twins.say(head)
    before = twins.launches.calls["copy_pages_kernel"]
    twins.say(head[:41] + array("I", [1]), head[:41] + array("I", [2]), head[:35] + prompt(3, 3))
    assert twins.launches.calls["copy_pages_kernel"] > before


def test_what_was_evicted_is_computed_again() -> None:
    twins = Twins(pool_tokens=6 * PAGE)
    one, other = prompt(1, 60), prompt(2, 60)
    twins.say(one)
    assert cached(twins.say(other)) == 0
    assert cached(twins.say(one)) < 59
    twins.say(one[:50] + prompt(3, 8))


def test_a_tree_of_three_levels_decodes_at_once_in_two_launches_a_layer() -> None:
    twins = Twins(config={"num_hidden_layers": 2})
    root = prompt(1, 3 * PAGE)
    leaves = [
        root + prompt(10 + child, 2 * PAGE) + prompt(20 + leaf, 1 + leaf)
        for child in range(2)
        for leaf in range(3)
    ]
    rows: set[int] = set()
    launched: list[Counter[str]] = []

    def act(bench: Bench) -> list[Event]:
        for ids in leaves:
            bench.engine.submit(bench.request(ids, 6))
        events = []
        while bench.engine.has_work():
            before = twins.launches.calls.copy()
            events += bench.engine.step()
            plan = twins.model.plans[-1]
            if bench is twins.bench and [s.row_count for s in plan.segments] == [1] * 6:
                rows.update(len(item.rows) for item in plan.items)
                launched.append(twins.launches.calls - before)
        return events

    twins.both(act)
    assert rows == {6, 3, 1}, "the root is read by all, each child by its own, the rest by one"
    assert len(launched) >= 4
    for calls in launched:
        attention = {
            name: n for name, n in calls.items() if name in ("attend_kernel", "merge_kernel")
        }
        assert attention == {"attend_kernel": 2, "merge_kernel": 2}


def test_one_of_several_is_cancelled() -> None:
    twins = Twins()
    head = prompt(1, 40)
    asked = [twins.bench.request(head + prompt(n, 3), 8) for n in range(3)]
    told = said(twins.both(partial(held, asked, cancels=True)))
    reasons = [reason for _, reason in told.values()]
    assert sorted(reasons) == sorted([FinishReason.ABORT, *[FinishReason.LENGTH] * 2])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_the_same_seed_draws_the_same_ids_as_on_a_cpu(params: dict[str, Any]) -> None:
    twins = Twins()
    given = SamplingParams(max_tokens=5, seed=11, **params)

    def act(bench: Bench) -> list[Event]:
        beside = bench.request(prompt(9, 5), 3)
        return bench.run(Request("a", prompt(1, 20), given, n=3), beside)

    events = twins.both(act)
    assert twins.launches.calls["best_of_blocks_kernel"] > 0
    assert len({tuple(ids) for (name, _), (ids, _) in said(events).items() if name == "a"}) == 3


def test_chunks_of_a_prompt_over_a_cached_prefix() -> None:
    twins = Twins(chunk_tokens=2 * PAGE)
    head = prompt(1, 40)
    twins.say(head)
    assert cached(twins.say(head + prompt(2, 75))) == 40


def test_requests_that_are_put_back_go_on_as_if_they_had_not_been() -> None:
    twins = Twins(pool_tokens=10 * PAGE)
    twins.say(*(prompt(n, 14) for n in range(2)), length=40)
    assert twins.bench.engine.stats()["retractions"] > 0


def test_a_plan_serves_many_steps_of_decoding() -> None:
    """A new one where a prompt runs, where the rows change, and where a path gets new pages."""
    twins = Twins()
    twins.say(prompt(1, 20), length=24)
    assert twins.plain.engine.plans_made == 24
    assert twins.bench.engine.plans_made <= 3


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_a_life_of_forks_in_a_small_pool(seed: int) -> None:
    """Turns that go on from any turn before, cut anywhere; several at once, some cancelled."""
    twins = Twins(pool_tokens=14 * PAGE)
    chance = random.Random(seed)
    paths = [prompt(seed, 30)]
    for turn in range(6):
        asked = []
        for _ in range(chance.randint(1, 4)):
            path = chance.choice(paths)
            path = path[: chance.randint(len(path) // 2, min(len(path), 80))]
            asked.append(path + prompt(chance.randrange(1000), chance.randint(1, 30)))
        params = SamplingParams(max_tokens=5, temperature=chance.choice([0.0, 1.0]), seed=turn)
        requests = [Request(f"{turn}.{n}", ids, params) for n, ids in enumerate(asked)]
        told = said(twins.both(partial(held, requests, cancels=chance.random() < 0.5)))
        paths += [ids + array("I", told[f"{turn}.{n}", 0][0]) for n, ids in enumerate(asked)]


def test_weights_in_4_bits(tmp_path: Path) -> None:
    config, weights = making.model("llama", tie_word_embeddings=True, num_hidden_layers=1)
    source = making.gguf_file(tmp_path / "m.gguf", config, weights, quant=Quant.Q4_1)
    convert(source, tmp_path / "m", {"name": "m"})
    plain, packed = load_weights(tmp_path / "m", None), load_packed(tmp_path / "m")

    class Packed(TinyModel):
        def _open(self, kind: str) -> Forward:
            made = DecoderConfig.from_hf(config)
            return Decoder(made, plain, self.dtype, self.device, self.executor, packed)

    class InFour(Twins):
        def _made(self, kind: str, executor: Executor, config: dict[str, Any]) -> Any:
            return Packed(kind, torch.float32, executor, **config)

    twins = InFour()
    first = prompt(1, 20)
    answer = twins.out(twins.say(first))
    twins.say(first + answer + prompt(2, 5), length=2)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_the_general_path(kind: str) -> None:
    class General(Twins):
        def _made(self, kind: str, executor: Executor, config: dict[str, Any]) -> Any:
            return GeneralTinyModel(kind, torch.float32, executor)

    twins = General(kind)
    first = prompt(1, 30)
    answer = twins.out(twins.say(first, length=2))
    twins.say(first + answer + prompt(2, 5), first + prompt(3, 3), length=2)
