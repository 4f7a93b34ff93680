"""Requests that say nothing: they have KV restored, or computed, ahead of who will need it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from radchat.daemon import telling
from radchat.daemon.arguments import FileText
from radchat.daemon.past import Past, turn
from radchat.daemon.remote.engine import RemoteEngine
from radchat.daemon.reuse import about, about_s
from radchat.daemon.tools import settings_of
from radchat.daemon.turns import file_parts
from radchat.engine.conversation import Settings, Turn
from radchat.engine.cuts import common_ids
from radchat.engine.request import (
    Fill,
    Finished,
    Ids,
    Priority,
    Progress,
    Request,
    SamplingParams,
    Tiers,
)
from radchat.errors import InvalidInput
from radchat.protocol import Event
from radchat_sessions.content import text_part
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.daemon.forecast import Path
    from radchat.daemon.loaded import Loaded
    from radchat.daemon.worker import Worker

# Words that begin in ways of their own: what the ids before them have in common stands, whatever is
# typed. A guess too long costs nothing: a match ends where the ids differ.
WORDS = ("a", "7", "\nZ")


class Wanted(NamedTuple):
    """A path somebody wants to have the KV of."""

    store: Store
    session: str
    name: str
    branch: str | None  # that ends there
    message: str
    path: Path


async def fill(
    worker: Worker, loaded: Loaded, how: Fill, ids: Ids, say: Callable[[Event], None]
) -> Finished:
    """In the background; whoever is cancelled here has the request ended. What was restored or
    computed by then stays.
    """
    if isinstance(loaded.engine, RemoteEngine):
        raise InvalidInput(loaded.engine.not_here)
    inbox = worker.inbox()
    name, params = secrets.token_hex(8), SamplingParams()
    request = Request(name, ids, params, priority=Priority.BACKGROUND, fill=how)
    finished: Finished | None = None
    try:
        await worker.submit(loaded.key, request, inbox.put_nowait)
    except asyncio.CancelledError:
        worker.abort(request.id)  # it may have got there
        raise
    try:
        while finished is None:
            event = await inbox.get()
            if isinstance(event, Finished):
                finished = event
            elif isinstance(event, Progress) and (told := telling.of_engine(event)):
                say(told)
    finally:
        if finished is None:
            worker.abort(request.id)
            while not isinstance(await inbox.get(), Finished):
                pass
    return finished


def prediction(how: Fill, num: int, tiers: Tiers, loaded: Loaded) -> Event | None:
    """What is told before tokens are restored, and computed; None where neither will be."""
    engine, parts = loaded.engine, []
    if tiers.disk:
        parts.append(f"{tiers.disk:,} on disk{about(engine.load_seconds(tiers.disk))}")
    to_run = num - tiers.device - tiers.disk if how == "warm" else 0
    if to_run > 0:
        parts.append(f"{to_run:,} to compute{about_s(to_run, engine.prompt_cost)}")
    if not parts:
        return None
    text = f"{num:,} tokens: {'; '.join(parts)}"
    code = "restore" if tiers.disk else "compute"
    return Event("notice", {"text": text, "code": code, "tokens": tiers.disk or to_run})


def filled(
    how: Fill, loaded: Loaded, wanted: Wanted | None, num: int, end: Finished, begin: float
) -> dict[str, Any]:
    """What a path of ``num`` tokens came to."""
    usage = end.usage
    body = {
        "session": None if wanted is None else wanted.session,
        "name": None if wanted is None else wanted.name,
        "message": None if wanted is None else wanted.message,
        "model": loaded.name,
        "dtype": loaded.dtype,
        "path_tokens": num,
        "device": usage.device,
        "restored": usage.disk,
        "missing": num - usage.device - usage.disk - usage.computed,
        "seconds": time.monotonic() - begin,
    }
    return body if how == "load" else {**body, "computed": usage.computed}


def after_path(loaded: Loaded, wanted: Wanted) -> Ids:
    """The ids that the next turn after a path begins with, whatever its words. On the desk."""
    store = wanted.store
    path, session = store.path(wanted.message), store.session(wanted.session)
    known = Past(store, path).turns(loaded.tokenizer.hash)
    settings = settings_of(session, loaded.template)
    if path[-1].role != "assistant":  # nobody has answered it: that is next
        return loaded.template.prompt(known, [], settings, limit=loaded.context_length).ids
    return _before_words(loaded, known, (), settings)


def with_files(loaded: Loaded, system: str | None, files: Sequence[FileText]) -> Ids:
    """The ids that the first turn of a session begins with, with these files. On the desk."""
    said = loaded.model.system if system is None else system
    known = [turn("system", [text_part(said)])] if said else []
    return _before_words(loaded, known, files, Settings(clock=datetime.now().astimezone()))


def _before_words(
    loaded: Loaded, known: Sequence[Turn], files: Sequence[FileText], settings: Settings
) -> Ids:
    limit = loaded.context_length
    prompts = [
        loaded.template.prompt(
            known, [turn("user", [*file_parts(files), text_part(word)])], settings, limit=limit
        ).ids
        for word in WORDS
    ]
    first, *others = prompts
    return first[: min(common_ids(first, other) for other in others)]
