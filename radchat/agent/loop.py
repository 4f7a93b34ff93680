"""The loop: a step of the model, its calls judged and run, their results, the next step.

Everything a tool does happens in this process. Before one runs the journal says so, and before its
result is sent the journal has it: whenever this process ends, what is open is known (resume.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from radchat.agent import resume
from radchat.agent.files.workspace import reason
from radchat.agent.tools import schema, shaping
from radchat.agent.types import (
    Approval,
    Approver,
    Ask,
    Call,
    Checkpoints,
    Context,
    Entries,
    Gate,
    Listener,
    Outcome,
    Preview,
    Result,
    Status,
    Step,
    Steps,
    Tool,
    ToolInterrupted,
    Verdict,
)

log = logging.getLogger(__name__)

Reason: TypeAlias = Literal[
    "answer",  # of the model: it is done
    "turns",  # as many steps as there may be
    "tokens",  # an answer that a limit cut off
    "repeated",  # the same call again and again
    "unreadable",  # calls that can't be read, after retries
    "tool",  # one that fails whatever it is asked
    "approval",  # something must be permitted, and nobody is there
    "stopped",  # by the person who was asked
    "interrupted",  # by Ctrl+C
]
CUT = {
    "length": "was cut off by the limit of tokens",
    "dead_end": "could not go on: the model can't write what the tools' schemas want",
}
RETRIES = 2  # of a call that can't be read
REPEATS = 3  # of the same call, one after the other
FAILURES = 3  # of tools, unforeseen ones, one after the other
LEAST_RESULT, MOST_RESULT = 300, 16_000  # bytes in the context
DENIED = "not permitted"


@dataclass(frozen=True, slots=True)
class Bounds:
    max_turns: int = 50  # steps of the model
    repeats: int = REPEATS


@dataclass
class Kept:
    """Of a session: opened when it is known."""

    entries: Entries
    context: Context
    checkpoints: Checkpoints | None = None
    close: Callable[[], None] = lambda: None


@dataclass
class Ended:
    reason: Reason
    text: str  # the model's last words
    why: str = ""  # in a line, where it is not the model's own end
    turns: int = 0
    message: str | None = None
    branch: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    denials: list[dict[str, Any]] = field(default_factory=list)


class Stop(Exception):
    """The turn ends here; what has no result yet was not run."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason, self.why = reason, why


@dataclass
class Agent:
    """One agent in one session. ``turn`` may be called again and again."""

    steps: Steps
    tools: Mapping[str, Tool]
    gate: Gate
    listener: Listener
    open_kept: Callable[[str], Kept]
    approver: Approver | None = None
    bounds: Bounds = field(default_factory=Bounds)
    kept: Kept | None = None
    _num: int = 0  # steps of this turn
    _denials: list[dict[str, Any]] = field(default_factory=list)
    _usage: dict[str, int] = field(default_factory=dict)
    _cache: dict[str, int] = field(default_factory=dict)
    _last: tuple[str, int] = ("", 0)  # the last call, and how often it came
    _failures: int = 0

    def turn(self, text: str, facts: str = "", *, is_new: bool = True) -> Ended:
        """Until the model is done, or something else ends it. Raises what the daemon says.
        ``is_new``: it follows what there is, and calls without a result get one.
        """
        self._num, self._denials, self._usage, self._cache = 0, [], {}, {}
        self._last, self._failures = ("", 0), 0
        results = self.left_open() if is_new else ()
        return self._run(Ask(text, results, facts))

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()

    def left_open(self) -> tuple[Result, ...]:
        """Results of calls that an earlier turn, or an earlier process, left without."""
        calls = self.steps.open_calls()
        if not calls and self.steps.session is None:
            return ()
        if self.steps.session is not None and self.kept is None:
            self.kept = self.open_kept(self.steps.session)
        entries = self.kept.entries.read() if self.kept is not None else []
        results, notes = resume.results_of(calls, entries)
        for note in notes:
            self.listener.on_notice(note, "interrupted")
        return results

    def _run(self, ask: Ask) -> Ended:
        unread = 0
        while True:
            self._num += 1
            step = self.steps.step(ask, self.listener)
            self._count(step)
            self.listener.on_step(self._num, step)
            if step.finish_reason == "abort":
                return self._ended("interrupted", step, "interrupted")
            if not step.calls and step.finish_reason != "stop":
                what = "the answer" if step.call_error is None else "a call"
                why = CUT.get(step.finish_reason, f"ended as {step.finish_reason}")
                return self._ended("tokens", step, f"{what} {why}")
            if not step.calls and step.call_error is None:
                return self._ended("answer", step)
            if not step.calls:
                unread += 1
                if unread > RETRIES:
                    why = f"{unread} calls in a row could not be read: {step.call_error}"
                    return self._ended("unreadable", step, why)
                ask = Ask(f"Your call could not be read: {step.call_error}. Write it again, whole.")
                continue
            unread = 0
            if self._num >= self.bounds.max_turns:
                why = f"{self._num} steps are all there may be (--max-turns)"
                return self._ended("turns", step, why)
            try:
                ask = Ask(results=self._answers(step))
            except Stop as stop:
                return self._ended(stop.reason, step, stop.why)
            except KeyboardInterrupt:
                return self._ended("interrupted", step, "interrupted")

    def _ended(self, reason: Reason, step: Step, why: str = "") -> Ended:
        return Ended(
            reason,
            step.text,
            why,
            self._num,
            step.message,
            step.branch,
            self._usage,
            self._cache,
            self._denials,
        )

    def _count(self, step: Step) -> None:
        for total, counts in ((self._usage, step.usage), (self._cache, step.cache)):
            for name, number in counts.items():
                total[name] = total.get(name, 0) + number

    # -- calls -------------------------------------------------------------------------------------

    def _answers(self, step: Step) -> tuple[Result, ...]:
        """All calls of an answer, in their order. Raises Stop, KeyboardInterrupt; what has run by
        then is in the journal.
        """
        if self.kept is None:
            assert self.steps.session is not None
            self.kept = self.open_kept(self.steps.session)
        self._bound_results(step, self.kept.context)
        return tuple(self._answer(call, step, self.kept) for call in step.calls)

    def _bound_results(self, step: Step, context: Context) -> None:
        """So that all of them, at worst a token a byte, leave half of the room that is left."""
        room = int(step.context.get("limit", 0)) - int(step.context.get("used", 0))
        most = room // (2 * len(step.calls)) if room > 0 else MOST_RESULT
        context.limits.result_bytes = max(LEAST_RESULT, min(MOST_RESULT, most))

    def _answer(self, call: Call, step: Step, kept: Kept) -> Result:
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return self._refused(call, f"there is no tool {call.name}: there are {known}", kept)
        if wrong := schema.problem(call, tool.parameters):
            return self._refused(call, wrong, kept)
        self._check_repeated(call, tool)
        preview = tool.preview(call, kept.context)
        if preview.error is not None:
            return self._refused(call, preview.error, kept, preview=preview)
        verdict = self.gate.judge(call, tool, preview)
        self.listener.on_judged(call, preview, verdict)
        if verdict.decision == "deny":
            return self._denied(call, verdict, f"{DENIED}: {verdict.why}", kept)
        if verdict.decision == "ask":
            refusal = self._ask(call, preview, verdict, kept)
            if refusal is not None:
                return refusal
        return self._ran(call, tool, preview, step, kept)

    def _check_repeated(self, call: Call, tool: Tool) -> None:
        said = json.dumps([call.name, dict(call.arguments)], sort_keys=True)
        last, num = self._last
        self._last = (said, num + 1 if said == last else 1)
        if self._last[1] >= self.bounds.repeats and not tool.is_poll:
            raise Stop("repeated", f"the same call {self._last[1]} times in a row: {call.name}")

    def _ask(self, call: Call, preview: Preview, verdict: Verdict, kept: Kept) -> Result | None:
        """None: it was permitted."""
        if self.approver is None:
            self._denied(call, verdict, f"{DENIED}: nobody was there to ask", kept)
            raise Stop("approval", f"{preview.title}: {verdict.why}")
        approval: Approval = self.approver.approve(call, preview, verdict)
        if approval.allowed:
            self.gate.remember(approval.rules, approval.remember)
            return None
        said = f"; the user says: {approval.feedback}" if approval.feedback else ""
        result = self._denied(call, verdict, f"the user did not permit it{said}", kept)
        if approval.stop:
            raise Stop("stopped", "not permitted")
        return result

    def _ran(self, call: Call, tool: Tool, preview: Preview, step: Step, kept: Kept) -> Result:
        message = step.message or ""
        kept.entries.append(
            {
                "state": "started",
                "call": call.id,
                "name": call.name,
                "title": preview.title,
                "message": message,
            }
        )
        self.listener.on_start(call, preview)
        if kept.checkpoints is not None and tool.kind in ("write", "run", "other"):
            try:
                kept.checkpoints.before(call, message, preview)
            except OSError as error:
                why = f"not run: what it may change can't be kept first ({reason(error)})"
                return self._refused(call, why, kept)
        kept.context.progress = lambda line: self.listener.on_progress(call, line)
        try:
            outcome = self._outcome(call, tool, preview, kept.context)
        except KeyboardInterrupt as stop:
            outcome = Outcome(
                "interrupted by the user: how far it came is not known", "interrupted"
            )
            if isinstance(stop, ToolInterrupted):
                outcome = stop.outcome
            self._finish(call, outcome, tool, message, kept)
            raise
        return self._finish(call, outcome, tool, message, kept)

    def _outcome(self, call: Call, tool: Tool, preview: Preview, context: Context) -> Outcome:
        try:
            outcome = tool.run(call, context, preview)
        except Exception as error:
            log.debug("the tool %s failed", call.name, exc_info=True)  # its result says so
            self._failures += 1
            text = f"{call.name} failed: {type(error).__name__}: {error}"
            return Outcome(text, "error")
        self._failures = 0
        return outcome

    def _finish(self, call: Call, outcome: Outcome, tool: Tool, message: str, kept: Kept) -> Result:
        changed: tuple[str, ...] = ()
        if kept.checkpoints is not None and tool.kind in ("write", "run", "other"):
            try:
                changed = kept.checkpoints.after(call, message)
            except OSError as error:
                text = f"what {call.name} changed can't be kept ({reason(error)}): no way back"
                self.listener.on_notice(text, "checkpoint")
        text = self._shaped(outcome, kept.context)
        result = self._told(call, text, outcome.status, kept, changed)
        self.listener.on_result(call, result, outcome, changed)
        if self._failures >= FAILURES:
            raise Stop("tool", f"tools failed {self._failures} times in a row: {text}")
        return result

    @staticmethod
    def _shaped(outcome: Outcome, context: Context) -> str:
        most = context.limits.result_bytes
        text = shaping.sound(outcome.text)
        if not shaping.is_long(text, most):
            return text
        key = context.outputs.keep(outcome.data or text.encode())
        return shaping.cut(text, most, key)

    def _told(
        self, call: Call, text: str, status: Status, kept: Kept, changed: Sequence[str] = ()
    ) -> Result:
        """A result: in the journal before it is sent."""
        result = Result(call.id, call.name, shaping.sound(text), status)
        entry = {"state": "ended", "call": call.id, "result": result.to_json()}
        kept.entries.append({**entry, "changed": list(changed)} if changed else entry)
        return result

    def _refused(self, call: Call, why: str, kept: Kept, preview: Preview | None = None) -> Result:
        """It can't run as it was said."""
        result = self._told(call, why, "error", kept)
        if preview is not None:
            self.listener.on_judged(call, preview, Verdict("deny", why))
        self.listener.on_result(call, result, None, ())
        return result

    def _denied(self, call: Call, verdict: Verdict, why: str, kept: Kept) -> Result:
        result = self._told(call, why, "denied", kept)
        self._denials.append(
            {"tool": call.name, "arguments": dict(call.arguments), "why": verdict.why}
        )
        self.listener.on_result(call, result, None, ())
        return result
