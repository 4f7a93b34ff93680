"""Compaction: a new branch that begins with a summary of the path, and ends as the path does.

The engine alone hears of the request: nothing is stored before the summary is whole, then
everything in one transaction. So a kill, an error or a cancel leaves the tree as it was. What is
stored: the system prompt, the request and the summary as a turn (every template takes a user's
message and an answer to it), and the last turns as they were said. The place it was asked at gets
a label. docs/adr/0013.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radchat.daemon import options, telling
from radchat.daemon.compact_plan import Compact, Plan, make_plan
from radchat.daemon.finding import find_session, find_store, is_stored, moved, stands
from radchat.daemon.reuse import about_s
from radchat.daemon.tools import open_calls
from radchat.engine.request import Finished, FinishReason, Progress, Request, Tokens
from radchat.errors import InvalidInput, RadchatError
from radchat.protocol import Event
from radchat_sessions.messages import Session
from radchat_sessions.names import free_name
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.desk import Desk
    from radchat.daemon.engines import Engines
    from radchat.daemon.loaded import Loaded
    from radchat.daemon.worker import Worker

BRANCH, LABEL = "compact", "before-compact"


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
        self._inbox = worker.inbox()

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

    def _find(self) -> tuple[Store, Session]:
        store = find_store(self._desk, self._ask.session)
        return store, find_session(store, self._ask.session, self._ask.where)

    async def _tell_cost(self, plan: Plan, loaded: Loaded) -> None:
        engine = loaded.engine
        device, disk = await self._worker.call(lambda: engine.probe_tiers(plan.ids))
        cached = device + disk
        computed = len(plan.ids) - cached
        about = about_s(computed, engine.prompt_cost)
        on_disk = f", {disk:,} of them on disk" if disk else ""
        cost = (
            f"this reads {len(plan.ids):,} tokens ({cached:,} cached{on_disk}, {computed:,} to "
            f"compute{about}) and writes a summary of at most {plan.max_tokens:,}"
        )
        parts = [cost]
        if any(message.role == "assistant" for message in plan.path[plan.read :]):
            left = len(plan.path) - plan.read
            is_open = bool(open_calls(plan.path))
            why = "have calls without results" if is_open else "leave no room for it"
            parts.append(f"the last {left} messages {why}: they stay as they are")
        if plan.is_cut:
            parts.append("the end of the last answer leaves no room for it and is not read")
        body = {"text": "; ".join(parts), "code": "compact", "tokens": len(plan.ids)}
        self._say(Event("notice", body | {"cached": cached, "computed": computed}))

    async def _summarise(self, plan: Plan, loaded: Loaded) -> tuple[str, Finished]:
        given = {**self._engines.given(loaded, self._ask.options), "stop": None}
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
                if isinstance(event, Progress) and (told := telling.of_engine(event)):
                    self._say(told)
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
