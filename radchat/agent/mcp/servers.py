"""The MCP servers of an agent: all started at once, each by itself. What one does wrong is told in
a line and takes nothing of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from radchat.agent.mcp.config import ServerConfig
from radchat.agent.mcp.connection import Cancelled, Connection, ServerFailed
from radchat.agent.mcp.parameters import Unusable, usable
from radchat.agent.mcp.tools import McpTool, description_of, outcome_of, server_word, tool_name
from radchat.agent.types import Call, Context, Outcome, Tool
from radchat.chat.footer import counted
from radchat.chat.text import one_line
from radchat.errors import ConfigInvalid

if TYPE_CHECKING:
    from mcp import types

MAX_TOOLS = 40  # of a server: each costs room in every prompt
MAX_ALL = 100
CLOSE_S = 10.0
EXTRA = "MCP servers need the extra: pip install 'radchat[mcp]'"
Note = Callable[[str], None]


@dataclass
class _Server:
    connection: Connection
    listed: dict[str, Any] = field(default_factory=dict)  # schemas by its own names, as it began
    num_tools: int = 0
    error: str = ""  # the last
    told_changed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> str:
        if self.connection.is_up:
            return "up"
        return "ended" if self.listed else "failed"


class Servers:
    """``tools``: of all, sorted by name, the same as long as this lives."""

    def __init__(self, note: Note) -> None:
        self.tools: tuple[Tool, ...] = ()
        self._note = note
        self._servers: dict[str, _Server] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, configs: Sequence[ServerConfig], env: Mapping[str, str], note: Note) -> Self:
        """Starts them. ConfigInvalid where the extra is not installed."""
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ConfigInvalid(EXTRA) from None
        servers = cls(note)
        try:
            servers._start(configs, env)
        except BaseException:
            servers.close()
            raise
        return servers

    def lines(self) -> list[str]:
        """For /mcp: each with its state, its tools and its last error."""
        found = []
        for name, server in self._servers.items():
            error = f" · {server.error}" if server.error else ""
            tools = counted(server.num_tools, "tool")
            found.append(f"{one_line(name)} · {server.state} · {tools}{error}")
        return found

    def close(self) -> None:
        """Ends them, with all they have started."""
        work = asyncio.run_coroutine_threadsafe(self._stop_all(), self._loop)
        with contextlib.suppress(TimeoutError):
            work.result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()
        for server in self._servers.values():
            server.connection.close()

    # -- beginning ---------------------------------------------------------------------------------

    def _start(self, configs: Sequence[ServerConfig], env: Mapping[str, str]) -> None:
        words: dict[str, str] = {}
        for config in configs:
            connection = Connection(config, env, self._loop)
            self._servers[config.name] = _Server(connection)
            other = words.setdefault(server_word(config.name), config.name)
            if other != config.name:
                connection.config = ServerConfig(
                    config.name, problem=f"its tools would be named as those of {one_line(other)}"
                )
        if not self._servers:
            return
        first = next(iter(self._servers.values())).connection
        found = first.wait(self._start_all())
        tools: dict[str, Tool] = {}
        for (name, server), listed in zip(self._servers.items(), found, strict=True):
            if isinstance(listed, ServerFailed):
                self._say(name, f"{listed.message}; the agent goes on without it")
            elif isinstance(listed, BaseException):
                raise listed
            else:
                self._take(name, server, listed, tools)
        self.tools = tuple(tools[name] for name in sorted(tools))

    async def _start_all(self) -> list[list[types.Tool] | BaseException]:
        starts = (server.connection.start() for server in self._servers.values())
        return await asyncio.gather(*starts, return_exceptions=True)

    async def _stop_all(self) -> None:
        stops = (server.connection.stop() for server in self._servers.values())
        await asyncio.gather(*stops, return_exceptions=True)

    def _take(
        self, name: str, server: _Server, listed: list[types.Tool], tools: dict[str, Tool]
    ) -> None:
        server.listed = _schemas(listed)
        beyond = 0
        for tool in sorted(listed, key=lambda each: each.name):
            full = tool_name(name, tool.name)
            if server.num_tools >= MAX_TOOLS or len(tools) >= MAX_ALL:
                beyond += 1
            elif full in tools:
                self._left_out(name, tool.name, "another has its name")
            else:
                try:
                    parameters = usable(tool.input_schema)
                except Unusable as why:
                    self._left_out(name, tool.name, str(why))
                    continue
                words = description_of(tool, one_line(name))
                tools[full] = McpTool(full, words, parameters, name, tool.name, self)
                server.num_tools += 1
        if beyond:
            self._say(name, f"{len(listed):,} tools are too many: {beyond:,} are left out")

    def _left_out(self, name: str, tool: str, why: str) -> None:
        self._say(name, f"the tool {one_line(tool)[:80]} is left out: {why}")

    # -- calls -------------------------------------------------------------------------------------

    def call(self, server: str, tool: str, call: Call, context: Context) -> Outcome:
        found = self._servers[server]
        try:
            with found.lock:
                if not found.connection.is_up:
                    self._restart(server, found)
            work = found.connection.call(tool, call.arguments, context.limits.timeout_s)
            result = found.connection.wait(work, context.cancel)
        except ServerFailed as error:
            found.error = error.message
            return Outcome(f"the server {one_line(server)} failed: {error.message}", "error")
        except TimeoutError:
            found.error = f"{one_line(tool)} took more than {context.limits.timeout_s:g} s"
            return Outcome(f"{found.error}, and was given up", "timeout")
        except Cancelled:
            return Outcome("interrupted by the user", "interrupted")
        if found.connection.changed:
            self._tell_changed(server, found)
        return outcome_of(result)

    def _restart(self, name: str, server: _Server) -> None:
        """Once for a call; raises ServerFailed."""
        self._say(name, "it has ended, and is started again")
        server.connection.wait(server.connection.stop())
        listed = server.connection.wait(server.connection.start())
        if _schemas(listed) != server.listed:
            self._tell_changed(name, server)

    def _tell_changed(self, name: str, server: _Server) -> None:
        if not server.told_changed:
            server.told_changed = True
            self._say(name, "its tools have changed: those here stay as they were until the end")

    def _say(self, name: str, text: str) -> None:
        server = self._servers[name]
        server.error = text
        self._note(f"MCP server {one_line(name)}: {text}")


def _schemas(listed: Sequence[types.Tool]) -> dict[str, Any]:
    return {tool.name: tool.input_schema for tool in listed}
