"""Requests that say nothing and give log probabilities of ids that are given: ``fill="score"``."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import pytest
import torch

from radchat.engine.request import (
    FinishReason,
    Ids,
    Priority,
    Request,
    Span,
    Started,
    TokenLogprob,
    Tokens,
)
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.errors import InvalidInput
from tests.engine.bench import EXACT, PAGE, Bench, prompt
from tests.fakes import drain, finished, greedy, output, scripted_engine


def score(name: str, ids: Ids, start: int, **more: object) -> Request:
    return Request(name, ids, greedy(), fill="score", score_from=start, **more)  # type: ignore[arg-type]


def cold(bench: Bench, ids: Ids, start: int) -> list[float]:
    """Brute force: all rows at once, in a pool of its own."""
    logprobs = bench.model.cold_logits(ids).log_softmax(-1)
    return [float(logprobs[at - 1, ids[at]]) for at in range(max(1, start), len(ids))]


def values(scores: Sequence[TokenLogprob | None] | None, ids: Ids, start: int) -> list[float]:
    assert scores is not None
    assert len(scores) == len(ids)
    start = max(1, start)
    assert all(each is None for each in scores[:start])
    known = [each for each in scores[start:] if each is not None]
    assert [each.id for each in known] == list(ids[start:])
    return [each.logprob for each in known]


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("common", [1, PAGE - 1, PAGE, PAGE + 1, 70])
@pytest.mark.parametrize("is_warm", [False, True])
def test_choices_over_one_prefix_score_as_each_by_brute_force(
    dtype: torch.dtype, common: int, is_warm: bool
) -> None:
    bench = Bench(dtype)
    shared = prompt(1, common)
    choices = [prompt(10 + number, length) for number, length in enumerate((1, 2, 7, 40))]
    if is_warm:
        bench.ask(shared)
    before = bench.model.decoder.tokens_computed
    whole = [shared + each for each in choices]
    requests = [score(f"s{number}", ids, common) for number, ids in enumerate(whole)]
    events = bench.run(*requests, bench.request(prompt(3, 30), 8))
    ran = bench.model.decoder.tokens_computed - before
    assert not any(isinstance(each, Tokens) and each.request_id[0] == "s" for each in events)
    rows = 30 + 8 - 1
    for request in requests:
        end = finished(events, request.id)
        found = values(end.prompt_logprobs, request.ids, common)
        assert found == pytest.approx(cold(bench, request.ids, common), abs=1e-5)
        assert (end.reason, end.kept, end.usage.output_tokens) == (FinishReason.STOP, 0, 0)
        assert end.usage.cached_tokens + end.usage.computed == len(request.ids)
        rows += end.usage.computed
    assert ran == rows, "the decoder's own count"
    first = common - 1 if is_warm else 0  # the prefix runs once, its last row for each
    again = common + sum(map(len, choices)) - first + (len(choices) - 1) * 1
    if is_warm or common > PAGE:  # of less it isn't worth waiting for the first
        assert rows - 37 == again
    bench.engine.check_idle()
    assert bench.ask(whole[2]) == len(whole[2]) - 1, "and what was scored is cached"


def test_a_chosen_one_goes_on_from_what_was_scored() -> None:
    bench = Bench(torch.float32)
    shared, chosen = prompt(1, 40), prompt(2, 3)
    bench.run(score("s", shared + chosen, 40))
    assert bench.ask(shared + chosen + prompt(3, 4)) == 43


@pytest.mark.parametrize("start", [0, 1, 5, 16, 17, 89, 90])
@pytest.mark.parametrize("chunk", [16, 32, 512])
def test_scores_from_anywhere_are_those_of_the_whole_prompt(start: int, chunk: int) -> None:
    bench = Bench(chunk_tokens=chunk, scoring_chunk=24)
    ids = prompt(4, 90)
    bench.ask(ids[:50])
    params = greedy(3, prompt_logprobs=True, logprobs=2)
    events = bench.run(Request("all", ids, params), Request("part", ids, params, score_from=start))
    every, part = (finished(events, name) for name in ("all", "part"))
    assert every.prompt_logprobs is not None
    assert part.prompt_logprobs is not None
    first = max(1, start)
    assert part.prompt_logprobs[:first] == (None,) * first
    for one, other in zip(every.prompt_logprobs[first:], part.prompt_logprobs[first:], strict=True):
        assert one is not None
        assert other is not None
        assert other.logprob == pytest.approx(one.logprob, abs=1e-9)
        assert [each for each, _ in other.top] == [each for each, _ in one.top]
    assert output(events, "part") == output(events, "all")
    assert every.spans == (Span(0, 90, "computed"),)
    assert part.usage.cached_tokens == max(0, start - 1)


def test_what_is_scored_stays_so_when_it_is_put_back() -> None:
    engine = scripted_engine(
        scores=by_last, pool_tokens=96, options=SchedulerOptions(chunk_tokens=16)
    )
    ids = array("I", range(100, 140))
    engine.submit(score("s", ids, 10, priority=Priority.BACKGROUND))
    events = engine.step()
    engine.submit(Request("a", array("I", range(60)), greedy(6)))
    events += drain(engine)
    assert engine.stats()["retractions"] == 1
    end = finished(events, "s")
    assert values(end.prompt_logprobs, ids, 10) == pytest.approx(
        [wanted(at) for at in ids[10:]], abs=1e-6
    )
    assert end.usage.cached_tokens + end.usage.computed == 40


def by_last(ids: Sequence[int]) -> Mapping[int, float]:
    return {ids[-1] + 1: float(ids[-1] % 7)}


def wanted(following: int) -> float:
    mine = (following - 1) % 7
    return mine - math.log(math.exp(mine) + 259 * math.exp(-20))


def test_several_samples_of_a_scored_prompt_score_it_once() -> None:
    bench = Bench()
    ids = prompt(5, 40)
    request = Request("n", ids, greedy(4, prompt_logprobs=True), n=3, score_from=30)
    before = bench.model.decoder.tokens_computed
    events = bench.run(request)
    assert bench.model.decoder.tokens_computed - before == 40 + 3 * 3
    for choice in range(3):
        end = finished(events, "n", choice)
        assert values(end.prompt_logprobs, ids, 30) == pytest.approx(cold(bench, ids, 30))


def test_a_wholly_cached_choice_starts_from_the_tree() -> None:
    bench = Bench(torch.float32)
    ids = prompt(6, 48)
    bench.ask(ids)
    events = bench.run(score("s", ids, 40))
    assert events[0] == Started("s", 48, 39, 0)
    assert finished(events, "s").spans == (Span(0, 39, "device"), Span(39, 48, "computed"))


def test_what_cannot_be_scored_is_refused() -> None:
    engine = scripted_engine()
    ids = array("I", range(5))
    for start in (-1, 6):
        with pytest.raises(InvalidInput, match="score_from: want 0 to 5"):
            engine.submit(score("a", ids, start))
    with pytest.raises(InvalidInput, match="with fill score or prompt_logprobs"):
        engine.submit(Request("a", ids, greedy(), score_from=2))
    with pytest.raises(InvalidInput, match="fill score: wants n = 1"):
        engine.submit(score("a", ids, 2, n=2))
    assert not engine.has_work()
