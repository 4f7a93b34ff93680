"""Fifty runs (AGENT_RUNS) of an agent on SmolLM2: each ends cleanly, every call is valid.

What it got done is printed (``-s``): a model of this size is not meant for the work.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agent_tasks import CLEAN, TASKS, called, run_task
from tests.e2e.conftest import sources
from tests.e2e.homes import Home

__all__ = ["sources"]  # a fixture

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]
RUNS = int(os.environ.get("AGENT_RUNS", "50"))


@pytest.fixture
def real(sources: str, smollm2: Path) -> Iterator[Home]:
    home = Home(sources, {"smollm2-135m": smollm2}, RADCHAT_KV_DEVICE="16000tok")
    yield home
    home.close()


def test_small_tasks_end_and_all_that_is_called_is_valid(real: Home, tmp_path: Path) -> None:
    ends, calls, done = Counter[str](), Counter[str](), 0
    for number in range(RUNS):
        folder = tmp_path / str(number)
        ended = run_task(real, folder, number, most=160, must=number % 4)
        ends[ended.reason] += 1
        calls += called(real, folder, number)
        mended = "return a + b" in (folder / "calc.py").read_text()
        done += mended and TASKS[number % len(TASKS)].startswith(("Make", "Replace"))
    print(f"\n{dict(ends)}, calls {dict(calls)}, mended {done} of {RUNS // 5}")
    assert set(ends) <= CLEAN
    assert sum(calls.values()) >= RUNS / 2
    real.assert_balanced()
