"""The words between whoever keeps conversations and the template: turns in, a prompt out.

Plain data, no torch and no tokenizer. ``Template.prompt(turns, new, settings)`` reads these and
makes a ``Prompt``; the caller stores its record and, after generation, a sampled turn.

    ids(prompt) = ids(base)[:kept] + tail          ids(answer) = ids(its prompt) + out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from radchat.engine.request import Ids
from radchat.errors import InvalidInput

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
History: TypeAlias = Literal["auto", "template", "sampled"]

ROLES: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Point:
    """A place where a rendering may be cut: its first ``chars`` characters are ``num_ids`` ids.

    ``num_ids`` counts in the ids of the prompt that recorded the point, in no other.
    ``digest`` is over those characters; it is the same in every process.
    """

    chars: int
    digest: str
    num_ids: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """What is kept of a prompt: its full ids, its settings' hash, the places to cut it."""

    ids: Ids
    settings: str
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a path.

    A *sampled* turn is an answer with ``prompt`` and ``out``: its ids stand for it, whatever the
    template would write. An answer without them (edited, imported) is text like a user's.
    """

    role: str
    text: str  # of an answer: its content, without reasoning and calls
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None  # of a tool result: the function's name
    tool_call_id: str | None = None
    prompt: PromptRecord | None = None
    out: Ids | None = None  # exactly as sampled, a stop id included
    stopped: bool = False  # the last id of ``out`` is a stop id
    holds: str | None = None  # its reasoning, while the path still contains it (for display: the
    # template reads from the ids what a path contains, since a fork may know better)

    @property
    def is_sampled(self) -> bool:
        return self.prompt is not None and self.out is not None

    def continue_ids(self) -> Ids:
        """The ids to go on from in a cut answer: no closing, no new opening."""
        if self.prompt is None or self.out is None:
            raise InvalidInput("only an answer of the model can be continued")
        return self.prompt.ids + (self.out[:-1] if self.stopped else self.out)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rendering depends on besides the messages. The system prompt is a turn."""

    clock: datetime  # the session's creation: a template that asks for the time is told this
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas, in any order: we sort them
    switches: Mapping[str, Any] = field(default_factory=dict)  # e.g. enable_thinking
    history: History = "auto"
    tools_in: Literal["template", "block"] = "template"  # what shows them: ``Template.tool_form``


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of the next request, and how they relate to the path so far.

    ``ids == base path[:kept] + tail``, where the base path is ``turns[base].prompt.ids`` followed
    by ``turns[base].out``; ``base_is_prompt``: ``kept`` ends within that prompt's own ids.
    ``shares[i]`` ids of the tail belong to the i-th message after the last sampled turn (with no
    unanswered message in ``turns``: to ``new[i]``); the first also has the closing of the answer
    before it, the last the opening. ``sum(shares) + rebuilt == len(tail)``; ``rebuilt`` is 0 unless
    ``how`` is "rewrite": ids of messages up to the last sampled turn that must be computed again.
    """

    ids: Ids
    kept: int
    base: int | None  # index in ``turns``; None: nothing is kept
    base_is_prompt: bool
    tail: Ids
    points: tuple[Point, ...]
    settings_hash: str
    how: Literal["first", "append", "rewrite"]
    reason: str  # templates: first · append · stop token replaced · reasoning dropped · …
    shares: tuple[int, ...]
    rebuilt: int = 0
    dropped: int = 0  # ids of the path so far that the prompt no longer contains
    cleared_holds: tuple[int, ...] = ()  # turns whose ``holds`` the caller must clear
    was: str = ""  # of a rewrite: what followed the cut in the path so far (up to 30 characters)
    now: str = ""  # and what follows it now
    opens_reasoning: bool = False  # the prompt ends inside a reasoning block

    @property
    def record(self) -> PromptRecord:
        return PromptRecord(self.ids, self.settings_hash, self.points)

    @property
    def computed(self) -> int:
        """Ids that no earlier request has seen in this place."""
        return len(self.ids) - self.kept

    @property
    def notice(self) -> str:
        """One line for the user before a costly rewrite; empty if nothing is computed twice."""
        if not self.rebuilt:
            return ""
        return (
            f"kept {self.kept:,} of {len(self.ids):,} ids · dropped {self.dropped:,} · "
            f"computed {self.computed:,} · reason: {self.reason}"
        )
