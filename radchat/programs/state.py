"""The state of a program: a conversation that grows by ``+=``, and its variables.

``+=`` puts a job into the state's lane and returns; reading ``s["name"]`` waits. So forks that are
written one after the other run at once, and the daemon sees their requests together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Self

from radchat.errors import OutputInvalid, RadchatError
from radchat.programs.errors import ProgramError
from radchat.programs.expressions import Gen, Message, Part, Role, Select, Text, parts_of
from radchat.programs.forks import Forks
from radchat.programs.lane import Job, Lane
from radchat.programs.places import place
from radchat.programs.running import Running
from radchat.programs.slot import Slot
from radchat.programs.trace import Call

SHOWN = 30  # characters of a text in an error


class State:
    """One branch of a program."""

    def __init__(self, running: Running, call: Call, *, path: str = "0") -> None:
        self._running, self._path = running, path
        self._scopes = [call]  # the last is where calls are written down
        self._lane = Lane(parallel=running.settings.parallel)
        self._number = -1  # the daemon's; known when the lane opens
        self._slots: dict[str, Slot] = {}
        self._said: list[tuple[Role, str]] = []
        self._is_raw: bool | None = None  # None: nothing is said yet
        self._num_gens = self._num_forks = 0
        self._result: Any = None
        self._failure: Exception | None = None
        self.saved: Mapping[str, Any] | None = None  # what `save` made of it
        running.add(self._lane)

    def __repr__(self) -> str:
        return f"<state {self._path} of a program: read s.result, s.variables or s.messages()>"

    # -- saying --------------------------------------------------------------------------------

    def __iadd__(self, more: object) -> Self:
        """system(...), user(...), assistant(...); or text and holes as they are."""
        message = more if isinstance(more, Message) else Message("raw", parts_of(more))
        where = place()
        self._check(message.role, where)
        for part in message.parts:
            self._add(message.role, part, where)
        return self

    def __add__(self, other: object) -> State:
        raise TypeError("a state grows in place: write s += ..., not s + ...")

    def _check(self, role: Role, where: str) -> None:
        is_raw = role == "raw"
        if self._is_raw is not None and self._is_raw != is_raw:
            raise ProgramError(
                f"{where}: text without a role and messages don't go together: "
                "say it in user(...) or assistant(...), or begin a state with it"
            )
        self._is_raw = is_raw

    def _add(self, role: Role, part: Part, where: str) -> None:
        if isinstance(part, Text):
            call = self._scopes[-1].add("say", role, where)
            call.text = part.text
            shown = part.text if len(part.text) <= SHOWN else part.text[:SHOWN] + "..."
            self._put(call, f"{role} {shown!r}", lambda: self._say(role, part.text))
            return
        slot = self._slots[part.name] = Slot()
        if isinstance(part, Gen):
            self._num_gens += 1
            call = self._scopes[-1].add("gen", part.name, where)
            asked, number = part, self._num_gens
            self._put(
                call, str(part), lambda: self._gen(role, asked, slot, number, call), slot.fail
            )
        else:
            call = self._scopes[-1].add("select", part.name, where)
            chosen = part
            self._put(call, str(part), lambda: self._select(role, chosen, slot, call), slot.fail)

    def _put(
        self,
        call: Call,
        what: str,
        run: Callable[[], Mapping[str, Any] | None],
        fail: Callable[[ProgramError], None] | None = None,
    ) -> None:
        """A job that is written down as ``call``."""

        def timed() -> None:
            limited = self._running.slots if self._running.settings.parallel else nullcontext()
            with limited:
                call.begin()
                try:
                    call.end(run())
                except RadchatError as error:
                    call.end()
                    call.error = error.message
                    raise

        self._lane.put(Job(call.place, what, timed, fail or (lambda _error: None)))

    # -- what the lane does ----------------------------------------------------------------------

    def _say(self, role: Role, text: str) -> None:
        self._running.remote.say(self._number, role, text)
        self._wrote(role, text)

    def _wrote(self, role: Role, text: str) -> None:
        """Text of an assistant's turn, or raw, goes on what stands there."""
        if role in ("assistant", "raw") and self._said and self._said[-1][0] == role:
            text = self._said.pop()[1] + text
        self._said.append((role, text))

    def _gen(self, role: Role, part: Gen, slot: Slot, number: int, call: Call) -> Mapping[str, Any]:
        running = self._running
        self._open(role)
        options = dict(part.options)
        if "seed" not in options and (seed := running.seed(self._path, number)) is not None:
            options["seed"] = seed
        asked = {"options": options, "n": part.n, "grammar": part.grammar}
        asked["max_tokens"] = part.max_tokens
        given = {key: value for key, value in asked.items() if value is not None}
        with running.streams() as streaming:
            body = running.remote.gen(self._number, given, slot.hear, streaming)
        outputs = list(body["outputs"])
        self._wrote(role, outputs[0]["text"])
        call.text, call.finish_reason = outputs[0]["text"], outputs[0]["finish_reason"]
        values = [_value(part, output) for output in outputs]
        meta = dict(outputs[0]) if part.n == 1 else {"outputs": outputs}
        slot.set(values[0] if part.n == 1 else values, meta)
        return body

    def _select(self, role: Role, part: Select, slot: Slot, call: Call) -> Mapping[str, Any]:
        self._open(role)
        body = self._running.remote.select(self._number, part.choices)
        call.text = part.choices[body["choice"]]
        self._wrote(role, call.text)
        scores = dict(zip(part.choices, body["scores"], strict=True))
        slot.set(call.text, {"scores": scores, "tokens": body.get("tokens")})
        return body

    def _open(self, role: Role) -> None:
        """Raw text is said to be raw, so that a hole at its very beginning is one too."""
        if role == "raw" and not self._said:
            self._running.remote.say(self._number, "raw", "")

    # -- variables -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable; waits until it is there. Raises what it failed with."""
        return self._slot(name).get()

    def __setitem__(self, name: str, value: Any) -> None:
        self._slots[name] = Slot.of(value)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - a state is no dict

    def meta(self, name: str) -> dict[str, Any]:
        """How it came: finish_reason and tokens of a gen, scores of a select."""
        slot = self._slot(name)
        slot.get()
        return slot.meta

    def stream(self, name: str) -> Iterator[str]:
        """The text of a gen, piece by piece, as it comes."""
        return self._slot(name).pieces()

    @property
    def variables(self) -> dict[str, Any]:
        """All that there are, in order; waits. One that failed is left out."""
        known = list(self._slots.items())
        for _, slot in known:
            slot.wait()
        return {name: slot.get() for name, slot in known if slot.error is None}

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            there = ", ".join(self._slots) or "nothing yet"
            raise ProgramError(
                f"{place()}: nothing here is called {name!r}: add gen({name!r}) before reading it "
                f"(there is: {there})"
            )
        return slot

    # -- branches ------------------------------------------------------------------------------

    def fork(self, n: int = 1) -> Forks:
        """``n`` branches of the same ids; each goes on by itself, at the same time."""
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"fork({n!r}): want a whole number from 1")
        where, self._num_forks = place(), self._num_forks + 1
        call = self._scopes[-1].add("fork", str(n), where)
        branches = []
        for index in range(n):
            inner = call.add("branch", str(index), where)
            branch = State(self._running, inner, path=f"{self._path}.{self._num_forks}.{index}")
            branch._slots = dict(self._slots)
            branch._is_raw = self._is_raw
            branches.append(branch)

        def run() -> Mapping[str, Any]:
            body = self._running.remote.fork(self._number, n)
            numbers = list(body["states"])
            self._running.hold(numbers)
            for branch, number in zip(branches, numbers, strict=True):
                branch._said = list(self._said)  # noqa: SLF001
                branch._begin(number)  # noqa: SLF001
            return body

        def fail(error: ProgramError) -> None:
            for branch in branches:
                branch._lane.end(error)  # noqa: SLF001

        self._put(call, f"fork({n})", run, fail)
        return Forks(branches, call)

    def _begin(self, number: int) -> None:
        self._number = number
        self._lane.open()

    @contextmanager
    def inside(self, call: Call) -> Iterator[None]:
        """Calls made meanwhile are written down in ``call``."""
        self._scopes.append(call)
        try:
            yield
        finally:
            self._scopes.pop()

    def call(self, kind: str, name: str) -> Call:
        """A call to write others down in."""
        return self._scopes[-1].add(kind, name, place())

    # -- the whole -----------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all that was added has been done, or has failed."""
        self._lane.wait()

    def messages(self) -> list[dict[str, str]]:
        """What was said, as far as it got."""
        self.wait()
        return [{"role": role, "text": text} for role, text in self._said]

    def show(self) -> Mapping[str, Any]:
        """messages, ids and tokens, as the daemon has them; while the program runs."""
        return self._now(f"show of {self._path}", lambda: self._running.remote.show(self._number))

    def save(
        self, name: str | None = None, *, session: str | None = None, branch: str | None = None
    ) -> Mapping[str, Any]:
        """Make it a branch of a session, to talk on with; of a new one if none is named."""
        given = {"name": name, "session": session, "branch": branch}
        asked = {key: value for key, value in given.items() if value is not None}
        self.saved = self._now("save", lambda: self._running.remote.save(self._number, asked))
        return self.saved

    def _now(self, what: str, ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Behind all that was added, and waited for."""
        slot, where = Slot(), place()
        self._lane.put(Job(where, what, lambda: slot.set(ask(), {}), slot.fail))
        found: Mapping[str, Any] = slot.get()
        return found

    @property
    def error(self) -> Exception | None:
        """What ended it: of a run its failure, of a branch that of its call."""
        return self._failure or self._lane_error()

    def _lane_error(self) -> ProgramError | None:
        error = self._lane.error
        return None if error is self._running.ended else error

    @property
    def result(self) -> Any:
        """What the program returned; raises what it failed with."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def settle(self, result: Any = None, failure: Exception | None = None) -> None:
        """How the run of this state ended."""
        self._result, self._failure = result, failure

    @property
    def trace(self) -> Call:
        """Its calls: ``.json()``, ``.tree()``."""
        return self._scopes[0]

    @property
    def usage(self) -> dict[str, int | None]:
        return self.trace.total("usage")

    @property
    def cache(self) -> dict[str, int | None]:
        return self.trace.total("cache")

    @property
    def opened(self) -> Mapping[str, Any]:
        """model, dtype and context of the run"""
        return self._running.remote.opened


def _value(part: Gen, output: Mapping[str, Any]) -> Any:
    """What ``s[name]`` is; raises where the text is not what the grammar promised."""
    text, reason = output["text"], output["finish_reason"]
    if part.grammar is None:
        return text
    kind, source = part.grammar["kind"], part.grammar["source"]
    if kind == "json_schema":
        if "data" in output and not output.get("schema_error"):
            return output["data"]
        why = output.get("schema_error") or "it is no whole JSON"
    elif reason == "stop" or _fits(kind, source, text):
        return text
    else:
        why = "it is not whole"
    cut = {"length": ", no tokens were left", "dead_end": ", no token could follow"}
    raise OutputInvalid(
        f"{why}{cut.get(reason, '')}: {text[:200]!r}", text=text, finish_reason=reason
    )


def _fits(kind: str, source: str, text: str) -> bool:
    """Cut at the very end of what it had to be? That is whole."""
    if kind == "choices":
        return text in json.loads(source)
    try:
        return kind == "regex" and re.fullmatch(source, text) is not None
    except re.error:
        return False
