"""Methods for what a search has judged: scores, and the KV of what it does not follow any more."""

from __future__ import annotations

from typing import Any

from radchat.daemon.disk_paths import num_in, spans_on_disk
from radchat.daemon.fill_requests import Wanted
from radchat.daemon.forecast import path_to
from radchat.daemon.held import Held, held_of
from radchat.daemon.search_methods import SearchMethods
from radchat.daemon.searches import Search
from radchat.errors import InvalidInput
from radchat_sessions import scores
from radchat_sessions.store import Store


class SearchMarks(SearchMethods):
    async def search_mark(self, search: str, marks: dict[str, str]) -> dict[str, Any]:
        """Names and scores of messages, ``s1.1.2=7.5``: all of them, or none."""
        found = self._search(search)
        own = f"s{found.number}."
        for value in marks.values():
            name, number = scores.read(value)
            if name is None or not name.startswith(own) or (number is None and value != name):
                raise InvalidInput(
                    f"marks: want {own}1 or {own}1=7.5 (got {value!r})", field="marks"
                )

        def mark() -> None:
            with found.store.as_one():
                for message, value in marks.items():
                    found.require(message)
                    found.store.add_label(found.session, message, value, "score")

        await self._desk.run(mark)
        return {"marked": len(marks)}

    async def search_release(self, search: str, messages: list[str]) -> dict[str, Any]:
        """The KV of these messages and all that follows them leaves the device, but for what others
        share, a request relies on, a pin keeps or a branch stands on. Where paths without a branch
        are kept on disk, it is written there first: ``kept_tokens`` are found there.
        """
        found = self._search(search)

        async def work() -> dict[str, Any]:
            going = await self._desk.run(lambda: _going(found, messages))
            kept = 0
            if self._keeps(found):
                kept = await self._kept_on_disk(found, going)
            snapshot = await self._snapshot(found.loaded)
            freed = 0
            if snapshot is not None:

                def look() -> dict[str, Held]:
                    return held_of(found.store, found.session, snapshot)

                freed = await self._forget(snapshot, await self._desk.run(look), going)
            num_bytes = freed * found.loaded.bytes_per_token
            return {"freed_tokens": freed, "freed_bytes": num_bytes, "kept_tokens": kept}

        return await found.run(work())

    def _keeps(self, search: Search) -> bool:
        """Whether its paths are kept on disk: they are on no branch."""
        is_stored = search.store is self._desk.stored and search.cache
        return is_stored and self._disk.store is not None and self._disk.keeps_unnamed

    async def _kept_on_disk(self, search: Search, going: set[str]) -> int:
        """Write what is cached of these messages' paths; how many of their tokens are on disk."""
        for wanted in await self._desk.run(lambda: _ends(search, going)):
            await self._write(search.loaded, wanted)
        blocks = self._disk.blocks(search.loaded.model.fingerprint)
        assert blocks is not None

        def look(store: Store) -> int:
            spans = store.spans(search.session)
            mine = {each: spans[each] for each in going & spans.keys()}
            tokenizer = search.loaded.tokenizer.hash
            there = spans_on_disk(store, mine, store.stands(search.session), blocks, tokenizer)
            return sum(
                num_in(there[each].ranges, span.start, span.stop)
                for each, span in mine.items()
                if each in there
            )

        return await self._desk.run(lambda: look(search.store))


def _going(search: Search, messages: list[str]) -> set[str]:
    """These and all that follows them, but for the paths to HEAD and branches: people talk."""
    for message in messages:
        search.require(message)
    store, session = search.store, search.session
    parents = {each.id: each.parent for each in store.messages(session)}  # before children
    going = set(messages)
    for message, parent in parents.items():
        if parent in going:
            going.add(message)
    for end in (store.head(session).message, *(b.message for b in store.branches(session))):
        at = end
        while at in going:
            going.remove(at)
            at = parents[at]
    return going


def _ends(search: Search, going: set[str]) -> list[Wanted]:
    """The longest paths through these."""
    store = search.store
    ends = going - {store.parent(message) for message in going}
    paths = [(message, path_to(store, message)) for message in sorted(ends)]
    name = search.place.session.name
    return [
        Wanted(store, search.session, name, None, message, path)
        for message, path in paths
        if path is not None
    ]
