"""Requests that fill the cache and say nothing: ``load`` and ``warm``; and what needs no torch."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest

from radchat.engine.engine import Engine
from radchat.engine.request import (
    Event,
    Fill,
    Finished,
    FinishReason,
    Ids,
    Progress,
    Request,
    Span,
    Started,
    Tiers,
    Tokens,
)
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.errors import InvalidInput
from tests.fakes import drain, finished, flush, greedy, hashed, output, scripted_engine


def some(length: int, first: int = 0) -> Ids:
    return array("I", [(first + i) % 250 for i in range(length)])


def fill(engine: Engine, how: Fill, ids: Ids, name: str = "f") -> Finished:
    engine.submit(Request(name, ids, greedy(), fill=how))
    events = drain(engine)
    assert not any(isinstance(event, Tokens) for event in events)
    engine.check_idle()
    return finished(events, name)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 100])
def test_warm_computes_a_prompt_and_says_nothing(length: int) -> None:
    engine = scripted_engine(options=SchedulerOptions(chunk_tokens=32))
    ids = some(length)
    end = fill(engine, "warm", ids)
    assert (end.reason, end.kept, end.text, end.last) == (FinishReason.STOP, 0, "", True)
    assert (end.usage.computed, end.usage.output_tokens) == (length, 0)
    assert end.spans == (Span(0, length, "computed"),)
    assert engine.probe_tiers(ids) == Tiers(length, 0)
    assert engine.rows_run == length
    engine.submit(Request("a", ids + some(3, 9), greedy(2)))
    events = drain(engine)
    assert finished(events, "a").usage.device == length
    assert output(events, "a")[0] == hashed(ids + some(3, 9))


def test_warm_of_what_is_cached_runs_the_last_row_as_every_request() -> None:
    engine = scripted_engine()
    fill(engine, "warm", some(40))
    again = fill(engine, "warm", some(40))
    assert again.spans == (Span(0, 39, "device"), Span(39, 40, "computed"))


def test_load_without_a_disk_ends_at_once_and_says_what_is_cached() -> None:
    engine = scripted_engine()
    end = fill(engine, "load", some(100))
    assert (end.reason, end.spans, end.usage.computed) == (FinishReason.STOP, (), 0)
    fill(engine, "warm", some(60))
    assert fill(engine, "load", some(100)).spans == (Span(0, 60, "device"),)
    assert fill(engine, "load", some(60)).spans == (Span(0, 60, "device"),)
    assert engine.rows_run == 60


def test_a_turn_takes_over_where_a_load_ends() -> None:
    engine = scripted_engine()
    engine.submit(Request("f", some(100), greedy(), fill="load"))
    engine.submit(Request("a", some(100) + some(5, 7), greedy(3)))
    events: list[Event] = drain(engine)
    assert output(events, "a")[0] == hashed(some(100) + some(5, 7))
    assert finished(events, "a").usage.computed == 105


def test_an_answer_says_where_its_prompt_came_from() -> None:
    engine = scripted_engine()
    fill(engine, "warm", some(50))
    engine.submit(Request("a", some(50) + some(30, 99), greedy(2)))
    events = drain(engine)
    assert events[0] == Started("a", 80, 50, 0)
    assert events[1] == Progress("a", 80, 80, "extend")
    assert finished(events, "a").spans == (Span(0, 50, "device"), Span(50, 80, "computed"))


def test_what_cannot_be_filled_is_refused() -> None:
    engine = scripted_engine()
    with pytest.raises(InvalidInput, match="fill: want answer, load, warm"):
        engine.submit(Request("a", some(5), greedy(), fill="x"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="fill warm: wants n = 1"):
        engine.submit(Request("a", some(5), greedy(), n=2, fill="warm"))
    with pytest.raises(InvalidInput, match="fill load: wants no prompt_logprobs"):
        engine.submit(Request("a", some(5), greedy(prompt_logprobs=True), fill="load"))


def test_an_engine_without_a_disk_says_so() -> None:
    engine = scripted_engine()
    engine.keep("s/main", some(5))
    assert not engine.has_disk
    assert engine.save(now=True) is None
    assert flush(engine)
    assert engine.drain(1)
    assert engine.stats()["disk"] is None
    engine.unkeep("s/")
    engine.close()


def test_the_fingerprint_and_the_protocol_of_blocks_need_no_torch() -> None:
    code = (
        "import sys\n"
        "import radchat.engine.fingerprint, radchat.engine.block_store\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
