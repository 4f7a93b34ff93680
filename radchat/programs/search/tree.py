"""The tree of thoughts, as the search sees it: a thought is a message of the session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal[
    "new",  # grown, not judged yet
    "live",  # may be gone on from
    "pruned",  # others were better
    "dead",  # nothing can come of it: `why`
    "solved",  # the task's checker says so
    "best",  # on the path the answer is written from
]


@dataclass(slots=True, eq=False)
class Thought:
    """One step on the way to an answer. The root is the problem, before the first step."""

    name: str  # s1.1.2: the second thought after the first of search 1
    text: str
    message: str | None  # None: nothing is said in the session before the search
    parent: Thought | None = None
    status: Status = "new"
    score: float | None = None
    values: list[float] = field(default_factory=list)  # what its score is the mean of; votes for it
    tokens: int = 0  # that the model said
    side_tokens: int = 0  # besides: its rating; proposals for the next, votes on them, doubles
    logprob: float | None = None  # of all its tokens
    why: str | None = None  # it is dead
    children: list[Thought] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)  # messages that say the same: one KV, maybe

    def __repr__(self) -> str:
        return f"<thought {self.name} {self.status} {self.score}>"

    def path(self) -> list[Thought]:
        """From the first thought to this one; of the root none."""
        return [] if self.parent is None else [*self.parent.path(), self]

    @property
    def place(self) -> str:
        """Its name within its search: 1.2; of the root none."""
        return self.name.partition(".")[2]

    @property
    def depth(self) -> int:
        return len(self.path())

    @property
    def texts(self) -> list[str]:
        return [thought.text for thought in self.path()]

    def walk(self) -> Iterator[Thought]:
        """It and all below it, parents first, in the order they were grown."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def mark(self) -> str:
        """Its label in the session."""
        return self.name if self.score is None else f"{self.name}={self.score:.4g}"

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text": self.text,
            "score": self.score,
            "values": self.values,
            "status": self.status,
            "message": self.message,
            "tokens": self.tokens,
            "side_tokens": self.side_tokens,
            "why": self.why,
            "children": [child.json() for child in self.children],
        }
