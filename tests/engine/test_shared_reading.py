"""Branches over one warm prefix: a step reads its KV once for all, and says who is in it."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Sequence

import pytest
import torch

from radchat.engine.request import Event, Finished, FinishReason
from radchat_kernels.plan import Limits
from radchat_kernels.torch_executor import SHARE_FROM
from tests.engine.bench import EXACT, PAGE, Bench, prompt
from tests.fakes import drain, finished, output

PREFIX = prompt(1, SHARE_FROM + 40)
SHARING = Limits(shared=True)


def what_ifs(bench: Bench, lengths: Sequence[int]) -> list[Event]:
    """An answer to each of several messages of seven tokens behind the warm prefix."""
    bench.run(bench.request(PREFIX, 1))
    bench.model.plans.clear()
    for branch, length in enumerate(lengths):
        own = array("I", [branch]) + prompt(branch, 6)
        bench.engine.submit(bench.request(PREFIX + own, length))
    return drain(bench.engine)


@pytest.mark.parametrize("branches", [2, 4, 8])
def test_branches_compute_their_own_words_and_read_the_prefix_once(branches: int) -> None:
    """In bf16, as on any CPU that multiplies it; the counts are what makes them fast."""
    bench = Bench(torch.bfloat16, pool_tokens=4096, chunk_tokens=512)
    lengths = [3 + branch for branch in range(branches)]
    rows = bench.engine.rows_run
    events = what_ifs(bench, lengths)
    ends = [event for event in events if isinstance(event, Finished)]
    assert sorted(end.usage.computed for end in ends) == [7] * branches
    assert [end.usage.device for end in ends] == [len(PREFIX)] * branches
    said = sum(lengths) - branches  # the first token of each is drawn from its prompt
    assert bench.engine.rows_run - rows == len(PREFIX) + 7 * branches + said
    plans = bench.model.plans
    assert len(plans) == max(lengths), "a step for each token of the longest answer"
    for step, plan in enumerate(plans):
        live = sum(length > step for length in lengths)
        prefix = [i for i in plan.items if i.tok_begin == 0]
        if live > 1:
            assert [len(i.rows) for i in prefix] == [7 * live if step == 0 else live]
            assert prefix[0].tok_end == len(PREFIX) // PAGE * PAGE, "its whole pages"
    assert all(len(i.rows) == 1 or i.tok_begin == 0 for i in plans[1].items)


@pytest.mark.parametrize("dtype", EXACT)
def test_exact_answers_are_read_by_each_alone(dtype: torch.dtype) -> None:
    bench = Bench(dtype, pool_tokens=4096)
    what_ifs(bench, [4, 4])
    assert len(bench.model.plans) >= 4
    assert not any(len(i.rows) > 1 for p in bench.model.plans[1:] for i in p.items)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_what_is_read_together_is_what_each_reads_alone(kind: str) -> None:
    """The answers of arithmetic that shares nothing, in float64: a merge would show in no id."""
    bench = Bench(torch.float64, kind, 4096, limits=SHARING)
    requests = [bench.request(PREFIX[:-branch] + prompt(branch, 5), 5) for branch in (1, 2, 3, 40)]
    bench.run(bench.request(PREFIX, 1))
    bench.model.plans.clear()
    events = bench.run(*requests)
    assert max(len(i.rows) for p in bench.model.plans for i in p.items if not i.causal) >= 4
    for request in requests:
        bench.expect(request, events)


def test_the_log_shows_branches_in_the_same_steps_and_the_others_go_on_when_one_is_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(torch.bfloat16, pool_tokens=4096, chunk_tokens=512)
    bench.run(bench.request(PREFIX, 1))
    with caplog.at_level(logging.DEBUG, "radchat.engine"):
        asked = [bench.request(PREFIX + prompt(branch, 4 + branch), 12) for branch in range(4)]
        for request in asked:
            bench.engine.submit(request)
        events = [event for _ in range(6) for event in bench.engine.step()]
        bench.engine.abort(asked[2].id)
        events += drain(bench.engine)
    lines = [r.getMessage() for r in caplog.records if r.name == "radchat.engine.batch"]
    names = [f"{request.id}/0" for request in asked]
    own = [f"{name}+{4 + branch}" for branch, name in enumerate(names)]
    first = int(re.findall(r"\d+", lines[0])[0])
    four, three = " ".join(names), " ".join(names[:2] + names[3:])
    assert lines == [
        f"step {first}: extend {4 + 5 + 6 + 7} rows, decode 0 rows: {' '.join(own)}",
        *(f"step {first + n}: extend 0 rows, decode 4 rows: {four}" for n in range(1, 6)),
        *(f"step {first + n}: extend 0 rows, decode 3 rows: {three}" for n in range(6, 12)),
    ]
    assert finished(events, asked[2].id).reason is FinishReason.ABORT
    assert [len(output(events, request.id)) for request in asked] == [12, 12, 6, 12]


def test_a_step_is_written_to_no_log_but_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(torch.float32)
    with caplog.at_level(logging.INFO, "radchat.engine"):
        bench.run(bench.request(prompt(1, 20)))
    assert not caplog.records
