"""The daemon's part of a program: the one file here that talks to it.

States live in the daemon as turns and exact ids; here they are numbers. The stream of
``program.open`` stays open while the program runs: when it ends, for whatever reason, the daemon
ends all that the program asked for and forgets its states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from radchat.programs.errors import Cancelled

if TYPE_CHECKING:
    from radchat.client import Client
    from radchat.wire import EventStream

Notice = Callable[[str], None]
EMPTY = 0  # the state that a program begins with; it stays empty, and others are forked from it


@dataclass(frozen=True, slots=True)
class Settings:
    """How a program's calls are made, where they don't say it themselves."""

    model: str | None = None
    dtype: str | None = None
    exact: bool = False
    think: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # temperature, seed, …
    cache: bool = True
    jump: bool = True
    parallel: bool = True

    def wire(self) -> dict[str, Any]:
        given = {"options": dict(self.options), "cache": self.cache, "jump": self.jump}
        named = {"model": self.model, "dtype": self.dtype, "think": self.think}
        return {**given, "exact": self.exact, **{k: v for k, v in named.items() if v is not None}}


class Remote(Protocol):
    """An open program."""

    @property
    def opened(self) -> Mapping[str, Any]:
        """model, dtype, context"""

    def say(self, state: int, role: str, text: str) -> None: ...

    def gen(
        self,
        state: int,
        asked: Mapping[str, Any],
        on_text: Callable[[str], None],
        on_stream: Callable[[Callable[[], None]], None],
    ) -> Mapping[str, Any]:
        """``on_stream`` is given what ends it early."""

    def select(self, state: int, choices: Sequence[str]) -> Mapping[str, Any]: ...

    def fork(self, state: int, n: int) -> Mapping[str, Any]:
        """states, and the usage of computing what they share."""

    def drop(self, states: Sequence[int]) -> None: ...

    def show(self, state: int) -> Mapping[str, Any]: ...

    def save(self, state: int, asked: Mapping[str, Any]) -> Mapping[str, Any]: ...

    def close(self) -> None:
        """End it, at any time and from any thread."""


class DaemonProgram:
    """A program that the daemon has open."""

    def __init__(self, client: Client, stream: EventStream, opened: Mapping[str, Any]) -> None:
        self._client, self._stream, self.opened = client, stream, opened

    @classmethod
    def open(
        cls,
        client: Client,
        settings: Settings,
        *,
        save: str | None = None,
        on_notice: Notice,
        on_wait: Notice,
    ) -> DaemonProgram:
        """Returns when the model is loaded. ``save``: a name that it will be saved under."""
        from radchat.whereabouts import where

        named = {} if save is None else {"save": save}
        stream = client.stream("program.open", where=where(), **settings.wire(), **named)
        try:
            for event in stream:
                if event.name == "init":
                    on_wait("")
                    return cls(client, stream, event.data)
                tell = on_notice if event.name == "notice" else on_wait
                tell(str(event.data.get("text", "")))
        except BaseException:
            stream.close()
            raise
        raise AssertionError("program.open ended before it began")

    def _call(self, method: str, **args: Any) -> dict[str, Any]:
        return self._client.call(f"program.{method}", program=self.opened["program"], **args)

    def say(self, state: int, role: str, text: str) -> None:
        self._call("say", state=state, role=role, text=text)

    def gen(
        self,
        state: int,
        asked: Mapping[str, Any],
        on_text: Callable[[str], None],
        on_stream: Callable[[Callable[[], None]], None],
    ) -> Mapping[str, Any]:
        program = self.opened["program"]
        with self._client.stream("program.gen", program=program, state=state, **asked) as stream:
            on_stream(stream.close)
            for event in stream:
                if event.name == "delta" and event.data["choice"] == 0:
                    on_text(event.data["text"])
                elif event.name == "done":
                    return event.data
        raise Cancelled("given up")

    def select(self, state: int, choices: Sequence[str]) -> Mapping[str, Any]:
        return self._call("select", state=state, choices=list(choices))

    def fork(self, state: int, n: int) -> Mapping[str, Any]:
        return self._call("fork", state=state, n=n)

    def drop(self, states: Sequence[int]) -> None:
        self._call("drop", states=list(states))

    def show(self, state: int) -> Mapping[str, Any]:
        return self._call("show", state=state)

    def save(self, state: int, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        from radchat.whereabouts import where

        return self._call("save", state=state, where=where(), **asked)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
