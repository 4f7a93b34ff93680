"""Methods on pins: keep the KV of a path for a time, and what is kept."""

from __future__ import annotations

import functools
import logging
from typing import Any

from radchat.daemon.arguments import ChatHead
from radchat.daemon.loaded import Loaded
from radchat.daemon.pin_book import Entry, is_written
from radchat.daemon.ref_methods import RefMethods
from radchat.daemon.turns import shown
from radchat.engine.request import Ids
from radchat.errors import InvalidInput, NotFound, RadchatError
from radchat.protocol import Where
from radchat_sessions.store import Store

log = logging.getLogger(__name__)

HOLD_S = 24 * 3600.0  # how long a pin holds unless told
LONGEST_S = 366 * 24 * 3600.0  # a pin ends


class PinMethods(RefMethods):
    async def cache_pin(
        self,
        where: Where,
        ref: str = "HEAD",
        hold_s: float = HOLD_S,
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """Keep the KV of the path to the end of a message. Raises InvalidInput beyond the limit."""
        if not 0 < hold_s <= LONGEST_S:
            raise InvalidInput(
                "a pin holds for more than 0 s, and at most 366 days", field="hold_s"
            )
        loaded = await self._engine_of(lambda: self._target(where, session, head, ref)[:2])
        if loaded is None:
            raise InvalidInput("the session's model is not loaded: there is no KV to keep yet")

        def look() -> tuple[Store, Entry, Ids | None]:
            store, _, target = self._target(where, session, head, ref)
            if target.message is None:
                raise NotFound("nothing was said here yet: there is nothing to pin")
            until = self._pins.now() + hold_s
            mine = store is self._desk.ephemeral
            entry = Entry(target.session, target.message, until, mine)
            return store, entry, _ids(store, entry, loaded)

        store, entry, ids = await self._desk.run(look)
        if ids is None:
            raise InvalidInput(
                f"{entry.message[:4]} was not read by {loaded.name} yet: there is no KV of it"
            )
        await self._worker.look(lambda: loaded.engine.pin(entry.name, ids))  # or it is refused
        label = self._pins.label(entry)
        try:
            await self._desk.run(
                lambda: store.add_label(entry.session, entry.message, label, "pin")
            )
        except RadchatError:  # removed meanwhile, or a full disk
            await self._worker.call(lambda: loaded.engine.cache.unpin(entry.name))
            raise
        self._pins.add(entry)
        rows = [row for row in await self._pin_rows(loaded) if _is(row, entry)]
        if not rows:  # so short a time is over, or its message was removed meanwhile
            raise InvalidInput("this pin has ended already: let it hold for longer", field="hold_s")
        return {**rows[0], **await self._pin_totals(loaded)}

    async def cache_unpin(
        self,
        where: Where,
        ref: str = "HEAD",
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        def look() -> tuple[str, str | None]:
            target = self._target(where, session, head, ref)[2]
            return target.session, target.message

        found, message = await self._desk.run(look)
        entry = None if message is None else self._pins.find(found, message)
        if entry is None:
            held = ", ".join(sorted(each[:4] for each in self._pins.of(found)))
            also = f": pinned here are {held}" if held else ": nothing is pinned here"
            raise NotFound(f"{(message or 'this place')[:10]} is not pinned{also}")
        await self._unpin([entry])
        return {"session": entry.session, "message": entry.message, "unpinned": True}

    async def _pin_rows(self, loaded: Loaded | None) -> list[dict[str, Any]]:
        """Every pin: whose, how much of it this engine has cached, and how long it holds."""
        held = {}
        if loaded is not None:
            engine = loaded.engine
            held = await self._worker.look(lambda: {pin.name: pin for pin in engine.cache.pins()})

        def work() -> list[dict[str, Any]]:
            rows = []
            for entry in entries:
                store = self._desk.ephemeral if entry.is_ephemeral else self._desk.stored
                if not self._pins.left_s(entry) or not is_written(store, entry):
                    continue  # ended or removed just now
                view = held.get(entry.name)
                rows.append(
                    {
                        "session": entry.session,
                        "name": store.session(entry.session).name,
                        "message": entry.message,
                        "text": shown(store.message(entry.message)),
                        "tokens": None if view is None else view.num_tokens,
                        "held_tokens": 0 if view is None else view.held_tokens,
                        "expires_s": self._pins.left_s(entry),
                    }
                )
            return rows

        await self._drop_lost_pins()
        entries = list(self._pins)
        return await self._desk.run(work)

    async def _pin_totals(self, loaded: Loaded | None) -> dict[str, Any]:
        """What pinned paths hold when all of them is cached, and may hold, in tokens."""
        if loaded is None:
            return {"pin_tokens": None, "pin_limit_tokens": None}

        def count() -> dict[str, Any]:
            cache = loaded.engine.cache
            size = cache.page_size
            return {
                "pin_tokens": cache.pins_want * size,
                "pin_limit_tokens": cache.pin_limit * size,
            }

        return await self._worker.look(count)

    # -- their life ------------------------------------------------------------------------------

    async def _apply_pins(self, loaded: Loaded) -> None:
        """Tell a new engine of its model's pins, the last to end first. Those beyond its limit are
        not kept by it.
        """
        await self._drop_lost_pins()
        for entry in list(self._pins):

            def read(entry: Entry = entry) -> Ids | None:
                store = self._desk.ephemeral if entry.is_ephemeral else self._desk.stored
                return _ids(store, entry, loaded)

            ids = await self._desk.run(read)
            if ids is None:
                continue
            try:
                await self._worker.call(functools.partial(loaded.engine.pin, entry.name, ids))
            except InvalidInput as error:
                log.warning("pin of message %s: %s", entry.message[:8], error.message)

    async def _expire_pins(self) -> None:
        over = self._pins.over()
        if over:
            await self._unpin(over)
            log.info("%d pins have ended", len(over))


def _ids(store: Store, entry: Entry, loaded: Loaded) -> Ids | None:
    """The ids of the path to the end of the message; None where this model has not read it."""
    span = store.span(entry.message)
    model = store.message(entry.message).model or store.session(entry.session).model
    if span is None or model != loaded.name:
        return None
    if store.prompt(span.prompt).tokenizer != loaded.tokenizer.hash:
        return None  # a model of that name, but another
    return store.ids(entry.message)


def _is(row: dict[str, Any], entry: Entry) -> bool:
    return (row["session"], row["message"]) == (entry.session, entry.message)
