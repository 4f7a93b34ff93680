"""The plain data of a session: messages, prompts, branches, and what the store is told and tells.

A message is immutable. Its ``digest`` covers its parent's digest, so one digest vouches for a
whole path; ``verify`` recomputes them. What a message is made of is in ``content``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, cast

from radchat_sessions.content import Ids, Json, Part, text_of, text_part

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "abort", "error"]
LabelKind = Literal["label", "score", "pin"]

ROLES: Final = ("system", "user", "assistant", "tool")


def as_role(value: str) -> Role:
    """``value`` as a role; ValueError names the set."""
    if value not in ROLES:
        raise ValueError(f"role {value!r}: want one of {', '.join(ROLES)}")
    return cast("Role", value)


# -- what the store returns ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    name: str
    named: bool  # by a person; False: the name was made up and may be replaced
    model: str | None
    folder: str | None
    settings: Mapping[str, Json]
    clock: str  # the date the templates see, fixed at creation
    parent: str | None  # the session this one was forked from
    fork_message: str | None  # and where
    created: float
    used: float


@dataclass(frozen=True, slots=True)
class SessionSummary:
    session: Session
    messages: int
    branches: int
    head: Head


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation. From ``prompt`` on: answers only.

    ``out_len`` counts the ids sampled for it, None where there are none (a message given as text).
    ``origin`` is the session it was written in; None once that is removed and others still use it.
    """

    id: str
    parent: str | None
    role: Role
    parts: Sequence[Part]
    created: float
    digest: str
    origin: str | None
    prompt: str | None = None
    out_len: int | None = None
    model: str | None = None
    dtype: str | None = None
    sampling: Mapping[str, Json] | None = None
    seed: int | None = None
    choice: int | None = None
    usage: Mapping[str, Json] | None = None
    timing: Mapping[str, Json] | None = None
    finish_reason: FinishReason | None = None
    stopped: bool = False  # the last id of out is a stop id
    holds: str | None = None  # its reasoning, while the path still contains it (templates.md §2)
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def reasoning(self) -> str:
        return text_of(self.parts, "reasoning")


class Link(NamedTuple):
    """What a message follows, and the session it was written in."""

    parent: str | None
    origin: str | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request put before its answers: ``ids(base)[:kept] + tail``, ``length`` ids in all.

    ``message`` is the last message it contains; its answers are children of that.
    """

    id: str
    message: str
    base_message: str | None
    base_prompt: str | None
    kept: int
    tail: Ids
    length: int
    tokenizer: str
    settings: str
    points: Json
    extra: Mapping[str, Json]
    created: float


@dataclass(frozen=True, slots=True)
class Branch:
    session: str
    name: str
    message: str | None  # None: nothing said yet
    is_head: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """Where a session talks. ``branch`` None: at a bare message; ``last_branch`` names new ones."""

    session: str
    branch: str | None
    message: str | None
    last_branch: str


@dataclass(frozen=True, slots=True)
class Label:
    session: str
    message: str
    kind: LabelKind
    value: str


@dataclass(frozen=True, slots=True)
class Running:
    """An answer being generated; ``expected`` is where ``branch`` must point for it to move."""

    id: str
    session: str
    parent: str
    prompt: str
    branch: str | None
    expected: str | None
    model: str | None
    dtype: str | None
    sampling: Mapping[str, Json] | None
    seed: int | None
    choice: int
    started: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """A leftover found at open: ``message`` None where no id had been saved."""

    answer: str
    session: str
    message: Message | None
    cut_bytes: int  # of a torn last record


@dataclass(frozen=True, slots=True)
class Removed:
    """``messages`` are gone; ``shared`` of the session's messages live on in other sessions;
    ``branches``, and so many ``labels``, of a session that stays are gone. So many of the messages
    had a score: ``thoughts``.
    """

    session: str
    messages: tuple[str, ...]
    prompts: int
    shared: int
    branches: tuple[str, ...] = ()
    labels: int = 0
    thoughts: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was searched for, seen from a session and a branch of it (None: unnamed)."""

    message: str
    session: str | None
    branch: str | None
    role: Role
    created: float
    rank: float  # the lower the better
    snippet: str
    marks: tuple[tuple[int, int], ...]  # where in it the matches are: (start, stop)


@dataclass(frozen=True, slots=True)
class Found:
    """A session in which ``matches`` messages have what was searched for."""

    session: str
    matches: int
    rank: float


# -- what the store is given -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message as text: user, system, tool, or an answer edited or imported (no ids)."""

    role: Role
    parts: Sequence[Part]
    extra: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = None  # None: a fresh one

    @classmethod
    def of(cls, role: Role, text: str) -> NewMessage:
        return cls(role, (text_part(text),))


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """``shares[i]`` is the (start, stop) in the prompt's own ids of the i-th of the last
    ``len(shares)`` messages of its path, in path order: those whose tokens stand in the tail.
    """

    tail: Ids
    tokenizer: str
    settings: str
    base_message: str | None = None  # an answer
    base_prompt: str | None = None  # or an earlier prompt, or neither
    kept: int = 0
    points: Json = ()
    shares: Sequence[tuple[int, int]] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewAnswer:
    """One sample. ``branch`` None: unnamed until pruned (a vote's or a search's losers)."""

    branch: str | None = None
    seed: int | None = None
    choice: int = 0
    id: str | None = None


# -- and what a turn comes back with ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a turn went. ``made``: a branch of its own, because ``wanted`` did not exist
    (``found`` None and ``existed`` False) or points at ``found`` and no longer where expected.
    """

    branch: str
    wanted: str
    made: bool
    existed: bool
    found: str | None = None

    @property
    def moved_on(self) -> bool:
        """True: somebody else moved ``wanted``; say so in one line."""
        return self.made and self.existed


@dataclass(frozen=True, slots=True)
class Appended:
    messages: tuple[str, ...]  # ids of the new messages, in order
    placed: Placed | None


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    id: str
    placed: Placed | None  # None: an unnamed answer


@dataclass(frozen=True, slots=True)
class Begun:
    session: str
    prompt: str
    messages: tuple[str, ...]
    answers: tuple[BegunAnswer, ...]

    @property
    def answer_ids(self) -> tuple[str, ...]:
        return tuple(answer.id for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Ended:
    message: Message
    placed: Placed | None  # None: an unnamed answer
