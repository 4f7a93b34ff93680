"""One generating command, from its words to the request that the engine is given.

``Answer`` runs as a task of its own: a client that goes away cancels the request, never the
bookkeeping, so the partial message is always kept. Until ``has_begun`` nothing was done that the
client could not ask for again; from then on ``listening.py`` sees the answer to its end.
"""

from __future__ import annotations

import logging
import secrets
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from radchat.daemon import options, turns
from radchat.daemon.arguments import Generate
from radchat.daemon.asked import Asked
from radchat.daemon.desk import Desk
from radchat.daemon.disk import kept_name
from radchat.daemon.engines import Engines
from radchat.daemon.finding import find_place, find_session, located
from radchat.daemon.fullness import Filled, crossing
from radchat.daemon.heard import paths_of
from radchat.daemon.listening import Listening
from radchat.daemon.loaded import Loaded
from radchat.daemon.reuse import (
    WORTH_SAYING,
    Part,
    about,
    about_s,
    computed_again,
    explained,
    foreseen,
    parts_of,
)
from radchat.daemon.worker import Worker
from radchat.engine.request import Request, Span, Tiers
from radchat.errors import ContextOverflow, context_overflow
from radchat.models.registry import ModelEntry
from radchat.protocol import Event
from radchat_sessions.messages import Begun, NewAnswer
from radchat_sessions.names import auto_name, free_name
from radchat_sessions.store import Store

log = logging.getLogger(__name__)


class Answer:
    """``say`` takes the events for the client; nobody may be listening any more."""

    def __init__(
        self,
        ask: Generate,
        desk: Desk,
        engines: Engines,
        worker: Worker,
        say: Callable[[Event], None],
    ) -> None:
        self.ask = ask
        self.id = secrets.token_hex(8)
        self.has_begun = False  # from before the store is told: what may have begun has begun
        self._desk, self._engines, self._worker, self._say = desk, engines, worker, say
        self._store: Store = desk.ephemeral if ask.ephemeral else desk.stored
        self._asked_at = time.monotonic()
        self._made: str | None = None  # the session this command made
        self._listening: Listening | None = None
        self._cancelled = False
        self._is_last_chance = False

    def cancel(self) -> bool:
        """End the answer at its next step. True: nothing has begun, so its task is to be cancelled
        (told once: what the task then puts away is not to be cut short).
        """
        again, self._cancelled = self._cancelled, True
        if self._listening is not None:
            self._listening.cancel()
        return not self.has_begun and not again

    def last_chance(self) -> None:
        """The daemon ends: what can't be saved now is left to the running file."""
        self._is_last_chance = True
        if self._listening is not None:
            self._listening.last_chance.set()

    async def run(self) -> None:
        model = await self._desk.run(self._find)
        if self._store is self._desk.stored and (told := self._engines.disk.tell_once()):
            self._say(told)
        entry = await self._engines.choose(self.ask.model, model)
        listening = await self._hear(entry)
        await listening.put_away()

    async def _hear(self, entry: ModelEntry) -> Listening:
        """All that needs the engine; it may go when this returns."""
        async with self._engines.using(entry, self.ask.dtype, self._say) as loaded:
            try:
                asked = await self._prepare(loaded)
                await self._check(asked, loaded)
                self.has_begun = True
                begun = await self._begin(asked)
            except BaseException:
                await self._desk.run(self._forget)
                raise
            disk = self._engines.disk
            listening = Listening(
                asked, begun, loaded, self._store, self._desk, self._worker, disk, self._say
            )
            self._listening = listening
            if self._cancelled:
                listening.cancel()
            if self._is_last_chance:
                listening.last_chance.set()
            await listening.hear(loaded)
            self._keep(listening, loaded)
            return listening

    def _keep(self, listening: Listening, loaded: Loaded) -> None:
        """Have the paths of this turn's branches on disk, when the engine is idle."""
        disk = self._engines.disk
        if disk.store is not None and self._store is self._desk.stored:
            session, request, answers = listening.said
            paths = paths_of(request, answers, unnamed=disk.keeps_unnamed)
            self._worker.keep(loaded.key, [(kept_name(session, name), ids) for name, ids in paths])

    # -- before --------------------------------------------------------------------------------

    def _find(self) -> str | None:
        """Which session is meant, once and for all; the model it talks with."""
        self._store, ask = located(self._desk, self.ask)
        if ask.new_session:
            return None
        session = find_session(self._store, ask.session, ask.where)
        self.ask = replace(ask, session=session.id)
        return session.model

    async def _prepare(self, loaded: Loaded) -> Asked:
        switches, about = options.switches(loaded, self.ask.think)
        if about is not None:
            self._say(Event("notice", {"text": about, "code": "think"}))

        limit = options.context_limit(loaded, self.ask.options)
        self.ask = replace(self.ask, default_system=loaded.model.system)

        def work() -> turns.Prepared:
            place = find_place(self._store, self.ask)
            if self.ask.new_session:
                self._made = place.session.id
            plan = turns.plan_turn(self._store, place, self.ask)
            return turns.prepare(self._store, plan, loaded, switches, limit)

        try:
            return self._asked(await self._desk.run(work), loaded)
        except ContextOverflow as error:
            if "prompt_tokens" not in error.data or loaded.context_length <= limit:
                raise
            raise context_overflow(**error.data, most=loaded.context_length) from error

    def _forget(self) -> None:
        """A command that says nothing in the session it made leaves none behind."""
        made = self._made
        if made is not None and not self._store.message_ids(made):
            self._store.remove(made)

    def _asked(self, prepared: turns.Prepared, loaded: Loaded) -> Asked:
        given = self._engines.given(loaded, self.ask.options)
        limit = options.context_limit(loaded, given)
        room = limit - len(prepared.ids)
        if room < 1:
            raise context_overflow(len(prepared.ids), limit)
        num_ctx, most = given.get("num_ctx"), given.get("max_tokens")
        if num_ctx is not None:
            most = room if most is None else min(most, room)
        if num_ctx is not None and num_ctx > limit:
            text = f"a context of {num_ctx:,} was asked for: {loaded.name} has {limit:,} here"
            self._say(Event("notice", {"text": text, "code": "context", "limit": limit}))
        request = Request(
            self.id,
            array("I", prepared.ids),
            options.sampling_params(given, loaded, most),
            n=self.ask.n,
            said=len(prepared.said),
        )
        is_ephemeral = self._store is self._desk.ephemeral
        blocks = self._engines.disk.blocks(loaded.model.fingerprint)
        return Asked(
            prepared,
            request,
            loaded.name,
            loaded.dtype,
            loaded.loaded_at,
            limit,
            self._asked_at,
            partial(self._engines.disk.excuse, is_ephemeral=is_ephemeral),
            lambda: [] if blocks is None else blocks.spans(request.ids.tobytes()),
        )

    async def _check(self, asked: Asked, loaded: Loaded) -> None:
        """Refuse what could never run, and tell what will be restored, or computed again."""
        engine, request, num = loaded.engine, asked.request, len(asked.request.ids)

        def check() -> Tiers:
            engine.check_request(request)
            return engine.probe_tiers(request.ids)

        def look(asked: Asked) -> tuple[list[Span], list[Part]]:
            spans = foreseen(num, tiers.device, tiers.disk, asked.on_disk() if tiers.disk else [])
            return spans, parts_of(asked, spans)

        tiers = await self._worker.call(check)
        spans, parts = await explained(asked, look)
        disk = sum(span.end - span.start for span in spans if span.tier == "disk")
        if disk > WORTH_SAYING:
            text = f"{num:,} tokens: {disk:,} on disk{about(engine.load_seconds(disk))}"
            self._say(Event("notice", {"text": text, "code": "restore", "tokens": disk}))
        again, most = computed_again(parts)
        if most is not None and again > WORTH_SAYING:
            cost = about_s(again, engine.prompt_cost)
            text = f"this recomputes {again:,} tokens{cost}: {most.why}"
            self._say(Event("notice", {"text": text, "code": "recompute", "tokens": again}))
        for event in crossing(asked.prepared.before, Filled(len(request.ids), asked.limit)):
            self._say(event)

    # -- the beginning -------------------------------------------------------------------------

    async def _begin(self, asked: Asked) -> Begun:
        plan, params = asked.prepared.plan, asked.request.params
        session = plan.place.session.id

        def work() -> Begun:
            begun = self._store.begin(
                session,
                parent=plan.parent,
                new=plan.new,
                prompt=asked.prepared.prompt,
                answers=[
                    NewAnswer(name, seed=params.seed, choice=index)
                    for index, name in enumerate(self._branch_names(plan))
                ],
                expected=plan.expected,
                keep_head=plan.keep_head,
                model=asked.model,
                dtype=asked.dtype,
                sampling=options.params_json(params),
            )
            try:
                self._after_begin(plan, begun)
            except Exception:  # the turn has begun: none of this is worth losing its answer for
                log.warning("answer %s: its session was not named or used", self.id, exc_info=True)
            return begun

        return await self._engines.disk.saving(lambda: self._desk.run(work))

    def _branch_names(self, plan: turns.Plan) -> list[str]:
        """The branch of the first sample, and names of their own for the others."""
        taken = {branch.name for branch in self._store.branches(plan.place.session.id)}
        names = [free_name(plan.branch, taken) if plan.is_fork else plan.branch]
        while len(names) < self.ask.n:
            taken.add(names[-1])
            names.append(free_name(plan.branch, taken))
        return names

    def _after_begin(self, plan: turns.Plan, begun: Begun) -> None:
        """Name the session after its first words; make it the current one."""
        store, where = self._store, self.ask.where
        is_first = plan.parent is None and bool(plan.new) and not plan.place.session.named
        if is_first and len(begun.messages) == len(store.message_ids(begun.session)):
            words = turns.shown(store.message(begun.messages[-1]))
            store.suggest_name(begun.session, auto_name(words))
        store.use(
            begun.session,
            terminal=where["terminal"],
            folder=where["folder"],
            only_terminal=self.ask.only_terminal,
        )
