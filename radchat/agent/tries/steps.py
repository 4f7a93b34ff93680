"""The steps of tries: the first is one `generate` of all, so that what they share is read once;
then each has its own, on its branch, and the daemon decodes them together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat.agent.steps import DaemonSteps, step_of, wire
from radchat.agent.types import Ask, Call, Listener, Step, Tool
from radchat.client import Client
from radchat.errors import RadchatError
from radchat.protocol import Event

CANCEL_S = 2.0
_ONCE = ("new_session", "at", "system", "files", "only_terminal", "branch")


class Cancelled(Exception):
    """Another try has won, or the user has had enough."""


@dataclass
class First:
    """What came of the first step: an answer for each try, on a branch of its own."""

    session: str
    name: str
    steps: list[Step]
    usage: Mapping[str, int]  # of all of it: what they share counts once
    cache: Mapping[str, int]


def first_step(
    client: Client,
    asked: Mapping[str, Any],
    tools: Iterable[Tool],
    num: int,
    ask: Ask,
    listener: Listener,
) -> First:
    """Ctrl+C ends it with what it has, and is raised."""
    request = os.urandom(8).hex()
    payload = {
        **asked,
        "kind": "turn",
        "text": ask.text,
        "facts": ask.facts if ask.text else "",
        "results": [result.to_json() for result in ask.results],
        "tools": wire(tools),
        "n": num,
        "branch": first_branch(client, asked),
        "request": request,
    }
    with client.stream("generate", **payload) as stream:
        try:
            return _follow(stream, listener)
        except KeyboardInterrupt:
            client.glance("cancel", CANCEL_S, request=request)
            _follow(stream, listener)
            raise


def first_branch(client: Client, asked: Mapping[str, Any]) -> str:
    """``try-1``, or the first after those that there are."""
    if asked.get("new_session"):
        return "try-1"
    rows = client.call("branch.list", where=asked["where"], session=asked["session"])["branches"]
    ends = [row["name"].removeprefix("try-") for row in rows if row["name"].startswith("try-")]
    return f"try-{1 + max((int(end) for end in ends if end.isdecimal()), default=0)}"


def _follow(stream: Iterable[Event], listener: Listener) -> First:
    session, name = "", ""
    for event in stream:
        if event.name == "init":
            session = event.data["session"]
            name = str(event.data.get("name") or session)
            listener.on_event(event.name, event.data)
        elif event.name == "done":
            steps = [step_of(body, event.data) for body in event.data["branches"]]
            usage, cache = event.data.get("usage") or {}, event.data.get("cache") or {}
            return First(session, name, steps, usage, cache)
        elif event.name in ("notice", "progress", "message"):
            listener.on_event(event.name, event.data)
    raise RadchatError("the daemon ended the answer without a word")


class TrySteps(DaemonSteps):
    """Of one try; its first step has been said already."""

    def __init__(
        self, client: Client, asked: Mapping[str, Any], tools: Sequence[Tool], first: First, at: int
    ) -> None:
        step = first.steps[at]
        rest = {key: value for key, value in asked.items() if key not in _ONCE}
        head = {"branch": step.branch, "message": step.message}
        super().__init__(client, {**rest, "session": first.session}, tools, head)
        self.cancelled = threading.Event()
        self.usage: list[Mapping[str, int]] = []  # of each step after the first
        self.cache: list[Mapping[str, int]] = []
        self._said: Step | None = step

    def step(self, ask: Ask, listener: Listener) -> Step:
        """Raises Cancelled."""
        step, self._said = self._said, None
        if step is None and not self.cancelled.is_set():
            step = super().step(ask, listener)
            self.usage.append(step.usage)
            self.cache.append(step.cache)
        if step is None or self.cancelled.is_set():
            raise Cancelled
        return step

    def open_calls(self) -> tuple[Call, ...]:
        """The turn has begun before this: what was open has its results."""
        return ()

    def cancel(self) -> None:
        """May be said again: what was being sent just then has not heard it."""
        self.cancelled.set()
        super().cancel()
