"""A scripted daemon for several tries: each has its own list of what its model says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from radchat.protocol import Event
from tests.agent.scripted_steps import Calls
from tests.chat.fake_server import FakeDaemon, usage

SESSION = "e7f2" + "0" * 28
CACHE = {"device": 1180, "host": 0, "disk": 0, "computed": 31}


class ScriptedTries:
    """``scripts``: of try 1, 2 …, what its model says step by step; beyond: "done". ``gates``: a
    step of a try, by number from 1, that waits until it is set, or its asker has gone.
    """

    def __init__(
        self,
        daemon: FakeDaemon,
        scripts: Sequence[Sequence[str | Calls]],
        gates: Mapping[tuple[int, int], threading.Event] | None = None,
    ) -> None:
        self.scripts, self.gates = scripts, gates or {}
        self.results: dict[int, list[dict[str, Any]]] = {}  # by try, as they were sent
        self.cancelled: list[str] = []  # requests
        self.switched: list[str] = []
        self.compared: list[str] = []
        self._said = dict.fromkeys(range(1, len(scripts) + 1), 0)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        daemon.script |= {
            "generate": self._generate,
            "cancel": self._cancel,
            "switch": self._switch,
            "branch.list": {"session": SESSION, "name": "s", "branches": []},
            "log": self._log,
        }

    def _generate(self, args: dict[str, Any]) -> Iterator[Event]:
        if args["n"] > 1:
            numbers = list(range(1, args["n"] + 1))
            assert args["branch"] == "try-1"
        else:
            numbers = [int(args["head"]["branch"].removeprefix("try-"))]
            self.results.setdefault(numbers[0], []).extend(args.get("results") or [])
        yield Event("init", {"session": SESSION, "name": "s", "user": None, "branch": "try-1"})
        bodies = []
        for choice, number in enumerate(numbers):
            body = self._body(number, str(args.get("request")))
            bodies.append(body)
            yield Event("message", {"choice": choice, **body})
        context = {"used": 1229, "limit": 8192}
        done = {"session": SESSION, "branches": bodies, "usage": usage(), "cache": CACHE}
        yield Event("done", {**done, "context": context})

    def _body(self, number: int, request: str) -> dict[str, Any]:
        with self._lock:
            self._said[number] += 1
            at, num = self._said[number], next(self._ids)
        gate = self.gates.get((number, at))
        while gate is not None and not gate.wait(0.02) and request not in self.cancelled:
            pass
        script = self.scripts[number - 1]
        said = script[at - 1] if at <= len(script) else "done"
        calls = [] if isinstance(said, str) else said
        aborted = request in self.cancelled
        return {
            "session": SESSION,
            "message": f"{num:04x}" + "0" * 28,
            "branch": f"try-{number}",
            "text": said if isinstance(said, str) else "",
            "finish_reason": "abort" if aborted else "stop",
            "usage": usage(),
            "cache": CACHE,
            "calls": []
            if aborted
            else [
                {"id": f"c{number}.{at}.{i}", "name": name, "arguments": arguments}
                for i, (name, arguments) in enumerate(calls)
            ],
        }

    def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        self.cancelled.append(args["request"])
        return {"cancelled": True}

    def _switch(self, args: dict[str, Any]) -> dict[str, Any]:
        self.switched.append(args["ref"])
        return {"session": SESSION}

    def _log(self, args: dict[str, Any]) -> dict[str, Any]:
        ref = str(args.get("ref"))
        self.compared.append(ref)
        message = {"id": f"{len(self.compared):032x}", "role": "assistant", "text": f"of {ref}"}
        return {"session": SESSION, "name": "s", "branch": ref, "messages": [message]}
