"""Which model a request means. A client names one that is listed: no path, no other program's."""

from __future__ import annotations

import asyncio

from radchat.daemon.service import Service
from radchat.daemon.v1.bodies import DEFAULT_MODEL
from radchat.errors import NotFound
from radchat.models.registry import ModelEntry, list_models


async def entry_of(service: Service, name: str) -> ModelEntry:
    """By the name that `/v1/models` tells, or what it was pulled as."""
    entries = await asyncio.to_thread(list_models, service.places)
    for entry in entries:
        if entry.problem is None and name in (entry.name, entry.source):
            return entry
    names = ", ".join(entry.name for entry in entries if entry.problem is None)
    raise NotFound(f"no model {name!r}; there are: {names or 'none'}", model=name)


async def model_of(service: Service, name: str) -> str | None:
    """For ``generate`` and ``choose``; None: whichever a chat would begin with."""
    return None if name in DEFAULT_MODEL else (await entry_of(service, name)).name
