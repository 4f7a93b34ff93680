"""A scripted daemon whose model calls tools: each `generate` is answered with the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events

Calls: TypeAlias = list[tuple[str, dict[str, Any]]]


def shell(command: str, **more: Any) -> Calls:
    return [("shell", {"command": command, **more})]


class ScriptedModel:
    """``steps``: what the model says, one after the other: words, or calls. Beyond them: "done"."""

    def __init__(self, daemon: FakeDaemon, steps: Sequence[str | Calls]) -> None:
        self.steps = list(steps)
        self.results: list[dict[str, Any]] = []  # as they were sent
        self._num = 0
        self._open: list[dict[str, Any]] = []
        daemon.script |= {"generate": self._generate, "log": self._log}

    def _generate(self, args: dict[str, Any]) -> Iterator[Event]:
        self.results += args.get("results") or []
        said = self.steps[self._num] if self._num < len(self.steps) else "done"
        self._num += 1
        calls = [
            {"id": f"c{self._num}.{at}", "name": name, "arguments": arguments}
            for at, (name, arguments) in enumerate([] if isinstance(said, str) else said)
        ]
        self._open = calls
        message = f"{self._num:04x}" + "0" * 28
        pieces = [said] if isinstance(said, str) else []
        for event in answer_events(pieces, message=message):
            if event.name == "message":
                for at, call in enumerate(calls):
                    yield Event("call", {"choice": 0, "index": at, **call})
                event.data["calls"] = calls
            elif event.name == "done":
                event.data["branches"][0]["calls"] = calls
            yield event

    def _log(self, _args: dict[str, Any]) -> dict[str, Any]:
        """The end of the session's path."""
        body = {"role": "assistant", "calls": self._open}
        return {"session": "e7f2" + "0" * 28, "messages": [body]}
