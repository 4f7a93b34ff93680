"""A turn of an agent as it goes: words as in a chat, a line for each call and what came of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.agent.lines import result_line, step_line
from radchat.agent.terminal.body import painted, rows_of
from radchat.agent.types import Call, Outcome, Preview, Result, Step, Verdict
from radchat.chat.footer import counted
from radchat.chat.text import clean, one_line
from radchat.chat.view import DIM, RESET, View
from radchat.chat.width import cut
from radchat.protocol import Event

OUTPUT = 6  # lines of a command's
DIFF = 40  # lines of a change that nobody was asked about
TICK_S = 1.0


@dataclass
class StepView:
    """``make_view``: of one answer's words. ``write``: whole clean lines, above the status line."""

    make_view: Callable[[], View]
    write: Callable[[str], None]
    status: Callable[[str], None]
    columns: Callable[[], int]
    paints: bool = False
    is_quiet: bool = False
    tick_s: float = TICK_S
    _view: View | None = None
    _asked: set[str] = field(default_factory=set)  # calls a person was shown
    _running: _Running | None = None

    @property
    def view(self) -> View:
        if self._view is None:
            self._view = self.make_view()
        return self._view

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        if name != "message":
            self.view.show(Event(name, dict(data)))
        if name == "call":
            self.status(f"calls {one_line(str(data.get('name')))}")

    def on_step(self, number: int, step: Step) -> None:
        self.view.finish()
        self._view = None
        self._dim(step_line(number, step))

    def on_judged(self, call: Call, preview: Preview, verdict: Verdict) -> None:  # noqa: ARG002
        if verdict.decision == "ask":
            self._asked.add(call.id)

    def on_start(self, call: Call, preview: Preview) -> None:
        if call.id not in self._asked:
            self._line(f"* {preview.title}")
            if preview.body_kind == "diff" or (
                preview.body.count("\n") and preview.body_kind == "command"
            ):
                self._body(preview)
        self._running = _Running(call.name, self.status, self.tick_s)

    def rest(self) -> None:
        """Nothing is drawn: something else is on the line."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def on_progress(self, call: Call, line: str) -> None:  # noqa: ARG002
        if self._running is not None:
            self._running.line = one_line(line)

    def on_result(
        self, call: Call, result: Result, outcome: Outcome | None, changed: Sequence[str]
    ) -> None:
        self.rest()
        if outcome is None and call.id not in self._asked:
            self._line(f"* {call.name}")
        if outcome is not None and outcome.details.get("code") is not None:
            self._output(outcome.text)
        self._dim(f"  {result_line(result, outcome, changed)}")

    def _output(self, text: str) -> None:
        """The end of what a command printed."""
        lines = clean(text).rstrip().splitlines()
        if len(lines) > OUTPUT:
            self._dim(f"  [{counted(len(lines) - OUTPUT, 'line')} before]")
        for line in lines[-OUTPUT:]:
            self._dim(f"  {line}")

    def on_notice(self, text: str, code: str) -> None:  # noqa: ARG002
        self._dim(one_line(text))

    def finish(self) -> None:
        """However the turn ended."""
        self.rest()
        if self._view is not None:
            self._view.finish()
            self._view = None
        self.status("")

    def _body(self, preview: Preview) -> None:
        lines = painted(rows_of(preview, self.columns()), paints=self.paints)
        for line in lines[:DIFF]:
            self._raw(line)
        if len(lines) > DIFF:
            self._dim(f"  [and {counted(len(lines) - DIFF, 'line')} more]")

    def _line(self, text: str) -> None:
        self._raw(cut(one_line(text), max(self.columns() - 1, 20)))

    def _dim(self, text: str) -> None:
        shown = cut(text, max(self.columns() - 1, 20))
        self._raw(f"{DIM}{shown}{RESET}" if self.paints else shown)

    def _raw(self, text: str) -> None:
        if not self.is_quiet:
            self.status("")
            self.write(f"{text}\n")


class _Running:
    """The status line while a tool runs: how long, and its last line."""

    def __init__(self, name: str, status: Callable[[str], None], tick_s: float) -> None:
        self._tick_s = tick_s
        self.line = ""
        self._name, self._status = name, status
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        while not self._is_over.wait(self._tick_s):
            seconds = time.monotonic() - self._began
            self._status(" ".join([f"{self._name} {seconds:.0f} s", self.line]).rstrip())

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._status("")
