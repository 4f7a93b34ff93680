"""What fills the context of a path, in tokens: the figures of `/context` and of a status line."""

from __future__ import annotations

from typing import Any

from radchat.daemon import options as opts
from radchat.daemon import views
from radchat.daemon.arguments import ChatHead, Options
from radchat.daemon.disk_paths import num_in
from radchat.daemon.evict_methods import EvictMethods
from radchat.daemon.filling import KINDS, PARTS, fill, largest, next_prompt
from radchat.daemon.finding import Place
from radchat.daemon.forecast import path_to
from radchat.daemon.loaded import Loaded
from radchat.daemon.past import Past
from radchat.daemon.tools import settings_of
from radchat.engine.request import Ids
from radchat.protocol import Where
from radchat_sessions.messages import Message
from radchat_sessions.store import Store


class ContextMethods(EvictMethods):
    async def context(
        self,
        where: Where,
        session: str | None = None,
        head: ChatHead | None = None,
        text: str = "",
        model: str | None = None,
        think: str | None = None,
        options: Options | None = None,
    ) -> dict[str, Any]:
        """What the next prompt of this path consists of, if its message is ``text``.

        Exact with the session's model loaded; none is loaded to look: else what each message is
        known to have added (``exact`` false, no limit). ``think`` back: what the model makes of
        it, where that is not what was asked; else None.
        """

        def own() -> tuple[str | None, str | None]:
            store, place = self._place(where, session, head)
            answers = (m.dtype for m in reversed(store.path(place.message)) if m.dtype)
            return place.session.model, next(answers, None)

        sessions, dtype = await self._desk.run(own)
        entry = await self._engines.choose(model, sessions)
        loaded = self._engines.of(entry.name, dtype)

        def look() -> tuple[dict[str, Any], Ids | None]:
            store, place = self._place(where, session, head)
            path = store.path(place.message)
            if loaded is None:
                return _stored(store, place, path, entry.name, self._disk_part(store, place)), None
            return _exact(store, place, path, loaded, text, think, options or {})

        body, ids = await self._desk.run(look)
        if loaded is not None and loaded.is_remote:  # what it would reuse, its engine knows
            body["cached"] = {"device": 0, "host": 0, "disk": 0, "remote": None}
            body["computed"] = None
        elif loaded is not None and ids is not None:
            engine = loaded.engine
            tiers = await self._worker.look(lambda: engine.probe_tiers(ids))
            body["cached"] = {"device": tiers.device, "host": 0, "disk": tiers.disk}
            body["computed"] = len(ids) - tiers.device - tiers.disk
        return body

    def _disk_part(self, store: Store, place: Place) -> int:
        """How many tokens of the path so far are on disk. On the desk."""
        read = path_to(store, place.message)
        return 0 if read is None else num_in(self._path_on_disk(store, read), 0, len(read.ids))


def _body(place: Place, model: str) -> dict[str, Any]:
    return {
        "session": place.session.id,
        "name": place.session.name,
        "branch": place.branch,
        "head": place.message,
        "model": model,
    }


def _exact(
    store: Store,
    place: Place,
    path: list[Message],
    loaded: Loaded,
    text: str,
    think: str | None,
    given: Options,
) -> tuple[dict[str, Any], Ids]:
    switches, about = opts.switches(loaded, think)
    settings = settings_of(place.session, loaded.template, switches)
    known = Past(store, path).turns(loaded.tokenizer.hash)
    ids = next_prompt(loaded.template, known, settings, text).ids
    open_mark = loaded.template.facts.form.open_mark
    filling = fill(loaded.tokenizer, open_mark, ids, path, text)
    limit = opts.context_limit(loaded, given)
    body = {
        **_body(place, loaded.name),
        "dtype": loaded.dtype,
        "exact": True,
        "think": about,
        "used": _used(store, path),
        "tokens": len(ids),
        "limit": limit,
        "free": max(0, limit - len(ids)),
        "parts": filling.parts,
        "messages": largest(path, filling.messages),
    }
    return body, ids


def _used(store: Store, path: list[Message]) -> int | None:
    """Tokens up to the end of the last answer, as its footer told; None where it was given as
    text, or something was said after it.
    """
    last = path[-1] if path else None
    if last is None or last.prompt is None:
        return None if path else 0
    return store.prompt(last.prompt).length + (last.out_len or 0)


def _stored(
    store: Store, place: Place, path: list[Message], model: str, disk: int
) -> dict[str, Any]:
    """Without a tokenizer: what is on record, the template's part not told from what was said."""
    tokens = [number or 0 for number in views.tokens_of(store, place.session.id, path)]
    parts = dict.fromkeys(PARTS, 0)
    for message, number in zip(path, tokens, strict=True):
        parts[KINDS[message.role]] += number
    return {
        **_body(place, model),
        "dtype": None,
        "exact": False,
        "think": None,
        "used": _used(store, path),
        "tokens": sum(tokens),
        "limit": None,
        "free": None,
        "parts": parts,
        "messages": largest(path, tokens),
        "cached": {"device": 0, "host": 0, "disk": disk},
        "computed": sum(tokens) - disk,
    }
