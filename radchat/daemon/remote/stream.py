"""What comes over the wire, before a dialect reads it: events, refusals, losses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from radchat.errors import RadchatError

if TYPE_CHECKING:
    import httpx2

MAX_LINE = 16 * 1024 * 1024  # bytes of one event
AGAIN = frozenset((429, 502, 503, 504))


class Lost(Exception):
    """May be tried again, where nothing has come yet. ``after_s``: what the server asks for."""

    def __init__(self, text: str, after_s: float | None = None) -> None:
        super().__init__(text)
        self.after_s = after_s


async def events(answer: httpx2.Response) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON of server-sent events, whatever way they are cut; up to ``[DONE]``."""
    held = b""
    async for raw in answer.aiter_bytes():
        held += raw
        if len(held) > MAX_LINE:
            raise RadchatError("an event of its stream is too long")
        *lines, held = held.split(b"\n")
        for each in lines:
            line = each.strip()
            if not line.startswith(b"data:"):
                continue
            text = line[len(b"data:") :].strip()
            if text == b"[DONE]":
                return
            try:
                data = json.loads(text)
            except ValueError as error:
                raise RadchatError(f"its stream holds what is no JSON: {error}") from error
            if isinstance(data, dict):
                yield data


def refusal(url: str, answer: httpx2.Response) -> Exception:
    try:
        body = answer.json()
        told = body.get("error", body) if isinstance(body, dict) else body
    except ValueError:
        told = answer.text[:200]
    text = f"{answer.status_code}: {message(told)}"
    if answer.status_code in AGAIN:
        after = answer.headers.get("retry-after", "")
        return Lost(text, float(after) if after.isdecimal() else None)
    if answer.status_code in (401, 403):
        return RadchatError(f"{url} wants a key ({text}): set RADCHAT_ENGINE_KEY, or engine_key")
    return RadchatError(f"{url} refuses the request: {text}")


def message(told: Any) -> str:
    found = told.get("message") or told.get("detail") if isinstance(told, Mapping) else told
    return str(found or "no reason given")[:500]
