"""What a search asks of the model: asks, many at once. The one file here that talks to the daemon.

An ask is "after this message, say this, and have n answers". All of it are messages of a session,
stored before they are told: what was told is there, whatever happens to this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from radchat.chat.view import progress
from radchat.errors import NotFound, RadchatError, Unreachable, from_json

if TYPE_CHECKING:
    from radchat.client import Client
    from radchat.wire import EventStream

Notice = Callable[[str], None]
MOST_AT_ONCE = 1024  # answers that a search may have on their way in the daemon
OnDelta = Callable[[int, int, str], None]  # which ask, which of its answers, its next piece


@dataclass(frozen=True, slots=True)
class Ask:
    at: str | None  # the message it follows; None: where the search began
    text: str  # what the user says there
    n: int = 1
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    grammar: Mapping[str, Any] | None = None
    names: Sequence[str] | None = None  # one an answer: its label
    says: Sequence[str] | None = None  # the answers, where the model isn't asked for them
    extra: Mapping[str, Any] = field(default_factory=dict)  # kept with the user's message

    @property
    def num_answers(self) -> int:
        return self.n if self.says is None else len(self.says)

    @property
    def most(self) -> int:
        """Tokens that the model may generate for it."""
        return 0 if self.says is not None else self.n * (self.max_tokens or 0)

    def wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {"at": self.at, "text": self.text, "n": self.n}
        body |= {"extra": dict(self.extra), "options": dict(self.options)}
        if self.says is not None:
            body["says"] = list(self.says)
        if self.names is not None:
            body["names"] = list(self.names)
        if self.grammar is not None:
            body["grammar"] = dict(self.grammar)
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return body


@dataclass(frozen=True, slots=True)
class Output:
    message: str
    text: str
    tokens: int
    logprob: float | None = None  # of all its tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """An ask's answers, stored."""

    outputs: Sequence[Output]
    usage: Mapping[str, int] = field(default_factory=dict)
    cache: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing of this ask is stored; the others of its call went on."""

    error: RadchatError


class Asks(Protocol):
    """An open search."""

    @property
    def opened(self) -> Mapping[str, Any]:
        """``init`` of search.open: session, name, at, number, found, …"""

    def ask(self, asks: Sequence[Ask], on_delta: OnDelta) -> list[Answer | Failed]:
        """All at once; the answers in the order of the asks."""

    def score(self, at: str | None, text: str, choices: Sequence[str]) -> Mapping[str, Any]:
        """``scores``: of each choice as the answer, the mean log probability of its tokens."""

    def mark(self, marks: Mapping[str, str]) -> None:
        """Messages' labels."""

    def release(self, messages: Sequence[str]) -> int:
        """KV of these and all below them leaves the device. The number of tokens that did."""

    def close(self) -> None: ...


class DaemonAsks:
    """A search that the daemon has open, as long as its stream is."""

    def __init__(
        self,
        client: Client,
        stream: EventStream,
        opened: Mapping[str, Any],
        on_notice: Notice,
        *,
        is_stored: bool,
    ) -> None:
        self._client, self._stream, self.opened = client, stream, opened
        self._on_notice, self._is_stored = on_notice, is_stored

    @classmethod
    def open(
        cls, client: Client, asked: Mapping[str, Any], *, on_notice: Notice, on_wait: Notice
    ) -> DaemonAsks:
        """Returns when the model is loaded. ``asked``: the arguments of search.open."""
        stream = client.stream("search.open", **asked)
        try:
            for event in stream:
                if event.name == "init":
                    on_wait("")
                    is_stored = not asked.get("ephemeral")
                    return cls(client, stream, event.data, on_notice, is_stored=is_stored)
                if event.name == "notice":
                    on_notice(str(event.data.get("text", "")))
                else:
                    on_wait(progress(event.data))
        except BaseException:
            stream.close()
            raise
        raise AssertionError("search.open ended before it began")

    def ask(self, asks: Sequence[Ask], on_delta: OnDelta) -> list[Answer | Failed]:
        """Ended early (Ctrl+C), it closes the stream: what has not ended is not stored."""
        found: list[Answer | Failed] = []
        for part in _parts(asks):
            begin = len(found)

            def tell(number: int, choice: int, text: str, begin: int = begin) -> None:
                on_delta(begin + number, choice, text)

            found += self._ask(part, tell)
        return found

    def _ask(self, asks: Sequence[Ask], on_delta: OnDelta) -> list[Answer | Failed]:
        found: dict[int, Answer | Failed] = {}
        body = [ask.wire() for ask in asks]
        search = self.opened["search"]
        with self._way_on(), self._client.stream("search.ask", search=search, asks=body) as stream:
            for event in stream:
                data = event.data
                if event.name == "delta":
                    on_delta(data["ask"], data["choice"], data["text"])
                elif event.name == "answer":
                    found[data["ask"]] = _answer(data)
                elif event.name == "failed":
                    found[data["ask"]] = Failed(from_json(data["error"]))
                elif event.name == "notice":
                    self._on_notice(str(data.get("text", "")))
                elif event.name == "done":
                    name = data.get("name", self.opened.get("name"))  # by its first words
                    self.opened = {**self.opened, "name": name}
                    return [found[number] for number in range(len(asks))]
            raise Unreachable("the daemon was stopped")

    @contextlib.contextmanager
    def _way_on(self) -> Iterator[None]:
        """Where the daemon has gone, or another has come that knows nothing of the search."""
        try:
            yield
        except (Unreachable, NotFound) as error:
            if not self._is_stored:
                raise
            told = f"{error.message}; what the search has found is kept: radchat think --resume"
            raise type(error)(told, **error.data) from error

    def _call(self, method: str, **args: Any) -> dict[str, Any]:
        with self._way_on():
            return self._client.call(f"search.{method}", search=self.opened["search"], **args)

    def score(self, at: str | None, text: str, choices: Sequence[str]) -> Mapping[str, Any]:
        return self._call("score", at=at, text=text, choices=list(choices))

    def mark(self, marks: Mapping[str, str]) -> None:
        self._call("mark", marks=dict(marks))

    def release(self, messages: Sequence[str]) -> int:
        return int(self._call("release", messages=list(messages))["freed_tokens"])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()


def _parts(asks: Sequence[Ask]) -> Iterator[Sequence[Ask]]:
    """As many at once as the daemon takes."""
    begin = num = 0
    for number, ask in enumerate(asks):
        num += ask.num_answers
        if num > MOST_AT_ONCE and number > begin:
            yield asks[begin:number]
            begin, num = number, ask.num_answers
    if begin < len(asks):
        yield asks[begin:]


def _answer(data: Mapping[str, Any]) -> Answer:
    outputs = [
        Output(each["message"], each["text"], each["tokens"], each.get("logprob"))
        for each in data["outputs"]
    ]
    return Answer(outputs, data["usage"], data["cache"])
