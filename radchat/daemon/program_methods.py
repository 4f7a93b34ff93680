"""Methods for programs: their states live here, as turns and exact ids; the client has numbers.

``program.open`` is a stream that stays open while the program runs. When it ends, whoever ended
it, all that runs for the program ends and its states are forgotten. Nothing of it is on disk
unless it is saved.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from radchat.daemon import options as given_options
from radchat.daemon.arguments import ID_LEN, Options
from radchat.daemon.control_methods import ControlMethods
from radchat.daemon.disk import kept_name
from radchat.daemon.grammar_asked import GrammarAsked, compiled
from radchat.daemon.handing import beside
from radchat.daemon.program_runs import Generation, Scores, fill_request, hear
from radchat.daemon.program_saving import Asked, Saved, save
from radchat.daemon.program_states import Frame, Role
from radchat.daemon.programs import OVER, Held, Program
from radchat.daemon.streams import Stream
from radchat.engine.conversation import Settings
from radchat.engine.request import (
    MAX_CHOICES,
    Finished,
    Priority,
    Request,
    SamplingParams,
    Usage,
)
from radchat.engine.request import Event as EngineEvent
from radchat.errors import Busy, InvalidInput, NotFound
from radchat.protocol import Event, Where

MAX_PROGRAMS = 64
WORTH_WARMING = 16  # tokens that a fork's branches would each have to wait for


class ProgramMethods(ControlMethods):
    _program_runs: dict[str, set[int | None]]  # by request: the choices cancelled, None is all

    def program_open(
        self,
        where: Where,  # noqa: ARG002 - every command says where it comes from
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        think: str | None = None,
        options: Options | None = None,
        cache: bool = True,
        jump: bool = True,
        save: str | None = None,
    ) -> Stream:
        """A program, until the stream is closed; state 0 is empty. ``options``: of generations that
        give none. ``cache`` False: no request reuses what another computed. Without ``think`` the
        model doesn't reason, where its template has a switch for that. ``save``: the name of the
        session it will become, refused now where it can't have it.
        """
        if len(self._programs) >= MAX_PROGRAMS:
            raise Busy(f"{MAX_PROGRAMS} programs are open already: try again later")
        stream = Stream("program.open")
        wanted = "fp32" if exact else dtype
        asked = _given(options)

        async def work() -> None:
            if save is not None:
                await self._desk.run(lambda: self._desk.stored.check_session_name(save))
            entry = await self._engines.choose(model, None)
            async with self._engines.using(entry, wanted, stream.say) as loaded:
                switches, about = given_options.switches(loaded, think or "off")
                if about is not None and think is not None:
                    stream.say(Event("notice", {"text": about, "code": "think"}))
                given = self._engines.given(loaded, asked)
                clock = datetime.now().astimezone().replace(microsecond=0)
                frame = Frame(
                    loaded.template,
                    loaded.tokenizer,
                    Settings(clock=clock, switches=switches),
                    given_options.context_limit(loaded, given),
                )
                sampling = given_options.params_json(given_options.checked_params(given, loaded))
                program = Program(loaded, frame, given, sampling=sampling, cache=cache, jump=jump)
                self._programs[program.id] = program
                try:
                    body = {
                        "program": program.id,
                        "model": loaded.name,
                        "dtype": loaded.dtype,
                        "context": frame.limit,
                        "state": 0,
                    }
                    stream.say(Event("init", body))
                    await asyncio.Event().wait()  # until it is cancelled
                finally:
                    del self._programs[program.id]
                    await program.end()

        task = stream.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    # -- saying ------------------------------------------------------------------------------------

    async def program_say(
        self, program: str, state: int, role: Role, text: str, ends: bool = False
    ) -> dict[str, Any]:
        """A system's or user's message; text of the assistant's turn, which ``ends`` closes; or raw
        text, in a state without messages. ``tokens``: of the ids that are known now.
        """
        found, held = self._held(program, state)

        async def work() -> dict[str, Any]:
            before = held.state
            held.state = await self._desk.run(lambda: before.say(role, text, ends=ends))
            return {"tokens": len(held.state.ids), "text": text}

        return await found.run(held, work())

    async def program_show(self, program: str, state: int) -> dict[str, Any]:
        return self._held(program, state)[1].state.shown()

    # -- running -----------------------------------------------------------------------------------

    def program_gen(
        self,
        program: str,
        state: int,
        max_tokens: int | None = None,
        options: Options | None = None,
        n: int = 1,
        grammar: GrammarAsked | None = None,
        request: str | None = None,
    ) -> Stream:
        """Have the model go on; with ``n`` > 1 the state goes on with the first sample. Closing the
        stream, or ``cancel`` of ``request``, ends it, and the state is as it was.
        """
        found, held = self._held(program, state)
        if not 1 <= n <= MAX_CHOICES:
            raise InvalidInput(f"n: want 1 to {MAX_CHOICES} (got {n})", field="n")
        if request is not None and not (request.isalnum() and len(request) == ID_LEN):
            raise InvalidInput(f"request: want {ID_LEN} letters and digits", field="request")
        if request in self._program_runs:
            raise InvalidInput(f"request {request} runs already", field="request")
        asked = {**found.options, **_given(options)}
        if max_tokens is not None:
            asked["max_tokens"] = max_tokens
        params = given_options.checked_params(asked, found.loaded)
        stream = Stream("program.gen")
        name = request or secrets.token_hex(8)

        self._program_runs[name] = set()

        def work() -> Coroutine[Any, Any, None]:
            return found.run(held, self._generate(found, held, params, n, grammar, name, stream))

        task = stream.start(work, has_begun=lambda: True)
        task.add_done_callback(lambda _: self._program_runs.pop(name))
        return stream

    async def _generate(
        self,
        program: Program,
        held: Held,
        params: SamplingParams,
        n: int,
        grammar: GrammarAsked | None,
        name: str,
        stream: Stream,
    ) -> None:
        before = held.state
        ready = await self._desk.run(lambda: before.opened().going_on().check())
        at = ready.open
        assert at is not None
        made = None
        if grammar is not None:
            opens = at.how.opens_reasoning and not at.out
            after = program.frame.template.facts.form.close_mark if opens else ""
            made = await compiled(program.loaded, grammar, stream.say, after)
        asked = Request(
            name,
            ready.ids,
            params,
            n=n,
            priority=Priority.BACKGROUND,
            namespace=program.namespace(),
            grammar=made,
            jump=program.jump,
        )
        run = Generation(ready, asked, stream.say)
        cancelled = self._program_runs[name]
        await hear(self._worker, program.loaded.key, [asked], run.take, cancelled)
        taken = run.taken()
        found = [] if made is None else await beside(run.judged)
        held.state = await self._desk.run(lambda: ready.taken(taken))
        stream.say(Event("done", run.body(found or [{}] * n)))

    async def program_select(self, program: str, state: int, choices: list[str]) -> dict[str, Any]:
        """The choice whose tokens the model finds likeliest on average, which the state then says;
        of equals the first. All are scored over the state's ids, that are computed once.
        """
        found, held = self._held(program, state)
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise InvalidInput(
                f"choices: want 1 to {MAX_CHOICES} (got {len(choices)})", field="choices"
            )
        if not all(choices):
            raise InvalidInput("choices: an empty text can't be scored", field="choices")

        async def work() -> dict[str, Any]:
            before = held.state
            ready = await self._desk.run(lambda: before.opened().going_on().check())
            start = len(ready.ids)
            ids = await self._desk.run(lambda: [ready.encode(choice) for choice in choices])
            for each in ids:
                ready.check(len(each))
            if not start:
                raise InvalidInput(
                    "nothing was said before the choices: what follows nothing has no score",
                    field="choices",
                )
            space = found.namespace()
            asked = [fill_request(ready.ids + each, space, score_from=start) for each in ids]
            scores = Scores(asked)
            await hear(self._worker, found.loaded.key, asked, scores.take)
            body = scores.body()
            best = body["choice"]
            held.state = ready.written(ids[best], choices[best])
            return {**body, "text": choices[best]}

        return await found.run(held, work())

    def _cancel_run(self, request: str, choice: int | None) -> bool:
        if request not in self._program_runs:
            return False
        self._program_runs[request].add(choice)
        self._worker.abort(request, choice)
        return True

    # -- states ------------------------------------------------------------------------------------

    async def program_fork(
        self, program: str, state: int, n: int, hint: bool = True
    ) -> dict[str, Any]:
        """``n`` states with the same ids; with ``hint`` what they share is computed first, once."""
        found, held = self._held(program, state)
        found.room(n)

        async def work() -> dict[str, Any]:
            usage = await self._warm(found, held) if hint and n > 1 and found.cache else _usage()
            found.room(n)  # others may have been made meanwhile
            counts, cache = given_options.usage_json(usage)
            states = [found.add(held.state) for _ in range(n)]
            return {"states": states, "usage": counts, "cache": cache}

        return await found.run(held, work())

    async def _warm(self, program: Program, held: Held) -> Usage:
        ids = await self._desk.run(held.state.next_ids)
        engine, key = program.loaded.engine, program.loaded.key
        missing = len(ids) - await self._worker.call(lambda: engine.probe(ids))
        if missing < WORTH_WARMING:
            return _usage()
        usage = _usage()

        def take(event: EngineEvent) -> None:
            nonlocal usage
            if isinstance(event, Finished):
                usage = event.usage

        await hear(self._worker, key, [fill_request(ids, "")], take)
        return usage

    async def program_drop(self, program: str, states: list[int]) -> dict[str, Any]:
        """What runs for them ends."""
        found = self._program(program)
        await found.drop(states)
        return {"dropped": len(set(states)), "states": len(found.held)}

    async def program_save(
        self,
        program: str,
        state: int,
        where: Where,
        session: str | None = None,
        name: str | None = None,
        branch: str | None = None,
        ephemeral: bool = False,
    ) -> dict[str, Any]:
        """Its messages on a new branch of a session, or of a new session; the state goes on."""
        found, held = self._held(program, state)
        asked = Asked(where, session, name, branch, ephemeral)

        async def work() -> dict[str, Any]:
            at = held.state
            disk = self._engines.disk
            saved: Saved = await disk.saving(
                lambda: self._desk.run(lambda: save(self._desk, found, at, asked))
            )
            if disk.store is not None and saved.store is self._desk.stored and found.cache:
                path = kept_name(saved.session.id, saved.branch), saved.ids
                self._worker.keep(found.loaded.key, [path])
            return saved.to_json()

        return await found.run(held, work())

    # -- which -------------------------------------------------------------------------------------

    def _program(self, name: str) -> Program:
        found = self._programs.get(name)
        if found is None:
            raise NotFound(f"no program {name} is open: {OVER}")
        return found

    def _held(self, name: str, state: int) -> tuple[Program, Held]:
        found = self._program(name)
        return found, found.find(state)


def _given(options: Options | None) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if value is not None}


def _usage() -> Usage:
    return Usage(0, 0, 0)
