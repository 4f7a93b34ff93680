"""Compaction: a new branch that begins with a summary of the path, and ends as the path does.

The summary is asked for at the end of the path, so that all of its KV serves; only the request's
own words are computed. The engine alone hears of it: nothing is stored before the summary is
whole, then everything in one transaction. So a kill, an error or a cancel leaves the tree as it
was. What is stored: the system prompt, the request and the summary as a turn (every template takes
a user's message and an answer to it), and the last turns as they were said. The place it was asked
at gets a label.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from radchat.daemon import options, views
from radchat.daemon.arguments import ChatHead
from radchat.daemon.filling import next_prompt
from radchat.daemon.finding import Place, find_session, find_store, is_stored, moved, stands
from radchat.daemon.past import Past, turn
from radchat.daemon.reuse import about_s
from radchat.engine.conversation import Settings, Turn
from radchat.engine.request import Event as EngineEvent
from radchat.engine.request import Finished, FinishReason, Ids, Progress, Request, Tokens
from radchat.errors import ContextOverflow, InvalidInput, RadchatError, context_overflow
from radchat.protocol import Event, Where
from radchat_sessions.messages import Message, NewMessage
from radchat_sessions.names import free_name
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.desk import Desk
    from radchat.daemon.engines import Engines
    from radchat.daemon.loaded import Loaded
    from radchat.daemon.worker import Worker
    from radchat.engine.template import Template

REQUEST = (
    "Summarise our conversation so far, so that it can go on from the summary alone: the facts, "
    "names, numbers and decisions, what I asked you to keep in mind, and what is still open. "
    "Write the summary and nothing else."
)
BRANCH, LABEL = "compact", "before-compact"
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


# -- what is read, what stays ----------------------------------------------------------------------


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
        f"this path is too short to compact: {plan.before:,} tokens, of which "
        f"{plan.before - saved:,} would be there again besides a summary"
    )


def _settings(place: Place, ask: Compact, loaded: Loaded) -> Settings:
    """Those of the chat, so that its KV serves; but no thinking, where that costs nothing."""
    switches, _ = options.switches(loaded, ask.think)
    facts = loaded.template.facts
    if facts.switches.get(facts.think_switch) == "opening":
        switches = {**switches, facts.think_switch: False}
    return Settings(clock=datetime.fromisoformat(place.session.clock), switches=switches)


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


# -- the work --------------------------------------------------------------------------------------


class Compaction:
    """One ``/compact``, as a task: cost, summary, branch. ``say`` takes the events."""

    def __init__(
        self,
        ask: Compact,
        desk: Desk,
        engines: Engines,
        worker: Worker,
        say: Callable[[Event], None],
    ) -> None:
        self._ask, self._desk, self._engines, self._worker = ask, desk, engines, worker
        self._say = say
        self._inbox: asyncio.Queue[EngineEvent] = asyncio.Queue()

    async def run(self) -> None:
        store, session = await self._desk.run(self._find)
        entry = await self._engines.choose(self._ask.model, session.model)
        self._ask = replace(self._ask, session=session.id)
        async with self._engines.using(entry, self._ask.dtype, self._say) as loaded:

            def planned() -> Plan:
                place = stands(store, store.session(session.id), self._ask.head)
                return make_plan(store, place, self._ask, loaded)

            plan = await self._desk.run(planned)
            await self._tell_cost(plan, loaded)
            summary, finished = await self._summarise(plan, loaded)
            if finished.reason == FinishReason.LENGTH:
                text = f"the summary was cut off after {finished.usage.output_tokens:,} tokens"
                self._say(Event("notice", {"text": text, "code": "cut_off"}))
            body = await self._desk.run(lambda: keep(store, plan, summary, loaded))
            usage, cache = options.usage_json(finished.usage)
            body |= {"summary": summary, "usage": usage, "cache": cache}
            self._say(Event("done", body))

    def _find(self) -> tuple[Store, Any]:
        store = find_store(self._desk, self._ask.session)
        return store, find_session(store, self._ask.session, self._ask.where)

    async def _tell_cost(self, plan: Plan, loaded: Loaded) -> None:
        engine = loaded.engine
        cached = await self._worker.call(lambda: engine.probe(plan.ids))
        computed = len(plan.ids) - cached
        about = about_s(computed, engine.prefill_tokens_per_s)
        cost = (
            f"this reads {len(plan.ids):,} tokens ({cached:,} cached, {computed:,} to compute"
            f"{about}) and writes a summary of at most {plan.max_tokens:,}"
        )
        parts = [cost]
        if any(message.role == "assistant" for message in plan.path[plan.read :]):
            left = len(plan.path) - plan.read
            parts.append(f"the last {left} messages leave no room for it: they stay as they are")
        if plan.is_cut:
            parts.append("the end of the last answer leaves no room for it and is not read")
        body = {"text": "; ".join(parts), "code": "compact", "tokens": len(plan.ids)}
        self._say(Event("notice", body | {"cached": cached, "computed": computed}))

    async def _summarise(self, plan: Plan, loaded: Loaded) -> tuple[str, Finished]:
        given = {**loaded.model.sampling, **self._ask.options, "stop": None}
        request = Request(
            secrets.token_hex(8),
            array("I", plan.ids),
            options.sampling_params(given, loaded, plan.max_tokens),
        )
        splitter = loaded.template.splitter(opened=plan.opens_reasoning)
        try:
            await self._worker.submit(loaded.key, request, self._inbox.put_nowait)
        except asyncio.CancelledError:
            self._worker.abort(request.id)  # it may have got there
            raise
        summary = ""
        finished: Finished | None = None
        try:
            while finished is None:
                event = await self._inbox.get()
                words = ""
                if isinstance(event, Progress) and event.computed_tokens < event.total_tokens:
                    done, total = event.computed_tokens, event.total_tokens
                    body = {"stage": "extend", "done": done, "total": total}
                    self._say(Event("progress", body))
                elif isinstance(event, Tokens):
                    words = splitter.push(event.text).content
                elif isinstance(event, Finished):
                    finished = event
                    words = splitter.push(event.text).content + splitter.flush().content
                if words:
                    summary += words
                    self._say(Event("delta", {"choice": 0, "text": words}))
        finally:
            if finished is None:
                self._worker.abort(request.id)
                while not isinstance(await self._inbox.get(), Finished):
                    pass
        if finished.reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise RadchatError(finished.error or "the summary was ended: nothing was changed")
        if not summary.strip():
            raise RadchatError("the model wrote no summary: nothing was changed")
        return summary.strip(), finished


def keep(store: Store, plan: Plan, summary: str, loaded: Loaded) -> dict[str, Any]:
    """On the desk: the branch, HEAD and the label, or nothing where it would save nothing."""
    after = plan.length(loaded.template, summary)
    if after >= plan.before:
        raise InvalidInput(
            f"the summary and what stays as it was are {after:,} tokens, the path {plan.before:,}: "
            "nothing was changed"
        )
    place, session = plan.place, plan.place.session
    branches = {branch.name for branch in store.branches(session.id)}
    labels = [label for label in store.labels(session.id) if label.kind == "label"]
    label = free_name(LABEL, branches | {each.value for each in labels})
    assert place.message is not None
    appended = store.append(
        session.id,
        parent=None,
        new=plan.copies(summary),
        branch=free_name(BRANCH, branches | {each.value for each in labels}),
        keep_head=not is_stored(store, place),
        label=(place.message, label),
    )
    assert appended.placed is not None
    at = replace(place, branch=appended.placed.branch, message=appended.messages[-1])
    return {
        **moved(store, at),
        "label": label,
        "before": plan.before,
        "after": after,
        "kept_messages": plan.stays,
    }
