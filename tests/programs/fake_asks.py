"""A session and a model for searches, without a daemon: what it says follows from a table.

The table is a seed: each entry (the words of a thought, a rating, how many tokens) is a hash of the
seed and of where it stands, so the whole tree exists before anybody searches it. Asks of one call
are stored in an order of their own, one by one, and told when all are.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.errors import ContextOverflow, RadchatError
from radchat.programs.search.asks import Answer, Ask, Failed, OnDelta, Output
from radchat.programs.search.task import State, Task

Path = tuple[int, ...]
VALUES = {"awful": -1.5, "poor": 0.0, "fair": 2.0, "good": 4.0, "great": 7.5}
PROBLEM = "the problem"


@dataclass(frozen=True)
class Table:
    """What the model would say, anywhere in the tree."""

    seed: int
    num_words: int = 4  # the fewer, the more thoughts say the same
    dead: float = 0.0
    solved: float = 0.0
    failing: float = 0.0

    def draw(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def word(self, path: Path) -> str:
        """Of a thought."""
        return f"w{self.draw('word', path).randrange(self.num_words)}"

    def values(self, path: Path, n: int) -> list[str]:
        return self.draw("value", path).choices(list(VALUES), k=n)

    def votes(self, parent: Path, n: int, candidates: int) -> list[int]:
        return [self.draw("vote", parent, i).randint(1, candidates) for i in range(n)]

    def logprob(self, path: Path, word: str) -> float:
        """The mean of its tokens'."""
        return -self.draw("logprob", path, word).uniform(0.1, 3.0)

    def tokens(self, kind: str, path: Path, choice: int, most: int) -> int:
        return self.draw("tokens", kind, path, choice).randint(1, most)

    def fails(self, kind: str, path: Path) -> bool:
        return self.draw("fails", kind, path).random() < self.failing

    def state(self, words: Sequence[str]) -> State:
        luck = self.draw("state", tuple(words)).random()
        if luck < self.dead:
            return "dead"
        return "solved" if luck > 1 - self.solved else "open"

    def task(self) -> Task:
        return Task(
            "table",
            step="STEP",
            propose="PROPOSE {count}",
            value="VALUE",
            vote="VOTE\n{candidates}",
            answer="ANSWER",
            values=VALUES,
            check=lambda _problem, words: self.state(words),
        )


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Session:
    """What is on disk."""

    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def found(self, number: int) -> dict[str, Any] | None:
        if not self.messages:
            return None
        rows = []
        for message in self.messages.values():
            name, _, score = self.labels.get(message["id"], "").partition("=")
            rows.append({**message, "name": name or None, "score": float(score) if score else None})
        assert any(row["extra"].get("search", {}).get("number") == number for row in rows)
        return {"at": None, "messages": rows}

    def add(self, parent: str | None, role: str, text: str, **more: Any) -> str:
        same = parent, text
        number = sum((each["parent"], each["text"]) == same for each in self.messages.values())
        name = hashlib.blake2b(f"{parent} {text} {number}".encode(), digest_size=8).hexdigest()
        body: dict[str, Any] = {
            "id": name,
            "parent": parent,
            "role": role,
            "text": text,
            "extra": {},
        }
        body |= {"finish_reason": "stop", "tokens": 0, "logprob": None, **more}
        self.messages[name] = body
        return name

    def path(self, message: str | None) -> Path:
        """Of a thought's message."""
        name = "" if message is None else self.labels[message].partition("=")[0]
        return tuple(int(part) for part in name.split(".")[1:])

    @property
    def num_tokens(self) -> int:
        return sum(message["tokens"] for message in self.messages.values())


class FakeAsks:
    """``lives``: how many asks it stores, and marks it makes, before it is killed; None: all."""

    def __init__(
        self, session: Session, table: Table, *, lives: int | None = None, order: int = 0
    ) -> None:
        found = session.found(1)
        self.opened: dict[str, Any] = {"search": "x", "at": None, "number": 1, "found": found}
        self.session, self.table, self._lives = session, table, lives
        self._order = random.Random(order)
        self.asked: list[list[Ask]] = []  # calls
        self.stored: list[Ask] = []
        self.marked: list[dict[str, str]] = []
        self.scored: list[Sequence[str]] = []
        self.released: list[str] = []
        self.num_releases = 0
        self.is_closed = False

    def _live(self) -> None:
        if self._lives is not None:
            if self._lives == 0:
                raise Killed
            self._lives -= 1

    def ask(self, asks: Sequence[Ask], on_delta: OnDelta) -> list[Answer | Failed]:
        self.asked.append(list(asks))
        numbers = list(range(len(asks)))
        self._order.shuffle(numbers)
        found: dict[int, Answer | Failed] = {}
        for number in numbers:
            ask = asks[number]
            kind, path = _kind(ask), self.session.path(ask.at)
            if self.table.fails(kind, path):
                found[number] = Failed(RadchatError(f"{kind} after {path} failed"))
                continue
            said = self._said(ask, kind, path)
            self._live()
            for choice, (text, _, _) in enumerate(said):
                on_delta(number, choice, text)
            found[number] = self._store(ask, said)
            self.stored.append(ask)
        return [found[number] for number in range(len(asks))]

    def _said(self, ask: Ask, kind: str, path: Path) -> list[tuple[str, int, float | None]]:
        """Text, tokens and log probability of each answer."""
        if ask.says is not None:
            return [(text, 0, None) for text in ask.says]
        assert ask.max_tokens is not None
        if kind == "VALUE":
            texts = self.table.values(path, ask.n)
        elif kind == "VOTE":
            count = len(ask.text.splitlines()) - ask.text.splitlines().index("VOTE") - 1
            texts = [str(vote) for vote in self.table.votes(path, ask.n, count)]
        else:
            count = int(ask.text.split()[-1]) if kind == "PROPOSE" else ask.n
            texts = [self.table.word((*path, number + 1)) for number in range(count)]
        if kind == "PROPOSE":
            texts = ["\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))]
        sizes = [self.table.tokens(kind, path, i, ask.max_tokens) for i in range(ask.n)]
        wants = ask.options.get("logprobs") is not None
        return [
            (text, size, size * self.table.logprob(path, text) if wants else None)
            for text, size in zip(texts, sizes, strict=True)
        ]

    def _store(self, ask: Ask, said: Sequence[tuple[str, int, float | None]]) -> Answer:
        user = self.session.add(ask.at, "user", ask.text, extra=dict(ask.extra))
        outputs = []
        for choice, (text, tokens, logprob) in enumerate(said):
            name = self.session.add(
                user, "assistant", text, choice=choice, tokens=tokens, logprob=logprob
            )
            if ask.names is not None:
                self.session.labels[name] = ask.names[choice]
            outputs.append(Output(name, text, tokens, logprob))
        usage = {"output_tokens": sum(output.tokens for output in outputs)}
        return Answer(outputs, usage, {"computed": 1})

    def score(self, at: str | None, text: str, choices: Sequence[str]) -> Mapping[str, Any]:
        assert "STEP" in text
        self.scored.append(choices)
        path = self.session.path(at)
        if self.table.fails("SCORE", path):
            raise ContextOverflow(f"scores after {path} failed")
        scores = [self.table.logprob(path, word) for word in choices]
        return {"scores": scores, "usage": {"output_tokens": 0}, "cache": {"computed": 1}}

    def mark(self, marks: Mapping[str, str]) -> None:
        self._live()
        self.marked.append(dict(marks))
        self.session.labels |= marks

    def release(self, messages: Sequence[str]) -> int:
        self.released += messages
        self.num_releases += 1
        return len(messages)

    def close(self) -> None:
        self.is_closed = True


def _kind(ask: Ask) -> str:
    found = re.search("[A-Z]{4,}", ask.text)
    assert found is not None
    return found[0]
