"""The whole engine on models of the general path: the same ids whatever the cache did.

What is right is said by transformers' eager attention over the whole text, token by token. Free
pages are NaN and everything is recounted after each step (``bench.py``).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from radchat.engine.request import Priority
from tests.engine.bench import EXACT, PAGE, Bench, cold_answer, model, prompt
from tests.fakes import drain

KINDS = pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "qwen3_moe", "phi3", "gemma2"])
DTYPES = pytest.mark.parametrize("dtype", EXACT, ids=lambda d: str(d)[6:])
WINDOW = 24  # of gemma3, gpt_oss and gemma2 in general_toys
BASE = prompt(0, 40)


@KINDS
@DTYPES
def test_cold_then_warm_then_the_next_turn_then_a_fork(kind: str, dtype: torch.dtype) -> None:
    bench = Bench(dtype, kind)
    assert bench.ask(BASE) == 0
    assert bench.ask(BASE) == len(BASE) - 1
    answer = array("I", cold_answer(tuple(BASE), 6, kind, dtype))
    assert bench.ask(BASE + answer + prompt(1, 9)) == len(BASE) + 5
    assert bench.ask(BASE + prompt(2, 30)) == len(BASE)
    for offset in (1, 15, 16, 17, 24, 31, 33):
        fresh = array("I", [(BASE[offset] + 1) % 256]) + prompt(offset, 6)
        assert bench.ask(BASE[:offset] + fresh, 3) == offset


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "gemma2"])
@DTYPES
def test_a_conversation_of_three_windows_is_reused_up_to_where_another_leaves_it(
    kind: str, dtype: torch.dtype
) -> None:
    """NU-04: all KV is kept, so a path with a sliding window can be cut at any token."""
    bench = Bench(dtype, kind)
    talk = prompt(3, 3 * WINDOW)
    bench.ask(talk, 1)
    for shared in (2 * WINDOW, 2 * WINDOW + 1, WINDOW - 1, 3):
        other = array("I", [(talk[shared] + 1) % 256]) + prompt(shared, 10)
        assert bench.ask(talk[:shared] + other) == shared
    assert bench.ask(talk) == len(talk) - 1


@KINDS
@DTYPES
def test_requests_that_come_and_go_change_no_answer(kind: str, dtype: torch.dtype) -> None:
    """Cold, warm, forked and decoding rows share steps; of a mixture, experts too."""
    bench = Bench(dtype, kind, chunk_tokens=2 * PAGE)
    chance = random.Random(1)
    requests = [
        bench.request(
            BASE[: chance.randrange(40)] + prompt(number, chance.randrange(1, 60)),
            chance.randrange(1, 8),
            priority=chance.choice(list(Priority)),
        )
        for number in range(8)
    ]
    events = []
    for request in requests:
        bench.engine.submit(request)
        for _ in range(chance.randrange(3)):
            events += bench.engine.step()
    events += drain(bench.engine)
    for request in requests:
        bench.expect(request, events)
    bench.engine.check_idle()


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "qwen3_moe"])
def test_requests_put_back_for_want_of_pages_say_the_same(kind: str) -> None:
    bench = Bench(torch.float32, kind, pool_tokens=160, growth_tokens=0)
    requests = [bench.request(prompt(20 + n, 30 + n), 20) for n in range(4)]
    events = bench.run(*requests)
    assert bench.engine.stats()["retractions"] > 0
    for request in requests:
        bench.expect(request, events)
    bench.engine.check_idle()


@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_moe"])
def test_siblings_of_one_cold_prefix_compute_it_once(kind: str) -> None:
    bench = Bench(torch.float32, kind)
    head = prompt(8, 100)
    before = bench.model.decoder.tokens_computed
    siblings = [bench.request(head + array("I", [n]) + prompt(n, 9), 2) for n in range(4)]
    events = bench.run(*siblings)
    assert bench.model.decoder.tokens_computed - before == 100 + 4 * 10 + 4
    for sibling in siblings:
        bench.expect(sibling, events)


# -- experts --------------------------------------------------------------------------------------


@contextmanager
def chosen_experts(kind: str, dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    """What the first layer's router chooses, a tensor [rows, chosen] a step."""
    found: list[torch.Tensor] = []

    def look(_module: Any, _args: Any, out: Any) -> None:
        found.append(next(each for each in out if not each.is_floating_point()))

    decoder: Any = model(kind, dtype).decoder
    mlp = decoder.module.model.layers[0].mlp
    router = getattr(mlp, "router", None) or mlp.gate
    handle = router.register_forward_hook(look)
    try:
        yield found
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_moe"])
@DTYPES
def test_a_rows_experts_do_not_depend_on_what_else_is_in_the_step(
    kind: str, dtype: torch.dtype
) -> None:
    """Each row is routed by itself: no expert has a capacity that other rows could use up."""
    bench = Bench(dtype, kind, chunk_tokens=512)
    ids = prompt(40, 60)
    with chosen_experts(kind, dtype) as alone:
        bench.run(bench.request(ids, 1))
    crowd = Bench(dtype, kind, chunk_tokens=512)
    others = [crowd.request(prompt(50 + n, 30), 1) for n in range(4)]
    with chosen_experts(kind, dtype) as together:
        crowd.run(*others, crowd.request(ids, 1))
    rows = torch.cat(together)
    assert len(rows) == 60 + 4 * 30
    wanted = torch.cat(alone)
    begins = [i for i in range(len(rows) - 59) if torch.equal(rows[i : i + 60], wanted)]
    assert len(begins) == 1
