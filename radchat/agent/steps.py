"""Steps from the daemon: each is one `generate` with tools. The one file here that talks to it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radchat.agent.types import Ask, Call, Listener, Step, Tool
from radchat.errors import NotFound, RadchatError
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.client import Client

MAX_TOKENS = 4096  # of a step, unless it is said otherwise: a model that rambles ends
CANCEL_S = 2.0  # for the daemon to hear of it


def wire(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    return [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in tools
    ]


def call_of(body: Mapping[str, Any]) -> Call:
    return Call(str(body["id"]), str(body["name"]), dict(body["arguments"]))


class DaemonSteps:
    """``asked``: the arguments of the first `generate`, its session and place among them; what is
    said once (files, a system prompt, the place, another kind than a turn) is only in that.
    ``head``: one's own, as an open chat has; None: the session's moves.
    """

    def __init__(
        self,
        client: Client,
        asked: Mapping[str, Any],
        tools: Sequence[Tool],
        head: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        options = {"max_tokens": MAX_TOKENS, **(asked.get("options") or {})}
        self._first: dict[str, Any] = {**asked, "options": options}
        self._tools = wire(tools)
        self._request: str | None = None
        self._has_begun = False  # the step in progress
        self._has_own_head = head is not None
        self.session: str | None = asked.get("session")
        self.name = ""  # of the session
        self.head: Mapping[str, Any] | None = head

    def step(self, ask: Ask, listener: Listener) -> Step:
        """Ctrl+C ends it with what it has; one more raises KeyboardInterrupt."""
        payload = self._payload(ask)
        self._request, self._has_begun = payload["request"], False
        with self._client.stream("generate", **payload) as stream:
            try:
                return self._follow(stream, listener)
            except KeyboardInterrupt:
                self.cancel()
                try:
                    return self._follow(stream, listener)
                except RadchatError:
                    if self._has_begun:
                        raise
                    raise KeyboardInterrupt from None  # it has ended before it began: no word

    def cancel(self) -> None:
        if self._request is not None:
            self._client.glance("cancel", CANCEL_S, request=self._request)

    def open_calls(self) -> tuple[Call, ...]:
        if self._first.get("new_session"):
            return ()
        asked = {"where": self._first["where"], "session": self.session}
        if self._has_own_head:
            asked["head"] = self.head
        if self._first.get("at"):
            asked["ref"] = self._first["at"]
        try:
            found = self._client.call("log", **asked, n=1)
        except NotFound:
            return ()
        self.session, rows = found["session"], found["messages"]
        answered = set()
        for row in reversed(rows):
            if row["role"] == "tool":
                answered.add((row.get("result") or {}).get("call"))
                continue
            calls = [call_of(body) for body in row.get("calls", ())]
            return tuple(call for call in calls if call.id not in answered)
        return ()

    def _payload(self, ask: Ask) -> dict[str, Any]:
        payload = {
            "kind": "turn",
            **self._first,
            "text": ask.text,
            "facts": ask.facts if ask.text else "",
            "results": [result.to_json() for result in ask.results],
            "tools": self._tools,
            "n": 1,
            "request": os.urandom(8).hex(),
        }
        if self._has_own_head:
            payload["head"] = self.head
        if not ask.text:
            payload.pop("files", None)
        return payload

    def _follow(self, stream: Iterable[Event], listener: Listener) -> Step:
        for event in stream:
            if event.name == "init":
                self._begun(event.data)
            elif event.name == "done":
                return self._ended(event.data)
            listener.on_event(event.name, event.data)
        raise RadchatError("the daemon ended the answer without a word")

    def _begun(self, init: Mapping[str, Any]) -> None:
        """What was said once is said, and where it was is known."""
        self._has_begun = True
        self.session, self.name = init["session"], str(init.get("name") or init["session"])
        for key in ("new_session", "at", "system", "files", "only_terminal", "kind", "ref"):
            self._first.pop(key, None)
        self._first["session"] = self.session
        self._moved({"branch": init.get("branch"), "message": init.get("user")})

    def _moved(self, head: Mapping[str, Any]) -> None:
        if self._has_own_head:
            self.head = head

    def _ended(self, done: Mapping[str, Any]) -> Step:
        body = done["branches"][0]
        if body.get("message"):
            self._moved({"branch": body.get("branch"), "message": body["message"]})
        return step_of(body, done)


def step_of(body: Mapping[str, Any], done: Mapping[str, Any]) -> Step:
    """An answer of a `generate` that has ended."""
    return Step(
        message=body.get("message"),
        text=str(body["text"]),
        calls=tuple(call_of(each) for each in body.get("calls", ())),
        call_error=body.get("call_error"),
        finish_reason=str(body["finish_reason"]),
        branch=body.get("branch"),
        usage=body.get("usage") or {},
        cache=body.get("cache") or {},
        timing=body.get("timing") or {},
        context=done.get("context") or {},
    )
