"""The OpenAI-compatible API: its routes, and what all of them share (docs/adr/0033).

FastAPI gives the description (``/openapi.json``) and the checks of what comes in; bodies are read,
answers streamed and failures told by the daemon's own means. Imported with the first request.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from radchat import __version__
from radchat.daemon.app import App
from radchat.daemon.outgoing import json_answer, unexpected
from radchat.daemon.v1 import chat, completions, errors, models, tokens
from radchat.daemon.v1.described import describe
from radchat.daemon.v1.metrics import Metrics
from radchat.daemon.v1.metrics import router as router_of_metrics
from radchat.errors import NotFound, RadchatError

log = logging.getLogger("radchat.app")


def make_api(app: App) -> ASGIApp:
    api = FastAPI(
        title="radchat",
        version=__version__,
        summary="OpenAI-compatible, over one radix tree of KV cache.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    metrics = Metrics()
    for router in (
        chat.router(app),
        completions.router(app),
        tokens.router(app),
        models.router(app),
        router_of_metrics(app, metrics),
    ):
        api.include_router(router)
    api.add_exception_handler(RadchatError, _told)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(Exception, _unexpected)
    return metrics.watching(api, describe(api)["paths"])


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RadchatError)
    return errors.answer(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return errors.answer(errors.of_validation(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    """No such route, another verb; or what the body was refused for, which FastAPI wraps."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RadchatError):
        return errors.answer(error.__cause__)
    where = f"{request.method} {request.url.path}"
    told = errors.error_json(NotFound(f"no such address: {where}"), error.status_code)
    return json_answer(told, error.status_code, dict(error.headers or {}) or None)


async def _unexpected(request: Request, error: Exception) -> Response:
    return errors.answer(unexpected(request.url.path, error))
