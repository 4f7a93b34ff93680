"""Tries side by side: each a loop on a thread of its own, in its copy, until one passes the check.

What they say and ask comes to the thread that started them, one thing at a time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.agent.loop import Agent, Ended
from radchat.agent.sandbox.runner import CannotRun
from radchat.agent.sandbox.tools import outcome_of
from radchat.agent.tools.shaping import as_text
from radchat.agent.tries.entries import TryEntries
from radchat.agent.tries.steps import Cancelled, TrySteps
from radchat.agent.types import Approval, Approver, Call, Context, Listener, Preview, Verdict
from radchat.errors import RadchatError

TICK_S = 0.2
CHECK_S = 600.0
TAIL = 2000  # characters of a check's output that people and JSON get

Say = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """The check's end. ``key``: of its whole output."""

    passed: bool
    ended: str  # exit code 1
    code: int | None
    seconds: float
    tail: str
    key: str


@dataclass
class Try:
    """``context``: of its copy. ``check``: the argv of the check there; None: there is none."""

    number: int  # from 1
    branch: str
    steps: TrySteps
    agent: Agent
    entries: TryEntries
    context: Context
    check: Sequence[str] | None
    ended: Ended | None = None
    checked: Checked | None = None
    error: RadchatError | None = None
    is_over: bool = False

    @property
    def passed(self) -> bool:
        return self.checked is not None and self.checked.passed

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.error is not None:
            return "failed"
        if self.ended is None:
            return "cancelled"
        return self.checked.ended if self.checked is not None else self.ended.reason

    def cancel(self) -> None:
        self.context.cancel.set()
        self.steps.cancel()

    def run(self) -> None:
        """On its thread."""
        try:
            ended = self.agent.turn("")
            if ended.reason == "interrupted":
                return
            self.ended = ended
            if self.check is not None and ended.reason not in ("approval", "stopped"):
                self.checked = self._checked(self.check)
        except Cancelled:
            pass
        except RadchatError as error:
            self.error = error

    def _checked(self, argv: Sequence[str]) -> Checked | None:
        """None: it was cancelled."""
        runner = self.context.runner
        assert runner is not None
        ran = runner.run(
            argv, cwd=self.context.workspace.root, timeout_s=CHECK_S, cancel=self.context.cancel
        )
        if ran.cancelled:
            return None
        ended = outcome_of(ran, CHECK_S).text.partition("]")[0].lstrip("[").partition(";")[0]
        data = ran.head + ran.tail
        key = self.context.outputs.keep(data)
        tail = as_text(data)[-TAIL:]
        return Checked(ran.code == 0, ended, ran.code, round(ran.seconds, 3), tail, key)


@dataclass
class Race:
    """``listeners``: of each try, told on the thread that calls ``run``."""

    tries: Sequence[Try]
    listeners: Sequence[Listener]
    approver_of: Callable[[int], Approver] | None
    note: Callable[[str], None]
    _waiting: queue.SimpleQueue[Say] = field(default_factory=queue.SimpleQueue)
    winner: Try | None = None

    def run(self) -> Try | None:
        """The first that passes. Ctrl+C cancels them all, and is raised when all have ended; a
        second one at once.
        """
        for one, listener in zip(self.tries, self.listeners, strict=True):
            one.agent.listener = _Posted(listener, self._waiting)
            if self.approver_of is not None:
                one.agent.approver = _Asked(one, self.approver_of(one.number), self._waiting)
            threading.Thread(
                target=self._run_one, args=(one,), name=f"try-{one.number}", daemon=True
            ).start()
        try:
            self._go()
        except KeyboardInterrupt:
            self._cancel_others(None)
            self._go()
            raise
        return self.winner

    def _run_one(self, one: Try) -> None:
        failure: list[BaseException] = []
        try:
            one.run()
        except CannotRun as error:
            one.error = error
        except BaseException as error:
            failure.append(error)
        self._waiting.put(lambda: self._over(one, failure))

    def _over(self, one: Try, failure: Sequence[BaseException]) -> None:
        one.is_over = True
        for error in failure:
            self._cancel_others(None)
            raise error
        if self.winner is None and one.passed:
            self.winner = one
            self._cancel_others(one)
        if one.ended is not None or one.error is not None:
            why = f": {one.error.message}" if one.error is not None else ""
            self.note(f"try {one.number} · {one.outcome}{why}")

    def _cancel_others(self, winner: Try | None) -> None:
        for one in self.tries:
            if one is not winner and not one.is_over:
                one.cancel()

    def _go(self) -> None:
        while not all(one.is_over for one in self.tries):
            try:
                say = self._waiting.get(timeout=TICK_S)
            except queue.Empty:
                for one in self.tries:
                    if one.steps.cancelled.is_set() and not one.is_over:
                        one.cancel()
            else:
                say()


@dataclass
class _Asked:
    """The person at the terminal, as a try sees them."""

    one: Try
    approver: Approver
    waiting: queue.SimpleQueue[Say]

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval:
        answer: queue.SimpleQueue[Approval] = queue.SimpleQueue()

        def ask() -> None:
            approval = Approval(False, stop=True)
            try:
                if not self.one.steps.cancelled.is_set():  # else it makes no difference any more
                    approval = self.approver.approve(call, preview, verdict)
            finally:
                answer.put(approval)

        self.waiting.put(ask)
        return answer.get()


class _Posted:
    """A listener that is told on the other thread."""

    def __init__(self, listener: Listener, waiting: queue.SimpleQueue[Say]) -> None:
        self._listener, self._waiting = listener, waiting

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        self._waiting.put(lambda: self._listener.on_event(name, data))

    def on_step(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_step(*args))

    def on_judged(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_judged(*args))

    def on_start(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_start(*args))

    def on_progress(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_progress(*args))

    def on_result(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_result(*args))

    def on_notice(self, *args: Any) -> None:
        self._waiting.put(lambda: self._listener.on_notice(*args))
