"""What a compaction reads, what it asks, and what stays: decided before anything is computed.

The request is a user's message at the end of the path, so that all of the path's KV serves. Where
that leaves too little room for a summary, whole turns at the end are not read, and stay as they
are; a first turn that fills everything by itself is read without the end of its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from radchat.daemon import options, views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.filling import next_prompt
from radchat.daemon.finding import Place
from radchat.daemon.past import Past, turn
from radchat.daemon.tools import open_calls, settings_of
from radchat.engine.conversation import Settings, Turn
from radchat.engine.request import Ids
from radchat.errors import ContextOverflow, InvalidInput, context_overflow
from radchat.protocol import Where
from radchat_sessions.messages import Message, NewMessage
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded
    from radchat.engine.template import Template

REQUEST = (
    "Summarise our conversation so far, so that it can go on from the summary alone: the facts, "
    "names, numbers and decisions, what I asked you to keep in mind, and what is still open. "
    "Write the summary and nothing else."
)
# Shares of the context, in tokens: a summary is worth asking for with LEAST of room, and ends at
# MOST, or at half of what it is of; whole turns at the end of the path stay as they were said while
# they take no more than KEPT.
LEAST, MOST, KEPT = 1 / 16, 1 / 8, 1 / 8
LEAST_TOKENS, MOST_TOKENS = 128, 1024
MOST_KEPT_TURNS = 2


@dataclass(frozen=True, slots=True)
class Compact:
    """What a client asks for; ``text``: what the summary should heed."""

    where: Where
    session: str | None = None
    head: ChatHead | None = None
    text: str = ""
    model: str | None = None
    dtype: str | None = None
    think: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    place: Place
    path: tuple[Message, ...]
    settings: Settings
    read: int  # messages of the path that the summary is of
    is_cut: bool  # the last of them only in part
    stays: int  # messages at the end of the path that are said again as they were
    ids: Ids  # the request's
    opens_reasoning: bool
    max_tokens: int
    request: str
    before: int  # tokens of the path's next prompt

    @property
    def system(self) -> tuple[Message, ...]:
        return self.path[:1] if self.path and self.path[0].role == "system" else ()

    def copies(self, summary: str) -> list[NewMessage]:
        """The new path."""
        last = self.path[len(self.path) - self.stays :]
        made = [
            *(NewMessage(m.role, m.parts) for m in self.system),
            NewMessage.of("user", self.request),
            NewMessage.of("assistant", summary),
            *(NewMessage(m.role, m.parts) for m in last),
        ]
        came = {"branch": self.place.branch, "message": self.place.message}
        made[-1] = replace(made[-1], extra={"compacted": came})
        return made

    def length(self, template: Template, summary: str) -> int:
        """Tokens of the new path's next prompt."""
        turns = [turn(message.role, message.parts) for message in self.copies(summary)]
        return len(next_prompt(template, turns, self.settings).ids)


def make_plan(store: Store, place: Place, ask: Compact, loaded: Loaded) -> Plan:
    """On the desk. InvalidInput where there is nothing to compact, ContextOverflow where not even
    the first turn leaves room for a summary.
    """
    path = store.path(place.message)
    limit = options.context_limit(loaded, ask.options)
    settings = _settings(place, ask, loaded)
    known: Sequence[Turn] = Past(store, path).turns(loaded.tokenizer.hash)
    request = f"{REQUEST}\n\n{ask.text.strip()}" if ask.text.strip() else REQUEST
    least = min(LEAST_TOKENS, max(1, int(limit * LEAST)))
    most = max(least, min(MOST_TOKENS, int(limit * MOST)))
    ends = [
        i + 1
        for i, message in enumerate(path)
        if message.role == "assistant" and (i + 1 == len(path) or path[i + 1].role == "user")
    ]
    if open_calls(path):  # they stay open: whoever has their results goes on from them
        ends = [end for end in ends if end < len(path)]
        if not ends:
            raise InvalidInput(
                "the calls of the last answer have no results yet, and there is no turn before "
                "it: nothing to compact"
            )
    if not ends:
        raise InvalidInput("there is no answer on this path yet: nothing to compact")
    asked = Turn("user", request)
    for read in reversed(ends):
        seen, is_cut = known[:read], False
        room = _room(loaded.template, seen, asked, settings, limit)
        if room < least and read == ends[0]:
            seen, is_cut = _cut(loaded.template, seen, asked, settings, limit - least), True
            room = _room(loaded.template, seen, asked, settings, limit)
        if room >= least:
            break
    else:
        raise context_overflow(limit - room, limit)
    how = loaded.template.prompt(seen, [asked], settings)
    plan = Plan(
        place,
        tuple(path),
        settings,
        read,
        is_cut,
        _stays(store, place, path, read, limit),
        how.ids,
        how.opens_reasoning,
        min(room, most, max(least, len(how.ids) // 2)),
        request,
        len(next_prompt(loaded.template, known, settings).ids),
    )
    return _saving(plan, loaded.template, least)


def _saving(plan: Plan, template: Template, least: int) -> Plan:
    """The plan whose summary may be as long as still saves something; without the turns that would
    only be nice to keep, where else it could not.
    """
    for stays in (plan.stays, len(plan.path) - plan.read):
        tried = replace(plan, stays=stays)
        saved = plan.before - tried.length(template, "-")
        if saved > least:
            return replace(tried, max_tokens=min(plan.max_tokens, saved))
    raise InvalidInput(
        f"this path is too short to compact: it is {plan.before:,} tokens before your next words, "
        f"and would be {plan.before - saved + least:,} with a summary of {least:,} in its place"
    )


def _settings(place: Place, ask: Compact, loaded: Loaded) -> Settings:
    """Those of the chat, so that its KV serves; but no thinking, where that costs nothing."""
    switches, _ = options.switches(loaded, ask.think)
    facts = loaded.template.facts
    if facts.switches.get(facts.think_switch) == "opening":
        switches = {**switches, facts.think_switch: False}
    return settings_of(place.session, loaded.template, switches)


def _room(
    template: Template, seen: Sequence[Turn], asked: Turn, settings: Settings, limit: int
) -> int:
    """Tokens left for the summary; below 0 where the request itself does not fit."""
    try:
        return limit - len(template.prompt(seen, [asked], settings, limit=limit).ids)
    except ContextOverflow as error:
        return limit - int(error.data["prompt_tokens"])


def _cut(
    template: Template, seen: Sequence[Turn], asked: Turn, settings: Settings, most: int
) -> Sequence[Turn]:
    """The same path, its last answer cut so that the request takes no more than ``most`` ids."""
    last = seen[-1]
    if not last.out:
        return seen
    over = len(template.prompt(seen, [asked], settings).ids) - most
    left = max(1, len(last.out) - max(0, over))
    return [*seen[:-1], replace(last, out=last.out[:left], stopped=False)]


def _stays(store: Store, place: Place, path: Sequence[Message], read: int, limit: int) -> int:
    """How many messages at the end are said again: all that the summary is not of; and whole turns
    before them while they are few and short, but never the path's only one.
    """
    tokens = views.tokens_of(store, place.session.id, path)
    starts = [i for i, message in enumerate(path) if message.role == "user"]
    stays = len(path) - read
    used = turns = 0
    for start, end in reversed(list(zip(starts, [*starts[1:], len(path)], strict=True))):
        if start >= read:
            continue
        used += sum(number or limit for number in tokens[start:end])
        turns += 1
        if used > limit * KEPT or turns > MOST_KEPT_TURNS or start == starts[0]:
            break
        stays = len(path) - start
    return stays
