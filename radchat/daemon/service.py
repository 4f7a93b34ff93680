"""The daemon's methods, one for each name in protocol.METHODS. The signature is the contract.

The one place where sessions meet the engine. One class in several files, each adding to the one
before: ``base``, the ``*_methods``, and here: the service's life, control, models, answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from radchat.config import Config
from radchat.daemon.answering import Answer
from radchat.daemon.arguments import ChatHead, FileText, Generate, Given, Kind, Options
from radchat.daemon.awake import awake_time
from radchat.daemon.compact_plan import Compact
from radchat.daemon.compacting import Compaction
from radchat.daemon.engines import Engines
from radchat.daemon.finding import find_session
from radchat.daemon.grammar_asked import GrammarAsked
from radchat.daemon.handing import beside
from radchat.daemon.opener import Opener
from radchat.daemon.programs import Program
from radchat.daemon.search_marks import SearchMarks
from radchat.daemon.search_runs import Asking
from radchat.daemon.searches import Search
from radchat.daemon.streams import Running, Stream
from radchat.daemon.tools import Result, Tool, ToolChoice
from radchat.daemon.worker import Worker
from radchat.errors import InvalidInput, RadchatError
from radchat.paths import Places
from radchat.protocol import Event, State, Where
from radchat_sessions.errors import StoreError

log = logging.getLogger(__name__)

TICK_S = 1.0
STEP_S = 3.0  # a step in progress may take so long in all; at the end of the daemon
POLL_S = 0.1
CLOSE_S = 8.0  # for the engines' KV to be written (engines.FLUSH_S) after the step in progress
DISK_CLOSE_S = 3.0  # for the KV index; after it nothing is left to do
EXIT_BROKEN = 70


class Service(SearchMarks):
    def __init__(
        self,
        places: Places,
        config: Config,
        *,
        available: Callable[[], int] | None = None,
        clock: Callable[[], float] = awake_time,
        opener: Opener | None = None,
    ) -> None:
        """For tests, ``available``: bytes free on this machine; ``clock``: of the keep-alive;
        ``opener``: with a machine of its own.
        """
        worker = Worker(_engine_broke)
        engines = Engines(places, config, worker, available=available, clock=clock, opener=opener)
        super().__init__(places, config, worker, engines)
        self._answers: dict[str, tuple[Answer, Running]] = {}
        self._programs: dict[str, Program] = {}
        self._program_runs: dict[str, set[int | None]] = {}
        self._searches: dict[str, Search] = {}
        self._asking: dict[str, Asking] = {}

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        await asyncio.gather(self._desk.open(), self._disk.open())
        for left in self._desk.stored.recovered:
            kept = "kept as it was" if left.message is not None else "nothing had been said"
            log.info(
                "answer %s was cut off by the end of the last daemon: %s", left.answer[:8], kept
            )
        self._worker.start()
        await self._desk.run(lambda: self._pins.read(self._desk.stored))
        self._engines.on_loaded = self._apply_pins
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        self._ticker.cancel()
        for answer, task in list(self._answers.values()):
            _end(answer, task)
            answer.last_chance()
        for task in self._tasks - {task for _, task in self._answers.values()}:
            task.cancel()
        if await self._have_ended():
            try:
                await asyncio.wait_for(self._engines.close(), CLOSE_S)
            except TimeoutError:
                log.warning("the engines are still at work: what they didn't write isn't on disk")
            await beside(self._worker.stop)
        await self._desk.close()  # before the KV disk, which may hang
        try:
            await asyncio.wait_for(self._disk.close(), DISK_CLOSE_S)
        except TimeoutError:
            log.warning("the KV disk does not answer: its index may have to be mended")

    async def _have_ended(self) -> bool:
        """Wait for what runs to end with the step in progress. False: that takes too long, and is
        let go of, with what the engines have not written to disk.
        """
        idle = self._worker.call(lambda: None)
        ends = asyncio.gather(*self._tasks, idle, return_exceptions=True)
        while not ends.done():
            await asyncio.wait({ends}, timeout=POLL_S)
            if self._worker.step_s > STEP_S and not self._worker.has_let_go:
                log.warning("not waited for: a step that has taken %.0f s", self._worker.step_s)
                self._worker.let_go()
        return not self._worker.has_let_go

    @property
    def state(self) -> State:
        return "loading" if self._engines.loading is not None else "ready"

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._engines.unload_idle()
                if not self.busy:  # nothing ends in mid-answer
                    await self._expire_pins()
                    await self._disk.tidy()
            except Exception:
                log.exception("the service's look at itself failed")

    # -- control ---------------------------------------------------------------------------------

    async def cancel(self, request: str, choice: int | None = None) -> dict[str, Any]:
        """All answers of a command, or the one of this number; what it said is kept."""
        found = self._answers.get(request)
        if found is not None and choice is not None:
            return {"cancelled": found[0].cancel_one(choice)}
        if found is not None:
            _end(*found)
        return {"cancelled": found is not None or self._cancel_run(request, choice)}

    # -- answers ---------------------------------------------------------------------------------

    def generate(
        self,
        where: Where,
        kind: Kind = "turn",
        text: str = "",
        texts: list[str] | None = None,
        before: str = "",
        files: list[FileText] | None = None,
        system: str | None = None,
        session: str | None = None,
        new_session: bool | str | None = None,
        ephemeral: bool = False,
        at: str | None = None,
        ref: str | None = None,
        branch: str | None = None,
        head: ChatHead | None = None,
        n: int = 1,
        named: bool = True,
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        think: str | None = None,
        options: Options | None = None,
        grammar: GrammarAsked | None = None,
        jump: bool = True,
        tools: list[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel: bool = True,
        call_parts: bool = False,
        messages: list[Given] | None = None,
        all_told: bool = False,
        key: str = "",
        passing: bool = False,
        results: list[Result] | None = None,
        facts: str = "",
        only_terminal: bool = False,
        request: str | None = None,
    ) -> Stream:
        """One answer, n of them, or one to each of ``texts``, as events; closing the stream cancels
        them. ``named`` False: they are on no branch, and HEAD stays. ``request``: the id to
        ``cancel`` them by, before ``init`` tells it; one that ends before it has begun ends
        without a word.
        """
        if request in self._answers:
            raise InvalidInput(f"request {request} is being answered already", field="request")
        ask = Generate(
            where=where,
            kind=kind,
            text=text,
            texts=tuple(texts or ()),
            before=before,
            files=tuple(files or ()),
            system=system,
            session=session,
            new_session=bool(new_session),
            name=new_session if isinstance(new_session, str) else None,
            ephemeral=ephemeral,
            at=at,
            ref=ref,
            branch=branch,
            head=head,
            n=n,
            named=named,
            model=model,
            dtype="fp32" if exact else dtype,
            think=think,
            options={k: v for k, v in (options or {}).items() if v is not None},
            grammar=grammar,
            jump=jump,
            tools=tuple(tools or ()),
            tool_choice=tool_choice,
            parallel=parallel,
            call_parts=call_parts,
            messages=tuple(messages or ()),
            all_told=all_told,
            key=key,
            passing=passing,
            results=tuple(results or ()),
            facts=facts,
            only_terminal=only_terminal,
            request=request,
        )
        stream = Stream("generate")
        answer = Answer(ask, self._desk, self._engines, self._worker, stream.say)

        def forget(task: Running) -> None:
            self._tasks.discard(task)
            del self._answers[answer.id]

        task = stream.start(
            answer.run,
            stop=lambda task: _end(answer, task),
            has_begun=lambda: answer.has_begun,
        )
        self._answers[answer.id] = answer, task
        self._tasks.add(task)
        task.add_done_callback(forget)
        return stream

    def compact(
        self,
        where: Where,
        session: str | None = None,
        head: ChatHead | None = None,
        text: str = "",
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        think: str | None = None,
        options: Options | None = None,
    ) -> Stream:
        """A branch that begins with a summary of the path; closing the stream leaves none."""
        given = {k: v for k, v in (options or {}).items() if v is not None}
        wanted = "fp32" if exact else dtype
        ask = Compact(where, session, head, text, model, wanted, think, given)
        stream = Stream("compact")
        task = stream.start(
            Compaction(ask, self._desk, self._engines, self._worker, stream.say).run
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def models_load(
        self,
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        session: str | None = None,
        where: Where | None = None,
        head: ChatHead | None = None,
        restore: bool = False,
    ) -> Stream:
        """Have a model ready: asked for, the session's, or the default. ``restore``: and then, when
        that was told, the KV on disk of where the session stands, in the background.
        """
        stream = Stream("models.load")
        wanted = "fp32" if exact else dtype

        def own() -> str | None:
            if where is None:
                return None
            try:
                return find_session(self._desk.stored, session, where).model
            except (RadchatError, StoreError):
                return None

        async def load() -> None:
            if told := self._disk.tell_once():
                stream.say(told)
            entry = await self._engines.choose(model, await self._desk.run(own))
            async with self._engines.using(entry, wanted, stream.say) as loaded:
                asked = (where, session, head) if restore else (None, None, None)
                body = {
                    "model": loaded.name,
                    "dtype": loaded.dtype,
                    "context": loaded.context_length,
                    "restoring": await self._restore(*asked, loaded),
                }
                stream.say(Event("done", body))

        stream.start(load)
        return stream

    async def models_unload(self, model: str | None = None) -> dict[str, Any]:
        """Unload one model, in every dtype it is loaded in, or all."""
        for task in self._restores:  # ahead of somebody who has gone, or goes
            task.cancel()
        await asyncio.gather(*self._restores, return_exceptions=True)
        gone = await self._engines.unload(model)
        return {
            "unloaded": bool(gone),
            "models": list(dict.fromkeys(name for name, _ in gone)),
            "engines": [{"model": name, "dtype": dtype} for name, dtype in gone],
        }


def _end(answer: Answer, task: Running) -> None:
    if answer.cancel():
        task.cancel()


def _engine_broke(error: BaseException) -> None:
    """Crash-only: the transcript is whole, the next command starts another daemon."""
    log.critical("the engine is broken (%s): the daemon ends", type(error).__name__)
    logging.shutdown()
    os._exit(EXIT_BROKEN)
