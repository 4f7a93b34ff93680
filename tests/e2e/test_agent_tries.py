"""Several tries in the real daemon: what they share is read once, and they are decoded together."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tests import histories
from tests.e2e.conftest import Homes
from tests.e2e.harness import Terminal
from tests.e2e.hooked import Hooked
from tests.e2e.test_agent import CALC, Project
from tests.waiting import wait_until

CHECK = "python3 -c 'from calc import add; assert add(2, 3) == 5'"
STEP = re.compile(r"step \d+: extend \d+ rows, decode \d+ rows: (.*)")


@pytest.fixture
def project(homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    home = homes(RADCHAT_KV_DEVICE="16384tok", RADCHAT_LOG_LEVEL="debug")
    for name, value in home.env.items():  # of the daemon that this process starts
        monkeypatch.setenv(name, value)
    (tmp_path / "hooks").mkdir()
    root = tmp_path / "project"
    root.mkdir()
    return Project(Hooked(home, tmp_path / "hooks"), root)


def asked(screen: Terminal, num: int) -> bool:
    return screen.everything.count("[Esc] stop") == num


def test_what_tries_share_is_read_once_and_they_go_on_in_common_steps(project: Project) -> None:
    hooked = project.hooked
    project.begin("tries")
    words = ("--tries", "3", "--check", CHECK, "--seed", "3", "mend add")
    with project.terminal(*words) as screen:
        for number in range(1, 4):
            screen.wait_for(partial(asked, num=number))
            hooked.hold("submit")  # each has said what it wants to do: nothing runs there now
            screen.type("y")
        wait_until(lambda: hooked.num_arrived == 3)
        assert project.calc == CALC, "what was allowed was done in copies"
        hooked.release()
        screen.wait_for("is kept, on try-")
        assert screen.wait_end() == 0
    assert project.calc == CALC.replace("a - b", "a + b")
    assert list((project.home.places.cache / "tries").iterdir()) == []

    with project.home.store() as store:
        (session,) = [each.session for each in store.sessions()]
        ends = {each.name: each.message for each in store.branches(session.id)}
        assert ends.pop("main") is None
        paths = {name: store.path(message) for name, message in ends.items()}
        head = store.head(session.id)
    assert sorted(paths) == ["try-1", "try-2", "try-3"]
    assert head.branch in paths
    for path in paths.values():
        assert histories.problems(path) == []
    firsts = [next(m for m in path if m.role == "assistant") for path in paths.values()]

    steps = [
        [(word.partition("/")[0], int(word.partition("+")[2] or 1)) for word in found.split()]
        for found in STEP.findall(project.home.log())
    ]
    prompt = (firsts[0].usage or {})["input_tokens"]
    shared = steps[0][0][0]
    said = sum(first.out_len or 0 for first in firsts)
    read = sum(rows for step in steps for request, rows in step if request == shared)
    assert prompt <= read <= prompt + said, "the prompt of all three, once"
    together = [step for step in steps if len({request for request, _ in step}) == 3]
    lasts = [path[-1] for path in paths.values()]
    longest = max(last.out_len or 0 for last in lasts)
    assert len(together) > longest / 2, "each came to it in its own moment"
    assert shared not in dict(together[0])
    for last in lasts:
        usage = last.usage or {}
        assert usage["cache"]["computed"] < usage["input_tokens"] / 3, "the tail alone"
