"""``/v1/models`` and ``/health``: what can be asked, and whether anybody is there."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from radchat.daemon.app import App
from radchat.daemon.service import Service
from radchat.daemon.v1.caller import caller_of
from radchat.daemon.v1.gate import CarefulRoute, service_of
from radchat.daemon.v1.named import entry_of
from radchat.models.registry import ModelEntry, list_models


def router(app: App) -> APIRouter:
    routes = APIRouter(route_class=CarefulRoute)

    @routes.get("/health", operation_id="health")
    async def health() -> dict[str, str]:
        """Open to all: that somebody is there, and nothing else."""
        return {"status": "ok"}

    @routes.get("/v1/models", operation_id="models")
    async def models(request: Request) -> dict[str, Any]:
        """Those on this machine, loaded or not."""
        caller_of(request.scope)
        with app.counted():
            service = await service_of(app)
            entries = await asyncio.to_thread(list_models, service.places)
            told = [_json(service, entry) for entry in entries if entry.problem is None]
        return {"object": "list", "data": told}

    @routes.get("/v1/models/{name:path}", operation_id="model")
    async def model(request: Request, name: str) -> dict[str, Any]:
        """One, by its name or what it was pulled as."""
        caller_of(request.scope)
        with app.counted():
            service = await service_of(app)
            return _json(service, await entry_of(service, name))

    return routes


def _json(service: Service, entry: ModelEntry) -> dict[str, Any]:
    loaded = service.engines.of(entry.name)
    try:
        created = int((entry.folder / "radchat.json").stat().st_mtime)
    except OSError:  # it has just gone
        created = 0
    return {
        "id": entry.name,
        "object": "model",
        "created": created,
        "owned_by": "radchat",
        "root": entry.source,
        "parent": None,
        "max_model_len": entry.context_length if loaded is None else loaded.context_length,
        "loaded": loaded is not None,
    }
