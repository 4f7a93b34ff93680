"""A model that is a list of steps, and a folder with all that an agent has in it but a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from radchat.agent.files.checkpoints import FileCheckpoints
from radchat.agent.files.workspace import Folder
from radchat.agent.journal import Journal
from radchat.agent.loop import Agent, Bounds, Kept
from radchat.agent.permission.grants import Grants
from radchat.agent.permission.judge import Judge
from radchat.agent.permission.rules import Rule
from radchat.agent.tools.outputs import KeptOutputs
from radchat.agent.tools.registry import choose
from radchat.agent.types import (
    Approval,
    Approver,
    Ask,
    Call,
    Context,
    Limits,
    Listener,
    Mode,
    Outcome,
    Preview,
    Result,
    Runner,
    Step,
    Tool,
    Verdict,
)

Said = str | Sequence[tuple[str, Mapping[str, Any]]] | Step | BaseException
ROOM = {"used": 1000, "limit": 40_000}


def step(**named: Any) -> Step:
    return Step(message="m", text=named.pop("text", ""), **named)


class FakeSteps:
    """``said``: words, calls, a whole step, or what is raised; then "done"."""

    def __init__(self, said: Sequence[Said], open_calls: Sequence[Call] = ()) -> None:
        self.said = list(said)
        self.asks: list[Ask] = []
        self.session: str | None = "session"
        self.head: Mapping[str, Any] | None = None
        self.waiting = tuple(open_calls)
        self._ids = itertools.count(1)

    def step(self, ask: Ask, listener: Listener) -> Step:
        self.asks.append(ask)
        said = self.said.pop(0) if self.said else "done"
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, Step):
            return replace(said, message=f"m{len(self.asks)}")
        message, usage = f"m{len(self.asks)}", {"input_tokens": 100, "cached_input_tokens": 90}
        cache = {"device": 90, "computed": 10}
        if isinstance(said, str):
            listener.on_event("delta", {"text": said})
            return Step(message, said, usage=usage, cache=cache, context=ROOM)
        calls = tuple(Call(f"c{next(self._ids)}", name, arguments) for name, arguments in said)
        self.waiting = calls
        return Step(message, "", calls, usage=usage, cache=cache, context=ROOM)

    def open_calls(self) -> tuple[Call, ...]:
        return self.waiting

    def cancel(self) -> None:
        self.said = []


@dataclass
class Heard:
    """A listener that keeps what it is told, in order."""

    told: list[tuple[str, Any]] = field(default_factory=list)

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        self.told.append((name, data))

    def on_step(self, number: int, step: Step) -> None:
        self.told.append(("step", (number, step)))

    def on_judged(self, call: Call, preview: Preview, verdict: Verdict) -> None:
        self.told.append(("judged", (call.name, verdict.decision)))

    def on_start(self, call: Call, preview: Preview) -> None:
        self.told.append(("start", call.name))

    def on_progress(self, call: Call, line: str) -> None:
        self.told.append(("progress", (call.name, line)))

    def on_result(
        self, call: Call, result: Result, outcome: Outcome | None, changed: Sequence[str]
    ) -> None:
        self.told.append(("result", (call.name, result, outcome, tuple(changed))))

    def on_notice(self, text: str, code: str) -> None:
        self.told.append(("notice", (text, code)))

    def results(self) -> list[Result]:
        return [what[1] for name, what in self.told if name == "result"]


@dataclass
class Person:
    """Answers approvals in order; then says yes."""

    answers: list[Approval] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval:
        self.asked.append(preview.title)
        return self.answers.pop(0) if self.answers else Approval(True)


class Desk:
    """An agent in ``base/project``, with its journal in ``base/kept``."""

    def __init__(
        self,
        base: Path,
        said: Sequence[Said],
        *,
        mode: Mode = "default",
        rules: Sequence[str] = (),
        approver: Approver | None = None,
        runner: Runner | None = None,
        more: Sequence[Tool] = (),
        open_calls: Sequence[Call] = (),
        **bounds: int,
    ) -> None:
        self.root = base / "project"
        self.root.mkdir(exist_ok=True)
        self.base, self.runner = base, runner
        folder = Folder.of(self.root)
        grants = Grants(base / "state", folder.root, [Rule.parse(text) for text in rules])
        self.judge = Judge(mode, folder, grants, [base / "state"])
        self.steps, self.heard = FakeSteps(said, open_calls), Heard()
        tools = choose(None, more, can_ask=False)
        self.limits = Limits()
        self.agent = Agent(
            self.steps,
            tools,
            self.judge,
            self.heard,
            self.open_kept,
            approver=approver,
            bounds=Bounds(**bounds),
        )
        self.folder = folder

    def open_kept(self, session: str) -> Kept:
        journal = Journal(self.base / "kept" / session)
        context = Context(
            self.folder, KeptOutputs(journal.folder / "outputs"), self.runner, "none in this test"
        )
        context.limits = self.limits
        return Kept(journal, context, FileCheckpoints(self.folder, journal), journal.close)

    def sent(self) -> list[Result]:
        """All results that the model was given."""
        return [result for ask in self.steps.asks for result in ask.results]
