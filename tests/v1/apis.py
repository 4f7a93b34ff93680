"""The API over a real service, in this process: asked as a client asks, and looked at inside."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from radchat.daemon.app import App
from tests.daemon.services import House, Machine, house, until
from tests.scripted import Script

USER = [{"role": "user", "content": "hello"}]


class Stopper:
    def about(self) -> dict[str, Any]:
        return {"pid": 1, "build": "b", "protocol": 1, "settings": {}}

    def stop(self, *, force: bool) -> None:
        raise AssertionError


class Api:
    def __init__(self, home: House, app: App) -> None:
        self.home, self.app = home, app
        # no address: the owner's own socket
        transport = httpx2.ASGITransport(app=app.asgi, client=None, raise_app_exceptions=False)  # type: ignore[arg-type]
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        """The answer's JSON; of another status than is meant, no answer."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def chat(self, messages: Any = USER, status: int = 200, **more: Any) -> Any:
        body = {"model": "tiny", "messages": messages, "max_tokens": 5, "temperature": 0, **more}
        return await self.post("/v1/chat/completions", body, status)

    async def chunks(self, messages: Any = USER, **more: Any) -> list[dict[str, Any]]:
        body = {"model": "tiny", "messages": messages, "max_tokens": 5, "temperature": 0, **more}
        return await self.stream("/v1/chat/completions", body)

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a stream that comes to its end."""
        answer = await self.http.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def idle(self) -> None:
        """Until nothing is locked in any engine."""

        def is_idle() -> bool:
            stats = [each.engine.stats() for each in self.home.service.engines.all]
            return self.app.active == 0 and not any(
                each["running"] or each["waiting"] or each["pages"]["locked"] for each in stats
            )

        await until(is_idle, 10)


@contextlib.asynccontextmanager
async def api(
    root: Path, script: Script | None = None, *, keep_alive_s: float = 10.0, **env: str
) -> AsyncIterator[Api]:
    async with house(root, Machine(script=script), **env) as home:
        app = App(Stopper(), clock=time.monotonic, keep_alive_s=keep_alive_s)
        app.ready(home.service)
        made = Api(home, app)
        async with made.http:
            yield made
            await made.idle()


class Hanging:
    """A connection one holds in one's hands: what comes is seen as it comes, and it can be cut."""

    def __init__(self, api: Api, path: str, body: Any) -> None:
        import asyncio

        self._gone = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        self.sent = b""
        self.status = 0
        self.task = asyncio.create_task(self._ask(api, path))

    async def _ask(self, api: Api, path: str) -> None:
        await api.app.asgi(_scope(path), self._receive, self._send)

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.sent += message.get("body", b"")

    async def cut(self) -> None:
        self._gone.set()
        await self.task

    async def until(self, text: bytes) -> None:
        await until(lambda: text in self.sent)


def _scope(path: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }


Work = Callable[[Api], Awaitable[None]]
