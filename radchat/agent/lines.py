"""A turn of an agent as lines: on stderr to read, or on stdout as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from radchat.agent.types import Call, Outcome, Preview, Result, Step, Verdict
from radchat.chat.footer import counted
from radchat.chat.text import one_line
from radchat.chat.view import progress
from radchat.chat.width import cut

TITLE = 160  # columns of a call in a line


def step_line(number: int, step: Step) -> str:
    """What of a step's prompt was computed, and what was there: ``step 3 · computed 84 · …``"""
    read = int(step.usage.get("input_tokens", 0))
    cached = step.usage.get("cached_input_tokens", 0)
    said = counted(int(step.usage.get("output_tokens", 0)), "token")
    if cached is None:  # another program's engine, which does not tell
        return f"step {number} · read {read:,} · said {said}"
    share = f" ({100 * cached / read:.1f}%)" if read else ""
    return f"step {number} · cached {cached:,}/{read:,}{share} · said {said}"


def result_line(result: Result, outcome: Outcome | None, changed: Sequence[str]) -> str:
    """``exit 1 · 1.2 s · 34 lines``, ``2 files changed``, ``denied: …``"""
    if outcome is None:
        return f"{result.status}: {one_line(result.text)}"
    details = outcome.details
    parts: list[str] = [] if result.status in ("ok", "error") else [result.status]
    if details.get("code") not in (None, 0):
        parts.append(f"exit {details['code']}")
    elif result.status == "error" and "code" not in details:
        parts.append(f"error: {one_line(result.text)}")
    if "seconds" in details:
        parts.append(f"{details['seconds']:.1f} s")
    for name, what in (("lines", "line"), ("files", "file"), ("entries", "entry")):
        if name in details:
            num = int(details[name])
            parts.append(counted(num, what) if what != "entry" or num == 1 else f"{num} entries")
    if changed:
        parts.append(f"{counted(len(changed), 'file')} changed")
    if not parts:
        parts.append(counted(len(outcome.text.splitlines()), "line"))
    return " · ".join(parts)


@dataclass
class LogLines:
    """On stderr, one line for what is done. ``say`` cleans what it is given."""

    say: Callable[[str], None]
    status: Callable[[str], None] = lambda _text: None
    is_quiet: bool = False

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "notice":
            self._note(str(data.get("text", "")))
        elif name == "progress":
            self.status(progress(dict(data)))
        elif name in ("delta", "reasoning", "call"):
            self.status("")

    def on_step(self, number: int, step: Step) -> None:
        if step.calls and step.text.strip():
            self._note(one_line(step.text))
        self._note(step_line(number, step))

    def on_judged(self, call: Call, preview: Preview, verdict: Verdict) -> None:
        pass

    def on_start(self, call: Call, preview: Preview) -> None:
        self._note(f"* {cut(one_line(preview.title), TITLE)}")
        self.status(f"running {call.name}")

    def on_progress(self, call: Call, line: str) -> None:
        self.status(f"{call.name}: {line}")

    def on_result(
        self, call: Call, result: Result, outcome: Outcome | None, changed: Sequence[str]
    ) -> None:
        if outcome is None:
            self._note(f"* {call.name}")
        self._note(f"  {result_line(result, outcome, changed)}")

    def on_notice(self, text: str, code: str) -> None:  # noqa: ARG002
        self._note(text)

    def _note(self, text: str) -> None:
        if not self.is_quiet:
            self.status("")
            self.say(text)


@dataclass
class JsonLines:
    """One object a line, ``type`` first (docs/cli.md, "Streams")."""

    out: TextIO
    started: set[str] = field(default_factory=set)

    def line(self, kind: str, data: Mapping[str, Any]) -> None:
        self.out.write(json.dumps({"type": kind, **data}) + "\n")
        self.out.flush()

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        kinds = {"delta": "text_delta", "reasoning": "reasoning_delta", "notice": "warning"}
        if name == "init":
            self.line("init", data)
        elif name == "message":
            self.line("message", data)
        elif name in kinds:
            self.line(kinds[name], data)

    def on_step(self, number: int, step: Step) -> None:
        pass

    def on_judged(self, call: Call, preview: Preview, verdict: Verdict) -> None:  # noqa: ARG002
        self._use(call, verdict.decision)

    def on_start(self, call: Call, preview: Preview) -> None:
        pass

    def on_progress(self, call: Call, line: str) -> None:
        pass

    def on_result(
        self, call: Call, result: Result, outcome: Outcome | None, changed: Sequence[str]
    ) -> None:
        self._use(call, "deny")
        details = {} if outcome is None else dict(outcome.details)
        body = {**result.to_json(), "changed": list(changed), "details": details}
        self.line("tool_result", body)

    def on_notice(self, text: str, code: str) -> None:
        self.line("warning", {"text": text, "code": code})

    def _use(self, call: Call, decision: str) -> None:
        """Once, before its result."""
        if call.id not in self.started:
            self.started.add(call.id)
            body = {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
            self.line("tool_use", {**body, "decision": decision})
