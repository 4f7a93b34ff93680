"""One MCP server: started, asked for its tools, called, ended. All of it on the servers' own event
loop; what others call waits there and can be given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from radchat.agent.mcp.config import ServerConfig
from radchat.agent.sandbox.policy import PASSED
from radchat.chat.text import one_line
from radchat.errors import RadchatError

if TYPE_CHECKING:
    from mcp import types
    from mcp.client.client import Client

RELAY = Path(__file__).with_name("relay.py")
START_S = 30.0  # a package runner may have to fetch it first
TICK_S = 0.05
MAX_PAGES = 50  # of a list of tools
MAX_LISTED = 2000
MAX_SAID = 200  # characters of an error
T = TypeVar("T")


class ServerFailed(RadchatError):
    """In words, without the server's name."""


class Cancelled(Exception):
    """The user gave it up."""


class Connection:
    def __init__(
        self, config: ServerConfig, env: Mapping[str, str], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.config = config
        self._loop = loop
        own = {name: env[name] for name in env if name in PASSED or name.startswith("LC_")}
        self._env = {**own, "PATH": env.get("PATH", "/usr/bin:/bin"), **config.env}
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Event | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the connection
        self.changed = False  # it has told that its tools are others now
        self.problem = config.problem

    @property
    def is_up(self) -> bool:
        return self._client is not None

    async def start(self) -> list[types.Tool]:
        """Its tools. Raises ServerFailed."""
        if self.config.problem:
            raise ServerFailed(self.config.problem)
        ready: asyncio.Future[list[types.Tool]] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._task = self._loop.create_task(self._live(ready, self._closing))
        try:
            done, _ = await asyncio.wait({ready}, timeout=START_S)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if not done:
            await self.stop()
            raise self._failed(f"it did not answer within {START_S:g} s")
        return ready.result()

    async def _live(self, ready: asyncio.Future[list[types.Tool]], closing: asyncio.Event) -> None:
        from mcp.client.client import Client

        try:
            async with Client(self._transport(), message_handler=self._heard) as client:
                tools = await self._listed(client)
                self._client = client
                if not ready.done():
                    ready.set_result(tools)
                await closing.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(self._failed(_words(error)))
            if not isinstance(error, Exception) and not isinstance(error, BaseExceptionGroup):
                raise
        finally:
            self._client = None

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        import anyio
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self._errors.seek(0)
        self._errors.truncate()
        relayed = StdioServerParameters(
            command=sys.executable,
            args=["-I", "-S", str(RELAY), self.config.command, *self.config.args],
            env=self._env,
            cwd=self.config.cwd,
            encoding_error_handler="replace",
        )
        async with stdio_client(relayed, errlog=self._errors) as (read, write):  # type: ignore[arg-type]
            passed, received = anyio.create_memory_object_stream[Any](0)

            async def pass_on() -> None:
                async with passed:
                    async for message in read:
                        await passed.send(message)
                self._client = None  # it is gone: nothing more is asked of it

            async with anyio.create_task_group() as group:
                group.start_soon(pass_on)
                try:
                    yield received, write
                finally:
                    group.cancel_scope.cancel()

    async def _listed(self, client: Client) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) > MAX_LISTED:
                break
        return found

    async def _heard(self, message: Any) -> None:
        from mcp import types

        if isinstance(message, types.ToolListChangedNotification):
            self.changed = True

    async def call(
        self, name: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> types.CallToolResult:
        """Raises ServerFailed; TimeoutError."""
        client = self._client
        if client is None:
            raise self._failed("it has ended")
        try:
            async with asyncio.timeout(timeout_s):
                return await client.call_tool(name, dict(arguments))
        except TimeoutError:
            raise
        except Exception as error:
            raise self._failed(_words(error)) from error

    async def stop(self) -> None:
        if self._closing is not None:
            self._closing.set()
        if self._task is not None:
            if self._client is None:  # still beginning
                self._task.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait({self._task})
        self._task = None

    def close(self) -> None:
        self._errors.close()

    def wait(self, work: Coroutine[Any, Any, T], cancel: threading.Event | None = None) -> T:
        """From another thread. Raises Cancelled, what the work raises, KeyboardInterrupt."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                try:
                    return future.result(TICK_S)
                except NotYet:
                    if future.done():
                        raise
                if cancel is not None and cancel.is_set():
                    raise Cancelled
        finally:
            future.cancel()

    def _failed(self, words: str) -> ServerFailed:
        """With the last lines on stderr, of the server's and of the relay's."""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = self._errors.read(1024**2).decode("utf-8", "replace").split("\n")
            said = [line for line in map(one_line, lines) if line]
            if said:
                words = f"{words}: {'; '.join(each[:MAX_SAID] for each in said[-2:])}"
        self.problem = words
        return ServerFailed(words)


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = one_line(str(error)).partition(" For further information")[0]
    return words[:MAX_SAID] or type(error).__name__
