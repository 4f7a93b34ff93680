"""Somebody to talk to: turns as the daemon would make them.

The tokenizer of these tests is UTF-8: an id is a byte. 1 opens a message, 2 ends an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeVar

from radchat_sessions.content import Ids, text_part
from radchat_sessions.messages import (
    Begun,
    Message,
    NewAnswer,
    NewMessage,
    NewPrompt,
    Placed,
    Session,
)
from radchat_sessions.store import Store

OPEN, STOP = 1, 2
T = TypeVar("T")


def given(value: T | None) -> T:
    assert value is not None
    return value


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8", "surrogatepass"))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Talk:
    """One session and the ids a template would make: every turn stands on the whole path."""

    store: Store
    session: Session | None = None

    def __post_init__(self) -> None:
        self.session = self.session or self.store.create_session(clock="2026-01-01")

    @property
    def id(self) -> str:
        assert self.session is not None
        return self.session.id

    @property
    def name(self) -> str:
        assert self.session is not None
        return self.session.name

    @property
    def tip(self) -> str:
        return given(self.head)

    def ids(self, message_id: str) -> Ids:
        return given(self.store.ids(message_id))

    @staticmethod
    def placed(begun: Begun) -> Placed:
        return given(begun.answers[0].placed)

    @property
    def head(self) -> str | None:
        return self.store.head(self.id).message

    def prompt(self, parent: str | None, texts: Sequence[str]) -> NewPrompt:
        """The tail: 1 and the text for each message, then 1 for the answer."""
        base = None
        kept = 0
        unanswered: list[str] = []
        for message in reversed(self.store.path(parent)):
            if message.out_len is not None:
                base = message.id
                kept = len(self.store.ids(message.id) or ())
                break
            unanswered.insert(0, message.text)
        tail: list[int] = []
        shares = []
        for text in [*unanswered, *texts]:
            start = kept + len(tail)
            tail += [OPEN, *encode(text)]
            shares.append((start, kept + len(tail)))
        return NewPrompt(
            tail=array("I", [*tail, OPEN]),
            tokenizer="utf-8",
            settings="plain",
            base_message=base,
            kept=kept,
            points=[[kept + len(tail), "digest", kept + len(tail)]],
            shares=shares,
        )

    def begin(
        self,
        *texts: str,
        parent: str | EllipsisType | None = ...,
        branch: str | None = "main",
        answers: Sequence[NewAnswer] = (),
        keep_head: bool = False,
    ) -> Begun:
        at = self.head if isinstance(parent, EllipsisType) else parent
        return self.store.begin(
            self.id,
            parent=at,
            new=[NewMessage.of("user", text) for text in texts],
            prompt=self.prompt(at, texts),
            answers=answers or [NewAnswer(branch)],
            keep_head=keep_head,
        )

    def finish(self, answer_id: str, text: str) -> Message:
        return self.store.finish(
            answer_id,
            ids=array("I", [*encode(text), STOP]),
            parts=[text_part(text)],
            finish_reason="stop",
            stopped=True,
        ).message

    def turn(self, text: str, answer: str, branch: str = "main") -> Message:
        return self.finish(self.begin(text, branch=branch).answer_ids[0], answer)

    def retry(self, text: str, expected: str, branch: str | None = "main") -> Message:
        old = self.store.message(expected)
        assert old.prompt is not None
        begun = self.store.begin(
            self.id,
            parent=old.parent,
            prompt=old.prompt,
            answers=[NewAnswer(branch)],
            expected=expected,
        )
        return self.finish(begun.answer_ids[0], text)

    def words(self, message_id: str | None) -> list[str]:
        return [message.text for message in self.store.path(message_id)]

    def expected_ids(self, message_id: str) -> Ids:
        """What the engine saw up to an answer, told again from the words."""
        ids: list[int] = []
        for message in self.store.path(message_id):
            ids += [OPEN, *encode(message.text)]
            if message.out_len is not None:
                ids.append(STOP)
        return array("I", ids)
