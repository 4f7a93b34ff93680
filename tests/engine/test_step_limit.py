"""Whom a full device ends, and what the limit of rows is for those who come after."""

from __future__ import annotations

from array import array

import pytest
import torch

from radchat.engine.device import Device
from radchat.engine.engine import PAUSE_S, Engine
from radchat.engine.request import FinishReason
from radchat.engine.step_limit import CALM, StepLimit
from tests.engine.cramped import (
    FATAL,
    PAGE,
    ROOMY,
    TORCH_SAYS,
    CrampedModel,
    ask,
    cramped,
    prompt,
    run,
    same,
)
from tests.fakes import drain, finished, scripted_engine


def test_a_limit_halves_to_a_row_or_a_page_and_doubles_again() -> None:
    limit = StepLimit()
    assert limit.chunk(512, PAGE) == 512
    seen = []
    for rows in (512, 256, 128, 64, 32, 16, 8, 4, 2):
        limit.halve(rows)
        seen.append(limit.rows)
    assert seen == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    assert limit.chunk(512, PAGE) == PAGE
    doubled = sum(limit.went_well(1) for _ in range(9 * CALM))
    assert (doubled, limit.rows) == (9, None)
    limit.halve(40, PAGE)
    assert limit.rows == 20
    limit.halve(20, PAGE)
    assert limit.rows == PAGE


def test_below_a_page_there_is_one_level_for_prompts() -> None:
    limit = StepLimit()
    limit.halve(512)
    limit.halve(2)
    assert limit.rows == 1
    for _ in range(CALM):
        limit.went_well(PAGE)
    assert limit.rows == 2 * PAGE


def doomed_one(engine: Engine, model: CrampedModel) -> list[int]:
    """Rows of the steps that a request in vain was tried in."""
    before = len(model.full)
    ids = prompt(1, 300) + array("I", [FATAL]) + prompt(2, 5)
    end = finished(run(engine, [ask("doomed", ids, 5)]), "doomed")
    assert end.reason is FinishReason.ERROR
    return model.full[before:]


def test_the_limit_goes_with_the_one_who_was_too_much() -> None:
    engine, model = cramped(ROOMY)
    assert doomed_one(engine, model)[-2:] == [PAGE, PAGE]
    assert engine._scheduler.running.limit.rows is None
    before = len(model.rows)
    run(engine, [ask("long", prompt(3, 3000), 1)])
    assert len(model.rows) - before == 6  # of 512 rows, as on a roomy device


def test_the_limit_goes_with_one_that_is_cancelled_before_its_last_try() -> None:
    engine, _ = cramped(ROOMY)
    engine.submit(ask("doomed", array("I", [FATAL]), 5))
    engine.step()
    assert engine._scheduler.running.limit.rows == 1
    engine.abort("doomed")
    assert engine._scheduler.running.limit.rows is None
    drain(engine)


def test_what_was_held_before_the_one_who_was_too_much_stays_held() -> None:
    engine, model = cramped(lambda attempt: 100 if attempt == 0 else ROOMY)
    run(engine, [ask("a", prompt(0, 256), 2)])
    assert engine._scheduler.running.limit.rows == 128
    doomed_one(engine, model)
    assert engine._scheduler.running.limit.rows == 128


def test_who_comes_after_has_tries_of_its_own() -> None:
    """Each of its steps is full once; the one that was too much before it has no part in that."""
    fails: set[int] = set()
    engine, model = cramped(lambda attempt: 0 if attempt in fails else ROOMY)
    doomed_one(engine, model)
    now = len(model.rows) + len(model.full)
    fails.update(range(now, now + 20, 2))
    request = ask("innocent", prompt(5, 40), 5)
    same(run(engine, [request]), run(scripted_engine(), [request]), request)
    assert len(model.full) > 8


def test_a_prompt_is_tried_by_a_page_twice_and_no_more_often() -> None:
    """And before the last time it waits, for what another program took for a moment."""
    engine, model = cramped(0)
    begin = engine._clock()
    end = finished(run(engine, [ask("a", prompt(0, 64))]), "a")
    assert end.reason is FinishReason.ERROR
    assert model.full == [64, 32, PAGE, PAGE]
    assert engine._clock() - begin == pytest.approx(PAUSE_S)


def test_siblings_that_are_born_keep_to_the_limit() -> None:
    engine, model = cramped(ROOMY)
    limit = engine._scheduler.running.limit
    limit.halve(8)
    request = ask("a", prompt(0, 10), 8, n=6)
    same(run(engine, [request]), run(scripted_engine(), [request]), request)
    assert limit.rows == 4
    assert max(model.rows[1:]) == 4


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_there_was_no_room_for_is_in_the_log_and_the_way_out_is_the_device_s(
    caplog: pytest.LogCaptureFixture, *, on_gpu: bool
) -> None:
    device = Device()
    device.type = "meta" if on_gpu else "cpu"
    model = CrampedModel(lambda _: 0)
    engine = scripted_engine(model=model, device=device)
    end = finished(run(engine, [ask("a", prompt(0, 5))]), "a")
    assert ("uses the GPU" in str(end.error)) is on_gpu
    assert ("close something" in str(end.error)) is not on_gpu
    assert TORCH_SAYS in caplog.text


def test_more_than_the_machine_has_at_all_is_a_mistake_that_is_said_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, model = cramped(0)
    with pytest.raises(RuntimeError, match="allocate") as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    model.error = caught.value
    end = finished(run(engine, [ask("a", prompt(0, 5))]), "a")
    assert "a mistake of radchat's: radchat daemon logs" in str(end.error)
    assert "more memory than the device has at all" in caplog.text
    assert "Traceback" in caplog.text
