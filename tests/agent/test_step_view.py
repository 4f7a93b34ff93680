"""What is seen of a turn: a line for each call, and for what came of it; it drives nothing."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from radchat.agent.terminal.step_view import StepView
from radchat.agent.types import Call, Outcome, Preview, Result, Step, Verdict
from radchat.chat.view import View
from radchat.chat.width import width
from tests.chat.test_text import HOSTILE
from tests.waiting import wait_until

DIFF = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a[0]\n+[bold]\n"
CALL = Call("c1", "shell", {})
LINE = Preview("shell pytest -q", "pytest -q", "command")


@dataclass
class Seen:
    written: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    def view(self, columns: int = 80, **more: Any) -> StepView:
        def make() -> View:
            return View(sys.stdout, sys.stderr, note=self.written.append, status=self._status)

        return StepView(make, self.written.append, self._status, lambda: columns, **more)

    def _status(self, text: str) -> None:
        self.statuses.append(text)

    @property
    def text(self) -> str:
        return "".join(self.written)


def run(view: StepView, preview: Preview, outcome: Outcome, *changed: str) -> None:
    view.on_start(CALL, preview)
    result = Result(CALL.id, CALL.name, outcome.text, outcome.status)
    view.on_result(CALL, result, outcome, changed)


def test_a_command_its_end_and_the_share_of_its_step() -> None:
    seen = Seen()
    view = seen.view()
    usage = {"input_tokens": 2394, "cached_input_tokens": 2310, "output_tokens": 12}
    view.on_step(3, Step("m", "", (CALL,), usage=usage))
    said = "[exit code 1]\n" + "".join(f"line {number}\n" for number in range(34))
    run(view, LINE, Outcome(said, "error", details={"code": 1, "seconds": 1.23}), "a", "b")
    assert seen.text.splitlines() == [
        "step 3 · cached 2,310/2,394 (96.5%) · said 12 tokens",
        "* shell pytest -q",
        "  [29 lines before]",
        *(f"  line {number}" for number in range(28, 34)),
        "  exit 1 · 1.2 s · 2 files changed",
    ]


@pytest.mark.parametrize("paints", [False, True])
def test_a_change_nobody_was_asked_about_is_shown(*, paints: bool) -> None:
    seen = Seen()
    run(seen.view(paints=paints), Preview("edit x", DIFF, "diff"), Outcome("done"))
    assert "  -a[0]" in seen.text.replace("\x1b[31m", "")
    assert "  +[bold]" in seen.text.replace("\x1b[32m", "")
    assert ("\x1b[32m  +[bold]\x1b[0m" in seen.text) is paints


def test_what_was_asked_about_is_not_shown_twice() -> None:
    seen = Seen()
    view = seen.view()
    view.on_judged(CALL, LINE, Verdict("ask", "it runs"))
    run(view, LINE, Outcome("x", details={"lines": 2}))
    assert seen.text == "  2 lines\n"


def test_what_did_not_run_says_why() -> None:
    seen = Seen()
    view = seen.view()
    view.on_result(CALL, Result("c1", "shell", "not permitted: plan mode", "denied"), None, ())
    assert seen.text == "* shell\n  denied: not permitted: plan mode\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_nothing_of_a_tools_drives_the_terminal(columns: int) -> None:
    seen = Seen()
    view = seen.view(columns)
    text = "\n".join(f"[red]{number} {each}" for number, each in enumerate(HOSTILE))
    view.on_judged(CALL, Preview(text, text, "diff"), Verdict("allow", text))
    view.on_start(CALL, Preview(text, text, "diff"))
    for each in HOSTILE:
        for cut in range(len(each)):
            view.on_progress(CALL, each[:cut])
    view.on_result(CALL, Result("c1", "shell", text), Outcome(text, details={"code": 0}), [text])
    view.on_notice(text, "x")
    view.on_event("call", {"name": text})
    view.finish()
    shown = seen.text + "\n".join(seen.statuses)
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "\u202e" not in shown
    for line in seen.text.splitlines():
        assert width(line) <= columns


def test_a_tool_that_runs_says_how_long_and_its_last_line() -> None:
    seen = Seen()
    view = seen.view(tick_s=0.01)
    view.on_start(CALL, LINE)
    view.on_progress(CALL, "first")
    view.on_progress(CALL, "[/INST] 50%")
    wait_until(lambda: seen.statuses[-1] == "shell 0 s [/INST] 50%")
    view.rest()  # somebody is asked
    num = len(seen.statuses)
    assert seen.statuses[-1] == ""
    view.on_result(CALL, Result("c1", "shell", "x"), Outcome("x"), ())
    assert set(itertools.islice(seen.statuses, num, None)) <= {""}
