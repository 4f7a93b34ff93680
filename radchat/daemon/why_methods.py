"""`cache why`: how an answer's prompt was made up when it was asked, and what it reuses now."""

from __future__ import annotations

from typing import Any

from radchat.daemon.arguments import ChatHead
from radchat.daemon.context_methods import ContextMethods
from radchat.daemon.disk_paths import num_in
from radchat.daemon.forecast import Path
from radchat.daemon.handing import beside
from radchat.daemon.options import REMOTE
from radchat.daemon.turns import shown
from radchat.engine.request import Ids, Tiers
from radchat.errors import InvalidInput, NotFound
from radchat.protocol import Where
from radchat_sessions.messages import Message
from radchat_sessions.store import Store

_Found = tuple[Store, dict[str, Any], list[tuple[Message, Ids]]]


class WhyMethods(ContextMethods):
    async def cache_why(
        self,
        where: Where,
        ref: str = "HEAD",
        session: str | None = None,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """Of an answer, or of every answer to a user message. Looks, and disturbs nothing."""

        def look() -> _Found:
            store, _, target = self._target(where, session, head, ref)
            about = {"session": target.session, "name": store.session(target.session).name}
            asked = []
            for answer in _answers(store, target.session, target.message):
                assert answer.prompt is not None
                asked.append((answer, _asked_ids(store, answer)))
            return store, about, asked

        store, about, asked = await self._desk.run(look)
        rows = [_answer_json(*pair, await self._tiers_now(store, *pair)) for pair in asked]
        return {**about, "answers": rows}

    async def _tiers_now(self, store: Store, answer: Message, ids: Ids) -> Tiers | None:
        """Where it is now, for the model and dtype that answered; None: not loaded, nor on disk."""
        mine = answer.model, answer.dtype
        if answer.dtype == REMOTE:
            return None
        engines = [each.engine for each in self._engines.all if (each.name, each.dtype) == mine]
        if engines:
            return await self._worker.look(lambda: engines[0].probe_tiers(ids))
        path = Path(ids, *mine, "", answer.created)
        kept = await beside(lambda: self._path_on_disk(store, path))
        num = num_in(kept, 0, len(ids))
        return Tiers(0, num) if num else None


def _answers(store: Store, session: str, message: str | None) -> list[Message]:
    """The answer, or the answers to a user message, whose prompts are known."""
    if message is None:
        raise NotFound("there is no answer here yet")
    target = store.message(message)
    found = [target]
    if target.role != "assistant":
        found = [m for m in store.children(message, session) if m.role == "assistant"]
        if not found:
            raise NotFound(
                f"{message[:4]} has no answer yet: name an answer, or a turn that has one"
            )
    known = [answer for answer in found if answer.prompt is not None]
    if not known:
        raise InvalidInput(f"{found[0].id[:4]} came as text: no prompt was asked for it")
    return known


def _asked_ids(store: Store, answer: Message) -> Ids:
    """The ids of the request: of a continued answer, what was said of it before is part of them."""
    assert answer.prompt is not None
    ids = store.prompt_ids(answer.prompt)
    num = (answer.usage or {}).get("input_tokens") or 0
    if num > len(ids):
        ids.extend((store.out(answer.id) or ids[:0])[: num - len(ids)])
    return ids


def _answer_json(answer: Message, ids: Ids, tiers: Tiers | None) -> dict[str, Any]:
    usage, num = answer.usage or {}, len(ids)
    unknown = dict.fromkeys(("matched", "restored", "computed", "parts", "ended"))
    now = None
    if tiers is not None:
        device = min(tiers.device, num - 1)  # the last one always runs
        disk = min(tiers.disk, num - 1 - device)
        now = {"device": device, "host": 0, "disk": disk, "computed": num - device - disk}
    return {
        "message": answer.id,
        "parent": answer.parent,
        "text": shown(answer),
        "model": answer.model,
        "dtype": answer.dtype,
        "input_tokens": num,
        "cache": usage.get("cache"),
        **(usage.get("reuse") or unknown),
        "now": now,
        "now_why_not": None if now else _why_not(answer),
    }


def _why_not(answer: Message) -> str:
    if answer.dtype == REMOTE:
        return f"{answer.model} runs elsewhere: what it would reuse, its engine knows"
    return f"{answer.model} {answer.dtype} is not loaded"
