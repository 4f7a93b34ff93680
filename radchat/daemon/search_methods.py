"""Methods for searches: the algorithm runs in its client, which asks here for thoughts and scores.

``search.open`` is a stream that stays open while the search runs. When it ends, whoever ended it,
all that runs for it ends too. What is stored stays: ``resume`` goes on from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from radchat.daemon import options as given_options
from radchat.daemon.arguments import ID_LEN, ChatHead, Options
from radchat.daemon.program_methods import ProgramMethods
from radchat.daemon.program_runs import Scores, fill_request, hear
from radchat.daemon.search_asks import Ask, check, prepared, said_ids
from radchat.daemon.search_runs import Asking
from radchat.daemon.searches import OVER, Opening, Search
from radchat.daemon.streams import Stream
from radchat.engine.request import MAX_CHOICES, Ids
from radchat.errors import Busy, InvalidInput, NotFound
from radchat.protocol import Event, Where

MAX_SEARCHES = 64


class SearchMethods(ProgramMethods):
    _asking: dict[str, Asking]  # by request

    def search_open(
        self,
        where: Where,
        session: str | None = None,
        new_session: bool | str | None = None,
        ephemeral: bool = False,
        at: str | None = None,
        head: ChatHead | None = None,
        resume: bool | str | None = None,
        system: str | None = None,
        model: str | None = None,
        dtype: str | None = None,
        exact: bool = False,
        think: str | None = None,
        options: Options | None = None,
        cache: bool = True,
        jump: bool = True,
        only_terminal: bool = False,
    ) -> Stream:
        """A search, until the stream is closed. ``at``: the message its first words follow, HEAD
        else; ``resume``: go on with a stored one, the last or ``s1``; ``options``: of asks that
        give none; ``cache`` False: no request reuses what another computed, and n answers are n
        prompts. Without ``think`` the model doesn't reason, where its template has a switch for
        that.

        ``init`` tells the search's id and number, its session and place, and, of one that is gone
        on with, ``found``: {"at": where it began, "messages": all that it made and what was said
        below, parents first}. A session made here in which nothing was said goes when the search
        ends.
        """
        if len(self._searches) >= MAX_SEARCHES:
            raise Busy(f"{MAX_SEARCHES} searches are open already: try again later")
        asked = Opening(
            where,
            session,
            bool(new_session),
            new_session if isinstance(new_session, str) else None,
            ephemeral,
            at,
            head,
            resume or None,
            system,
            only_terminal,
        )
        stream = Stream("search.open")
        given = {name: value for name, value in (options or {}).items() if value is not None}

        async def work() -> None:
            own, own_dtype = await self._desk.run(lambda: asked.wanted(self._desk))
            entry = await self._engines.choose(model, own)
            wanted = "fp32" if exact else dtype or own_dtype
            async with self._engines.using(entry, wanted, stream.say) as loaded:
                switches, about = given_options.switches(loaded, think or "off")
                if about is not None and think is not None:
                    stream.say(Event("notice", {"text": about, "code": "think"}))
                sampling = self._engines.given(loaded, given)
                given_options.checked_params(sampling, loaded)
                search = Search(
                    loaded,
                    asked,
                    sampling,
                    switches,
                    given_options.context_limit(loaded, sampling),
                    thinks=think not in (None, "off"),
                    cache=cache,
                    jump=jump,
                )
                others = list(self._searches.values())
                self._searches[search.id] = search
                try:
                    for each in others:
                        if each.is_over:  # its client was killed a moment ago, say
                            await each.gone.wait()
                    going = [each for each in others if not each.is_over]
                    await self._desk.run(lambda: search.begin(self._desk, going))
                    stream.say(Event("init", await self._desk.run(search.shown)))
                    await asyncio.Event().wait()  # until it is cancelled
                finally:
                    await search.end()
                    del self._searches[search.id]
                    search.gone.set()
                    await self._desk.run(search.forget)

        task = stream.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def search_ask(self, search: str, asks: list[Ask], request: str | None = None) -> Stream:
        """Have asks answered (search_asks.py), all of them side by side. Each is stored when all
        its answers have ended, and then told:

        ``delta`` {"ask", "choice", "text", "forced"}, ``reasoning`` likewise; ``answer`` {"ask",
        "user", "outputs", "usage", "cache", "seed"}; ``failed`` {"ask", "error"}: the others go on;
        ``done`` {"session", "name", "usage", "cache"}: sums of what is stored.

        Closing the stream, or ``cancel`` of ``request`` (of one ask: ``choice`` is its number),
        ends what has not ended: nothing of it is stored.
        """
        found = self._search(search)
        if request is not None and not (request.isalnum() and len(request) == ID_LEN):
            raise InvalidInput(f"request: want {ID_LEN} letters and digits", field="request")
        if request in self._asking:
            raise InvalidInput(f"request {request} runs already", field="request")
        params = check(found, asks)
        stream = Stream("search.ask")
        asking = Asking(found, asks, params, self._desk, self._disk, self._worker, stream.say)
        if request is not None:
            self._asking[request] = asking

        def forget(_: object) -> None:
            asking.release()
            if request is not None:
                del self._asking[request]

        def work() -> Coroutine[Any, Any, None]:
            return found.run(asking.run())

        stream.start(work, has_begun=lambda: True).add_done_callback(forget)
        return stream

    async def search_score(
        self, search: str, at: str | None, text: str, choices: list[str]
    ) -> dict[str, Any]:
        """The mean log probability of each choice's tokens, were it the answer to ``text`` after
        ``at``. All are scored over one prompt, that is computed once; nothing is stored.
        """
        found = self._search(search)
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise InvalidInput(
                f"choices: want 1 to {MAX_CHOICES} (got {len(choices)})", field="choices"
            )
        if not all(choices):
            raise InvalidInput("choices: an empty text can't be scored", field="choices")

        def read() -> tuple[Ids, list[Ids]]:
            made = prepared(found, at, text)
            ids = [said_ids(found, made, choice) for choice in choices]
            return made.ids, ids

        async def work() -> dict[str, Any]:
            before, ids = await self._desk.run(read)
            asked = [
                fill_request(before + each, found.namespace(), score_from=len(before))
                for each in ids
            ]
            scores = Scores(asked)
            await hear(self._worker, found.loaded.key, asked, scores.take)
            return scores.body()

        return await found.run(work())

    def _search(self, name: str) -> Search:
        found = self._searches.get(name)
        if found is None:
            raise NotFound(f"no search {name} is open: {OVER}")
        return found

    def _cancel_run(self, request: str, choice: int | None) -> bool:
        if request in self._asking:
            return self._asking[request].cancel(choice)
        return super()._cancel_run(request, choice)
