"""One generating command, from its words to the message in the store.

``Answer`` runs as a task of its own: a client that goes away cancels the request, never the
bookkeeping, so the partial message is always kept. Each step's ids are in the running file before
a word of them is sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from array import array
from collections.abc import Callable
from typing import Any

from radchat.daemon import options, turns
from radchat.daemon.arguments import Generate
from radchat.daemon.desk import Desk
from radchat.daemon.engines import Engines, Loaded
from radchat.daemon.finding import find_session
from radchat.daemon.heard import Heard
from radchat.daemon.worker import Worker
from radchat.engine import request as engine
from radchat.engine.request import Request, SamplingParams
from radchat.errors import ContextOverflow, RadchatError
from radchat.protocol import Event
from radchat_sessions.errors import SaveFailed
from radchat_sessions.messages import (
    Begun,
    Ended,
    NewAnswer,
    Placed,
)
from radchat_sessions.names import auto_name
from radchat_sessions.store import Store

log = logging.getLogger(__name__)

WORTH_SAYING = 256  # tokens computed again before it is said first (templates.md, "cache why")
SAVE_AGAIN_S = 2.0


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
        self._desk, self._engines, self._worker, self._say = desk, engines, worker, say
        self._store: Store = desk.ephemeral if ask.ephemeral else desk.stored
        self._asked_at = time.monotonic()
        self._has_model = False
        self._submitted = False
        self._cancelled = False

    def cancel(self) -> bool:
        """End the answer at its next step. False while it waits for its model: nothing has begun,
        and its task may be cancelled. Later it may not: what was begun is put away first.
        """
        self._cancelled = True
        if self._submitted:
            self._worker.abort(self.id)
        return self._has_model

    async def run(self) -> None:
        ask = self.ask
        self._store = await self._desk.run(self._find_store)
        model = await self._desk.run(self._session_model)
        entry = self._engines.choose(ask.model, model)
        async with self._engines.using(entry, ask.dtype, self._say) as loaded:
            self._has_model = True
            prepared = await self._prepare(loaded)
            try:
                request, params = self._request(prepared, loaded)
                cached = await self._worker.call(lambda: _check(loaded, request))
                self._say_cost(prepared, cached, loaded)
                if self._cancelled:
                    raise asyncio.CancelledError  # noqa: TRY301
                begun = await self._begin(prepared, loaded, params)
            except BaseException:
                await self._desk.run(lambda: self._forget(prepared))
                raise
            await self._generate(prepared, begun, request, loaded)

    # -- before --------------------------------------------------------------------------------

    def _find_store(self) -> Store:
        """An ephemeral session is found again by its name or id, without saying so each time."""
        if self.ask.ephemeral or self.ask.session is None:
            return self._store
        for store in (self._desk.stored, self._desk.ephemeral):
            try:
                store.find_session(self.ask.session)
            except Exception:  # noqa: S112 - the stored one tells, when it is asked in earnest
                continue
            return store
        return self._desk.stored

    def _session_model(self) -> str | None:
        if self.ask.new_session:
            return None
        return find_session(self._store, self.ask.session, self.ask.where).model

    async def _prepare(self, loaded: Loaded) -> turns.Prepared:
        switches, about = options.switches(loaded, self.ask.think)
        if about is not None:
            self._say(Event("notice", {"text": about, "code": "think"}))

        def work() -> turns.Prepared:
            plan = turns.plan_turn(self._store, self.ask)
            try:
                return turns.prepare(self._store, plan, loaded, switches)
            except BaseException:
                self._forget_session(plan)
                raise

        return await self._desk.run(work)

    def _forget(self, prepared: turns.Prepared) -> None:
        self._forget_session(prepared.plan)

    def _forget_session(self, plan: turns.Plan) -> None:
        """A command that fails before it began leaves no empty session behind."""
        session = plan.place.session.id
        if self.ask.new_session and not self._store.message_ids(session):
            self._store.remove(session)

    def _request(self, prepared: turns.Prepared, loaded: Loaded) -> tuple[Request, SamplingParams]:
        given = {**loaded.model.sampling, **self.ask.options}
        limit = options.context_limit(loaded, given)
        room = limit - len(prepared.ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(prepared.ids):,} tokens and the context holds {limit:,}: "
                "fork from an earlier turn, or begin a new session",
                prompt_tokens=len(prepared.ids),
                limit=limit,
            )
        most = given.get("max_tokens")
        if given.get("num_ctx") is not None:
            most = room if most is None else min(most, room)
        params = options.sampling_params(given, loaded, most)
        return Request(
            self.id, array("I", prepared.ids), params, n=self.ask.n, said=len(prepared.said)
        ), params

    def _say_cost(self, prepared: turns.Prepared, cached: int, loaded: Loaded) -> None:
        """What is computed a second time is said before it is (streams, rule 6)."""
        how = prepared.how
        before = len(prepared.ids) if how is None else how.kept
        again = max(0, before - cached)
        why = "it is no longer cached"
        if how is not None and (how.rebuilt or prepared.plan.rebuilt):
            again += len(how.ids) - how.kept if prepared.plan.rebuilt else how.rebuilt
            why = prepared.plan.rebuilt or how.reason
        if again <= WORTH_SAYING:
            return
        speed = loaded.engine.prefill_tokens_per_s
        about = f", about {again / speed:.1f} s" if speed else ""
        text = f"this recomputes {again:,} tokens{about}: {why}"
        self._say(Event("notice", {"text": text, "code": "recompute", "tokens": again}))

    async def _begin(
        self, prepared: turns.Prepared, loaded: Loaded, params: SamplingParams
    ) -> Begun:
        ask, plan, store = self.ask, prepared.plan, self._store

        def work() -> Begun:
            session = plan.place.session.id
            name = plan.branch
            if plan.is_fork and plan.branch is not None:
                base = plan.branch
                if ask.branch is not None and store.find_branch(session, base) is not None:
                    raise RadchatError(f"there is a branch {base} already: choose another name")
                name = store.free_branch_name(session, base)
            names = [name] * ask.n
            begun = store.begin(
                session,
                parent=plan.parent,
                new=plan.new,
                prompt=prepared.prompt,
                answers=[
                    NewAnswer(name, seed=params.seed, choice=index)
                    for index, name in enumerate(names)
                ],
                expected=plan.expected,
                keep_head=plan.keep_head,
                model=loaded.name,
                dtype=loaded.dtype,
                sampling=options.params_json(params),
            )
            if (
                plan.new
                and not plan.place.session.named
                and len(begun.messages) == len(store.message_ids(session))
            ):
                store.suggest_name(
                    session, auto_name(turns.shown(store.message(begun.messages[-1])))
                )
            store.use(
                session,
                terminal=ask.where["terminal"],
                folder=ask.where["folder"],
                only_terminal=ask.only_terminal,
            )
            return begun

        return await self._desk.run(work)

    # -- during --------------------------------------------------------------------------------

    async def _generate(
        self, prepared: turns.Prepared, begun: Begun, request: Request, loaded: Loaded
    ) -> None:
        inbox: asyncio.Queue[engine.Event] = asyncio.Queue()
        choices = [
            Heard(
                answer,
                loaded.template.splitter(opened=prepared.opens_reasoning),
                array("I", prepared.said),
            )
            for answer in begun.answer_ids
        ]
        if prepared.plan.cut is not None:  # continue: the words so far belong to the answer
            detokenizer = loaded.tokenizer.detokenizer()  # of half a character nothing (TK-02)
            choices[0].hear("".join(detokenizer.push(token) for token in prepared.said))
            await self._desk.run(
                lambda: self._store.append_ids(
                    choices[0].answer, list(prepared.said), choices[0].text
                )
            )
        self._say(Event("init", await self._desk.run(lambda: self._init(begun, prepared, loaded))))
        self._say_branch(begun.answers[0].placed)
        await self._worker.submit(request, inbox.put_nowait)
        self._submitted = True
        if self._cancelled:
            self._worker.abort(self.id)
        parent = begun.messages[-1] if begun.messages else prepared.plan.parent
        ended: list[dict[str, Any]] = []
        failed: str | None = None
        left = len(choices)
        while left:
            batch = [await inbox.get()]
            while not inbox.empty():
                batch.append(inbox.get_nowait())
            await self._save_ids(batch, choices)
            for event in batch:
                if isinstance(event, engine.Finished):
                    ended.append(
                        await self._finish(
                            event, choices[event.choice], begun, parent, request, loaded
                        )
                    )
                    left -= 1
                    if event.reason == engine.FinishReason.ERROR:
                        failed = event.error or "the engine could not go on with this answer"
                else:
                    self._pass_on(event)
        if failed is not None:
            raise RadchatError(failed)
        self._say(Event("done", await self._done(ended, begun, request, loaded)))

    def _init(self, begun: Begun, prepared: turns.Prepared, loaded: Loaded) -> dict[str, Any]:
        session = self._store.session(begun.session)
        first = begun.answers[0].placed
        return {
            "request": self.id,
            "session": session.id,
            "name": session.name,
            "branch": None if first is None else first.branch,
            "parent": prepared.plan.parent,
            "user": begun.messages[-1] if begun.messages else prepared.plan.parent,
            "messages": list(begun.answer_ids),
            "model": loaded.name,
            "dtype": loaded.dtype,
            "context": loaded.context_length,
            "input_tokens": len(prepared.ids),
        }

    def _say_branch(self, placed: Placed | None) -> None:
        """The branch this turn was meant for stands elsewhere: it got one of its own."""
        if placed is not None and placed.moved_on:
            text = f"{placed.wanted} has moved on: this turn is on its own branch {placed.branch}"
            self._say(Event("notice", {"text": text, "code": "branched"}))

    async def _save_ids(self, batch: list[engine.Event], choices: list[Heard]) -> None:
        """Hear the new words, and save them with their ids before anybody sees them."""
        heard: list[tuple[Heard, engine.Tokens, str, str]] = []
        now = time.monotonic()
        for event in batch:
            if isinstance(event, engine.Tokens):
                choice = choices[event.choice]
                choice.first_at = choice.first_at or now
                choice.last_at = now
                choice.ids.extend(event.ids)
                choice.logprobs.extend(event.logprobs)
                heard.append((choice, event, *choice.hear(event.text)))
        if not heard:
            return

        def work() -> None:
            for choice, event, reasoning, content in heard:
                kind, text = ("reasoning", reasoning) if reasoning else ("text", content)
                self._store.append_ids(choice.answer, event.ids, text, kind)
                if reasoning and content:
                    self._store.append_ids(choice.answer, (), content)

        try:
            await self._desk.run(work)
        except RadchatError as error:
            log.warning("the running file could not be written: %s", error.message)
        for _choice, event, reasoning, content in heard:
            self._say_words(event.choice, reasoning, content)

    def _say_words(self, choice: int, reasoning: str, content: str) -> None:
        if reasoning:
            self._say(Event("reasoning", {"choice": choice, "text": reasoning}))
        if content:
            self._say(Event("delta", {"choice": choice, "text": content}))

    def _pass_on(self, event: engine.Event) -> None:
        if isinstance(event, engine.Started):
            tiers = {"device": event.cached_tokens, "host": 0, "disk": 0}
            computed = event.input_tokens - event.cached_tokens
            body = {"input_tokens": event.input_tokens, "cached": tiers, "computed": computed}
            self._say(Event("start", body))
        elif isinstance(event, engine.Progress) and event.computed_tokens < event.total_tokens:
            body = {"stage": "extend", "done": event.computed_tokens, "total": event.total_tokens}
            self._say(Event("progress", body))

    # -- after ---------------------------------------------------------------------------------

    async def _finish(
        self,
        event: engine.Finished,
        choice: Heard,
        begun: Begun,
        parent: str | None,
        request: Request,
        loaded: Loaded,
    ) -> dict[str, Any]:
        """The answer becomes a message; what is kept of its ids is what the engine says."""
        self._say_words(event.choice, *choice.end(event.text))
        ids = choice.ids[: request.said + event.kept]
        timing = choice.timing(self._asked_at, time.monotonic(), event.usage.output_tokens)
        usage, cache = options.usage_json(event.usage)
        if event.error and event.reason != engine.FinishReason.ERROR:
            self._say(Event("notice", {"text": event.error, "code": "ended"}))

        def work() -> Ended | None:
            if not len(ids) and not choice.text and event.reason in ("abort", "error"):
                self._store.abandon(choice.answer)
                return None
            return self._store.finish(
                choice.answer,
                ids=ids,
                parts=choice.parts,
                finish_reason=event.reason.value,
                usage={**usage, "cache": cache},
                timing=timing,
                stopped=event.stopped,
                holds=choice.reasoning or None,
                extra={"error": event.error} if event.error else None,
            )

        ended = await self._save(work)
        placed = None if ended is None else ended.placed
        if self.ask.n == 1:  # samples of one prompt get branches of their own anyway
            self._say_branch(placed)
        if placed is None and ended is not None:
            placed = begun.answers[event.choice].placed
        body: dict[str, Any] = {
            "session": begun.session,
            "message": None if ended is None else choice.answer,
            "parent": parent,
            "branch": None if placed is None else placed.branch,
            "model": loaded.name,
            "dtype": loaded.dtype,
            "choice": event.choice,
            "seed": request.params.seed,
            "text": choice.text,
            "reasoning": choice.reasoning or None,
            "finish_reason": event.reason.value,
            "usage": usage,
            "cache": cache,
            "timing": timing,
        }
        if request.params.logprobs is not None:
            body["logprobs"] = [options.logprob_json(each) for each in choice.logprobs]
        self._say(Event("message", body))
        return body

    async def _save(self, work: Callable[[], Ended | None]) -> Ended | None:
        """Until it is saved: a full disk costs a line and time, not the answer."""
        told = False
        while True:
            try:
                return await self._desk.run(work)
            except RadchatError as error:
                if not isinstance(error.__cause__, SaveFailed):
                    raise
                if not told:
                    text = f"the answer is not saved yet: {error.message}"
                    self._say(Event("notice", {"text": text, "code": "not_saved"}))
                    told = True
            await asyncio.sleep(SAVE_AGAIN_S)

    async def _done(
        self, ended: list[dict[str, Any]], begun: Begun, request: Request, loaded: Loaded
    ) -> dict[str, Any]:
        ended.sort(key=lambda body: int(body["choice"]))
        first = ended[0]
        session = await self._desk.run(lambda: self._store.session(begun.session))
        cached = first["usage"]["cached_input_tokens"]
        speed = loaded.engine.prefill_tokens_per_s
        outputs = sum(body["usage"]["output_tokens"] for body in ended)
        return {
            "session": session.id,
            "name": session.name,
            "parent": first["parent"],
            "branches": ended,
            "usage": {**first["usage"], "output_tokens": outputs},
            "cache": first["cache"],
            "timing": first["timing"],
            "head": {"branch": first["branch"], "message": first["message"] or first["parent"]},
            "context": {
                "used": len(request.ids) + first["usage"]["output_tokens"],
                "limit": options.context_limit(loaded, self.ask.options),
            },
            "saved_s": cached / speed if speed else None,
        }


def _check(loaded: Loaded, request: Request) -> int:
    """On the engine's thread: refuse what could never run; how much of it is cached."""
    loaded.engine.check_request(request)
    return loaded.engine.probe(request.ids)
