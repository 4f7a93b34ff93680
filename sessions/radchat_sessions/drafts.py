"""What other programs wrote, on its way into the store, and what became of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radchat_sessions.content import Part
from radchat_sessions.messages import Role


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """Text of another program. ``parent``: the place in the draft of the one before it."""

    parent: int | None
    role: Role
    parts: Sequence[Part]
    created: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation of another program: a tree of texts without ids. ``heads``: branches."""

    name: str
    messages: Sequence[DraftMessage]
    heads: Mapping[str, int]  # the first is where HEAD goes
    created: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)  # what it had and we don't take


@dataclass(frozen=True, slots=True)
class Imported:
    session: str
    messages: int
    renewed: bool  # its ids were in use here: it has new ones
