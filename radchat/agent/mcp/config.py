"""Which MCP servers there are: ``mcp.json`` in the config folder, and the file of --mcp-config.

    {"mcpServers": {"git": {"command": "mcp-git", "args": ["."], "env": {"K": "v"}, "cwd": "/src"}}}

Never a file of the folder the agent works in by itself: what is named here is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.errors import ConfigInvalid
from radchat.paths import Places

NAME = "mcp.json"
MAX_FILE = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class ServerConfig:
    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    problem: str = ""  # of this one alone: it is told, and not started


def configured(places: Places, more: Path | None = None) -> tuple[ServerConfig, ...]:
    """By name. What ``more`` names again is as it says. ConfigInvalid names file and key."""
    own = places.config_file.parent / NAME
    found = read(own) if own.is_file() else ()
    by_name = {server.name: server for server in found}
    if more is not None:
        by_name |= {server.name: server for server in read(more)}
    return tuple(by_name[name] for name in sorted(by_name))


def read(path: Path) -> tuple[ServerConfig, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > MAX_FILE:
        raise ConfigInvalid(f"{path}: larger than {MAX_FILE:,} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{path} is no JSON: {error}") from error
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise ConfigInvalid(f'{path}: want {{"mcpServers": {{NAME: {{"command": ...}}}}}}')
    return tuple(
        _server(name, servers[name], f"{path}: mcpServers.{name}")
        for name in servers
        if not (isinstance(servers[name], dict) and servers[name].get("disabled") is True)
    )


def _server(name: str, said: Any, place: str) -> ServerConfig:
    if not name.strip():
        raise ConfigInvalid(f"{place}: a server has a name")
    if not isinstance(said, dict):
        raise ConfigInvalid(f"{place}: want an object with a command")
    if "command" not in said and "url" in said:
        return ServerConfig(name, problem="it has a url: only servers with a command are spoken to")
    command = _text(said.get("command"), f"{place}.command")
    args = said.get("args", [])
    if not isinstance(args, list):
        raise ConfigInvalid(f"{place}.args: want a list of strings")
    env = said.get("env", {})
    if not isinstance(env, dict):
        raise ConfigInvalid(f"{place}.env: want an object of strings")
    cwd = said.get("cwd")
    return ServerConfig(
        name,
        command,
        tuple(_text(arg, f"{place}.args[{at}]", empty=True) for at, arg in enumerate(args)),
        {key: _text(value, f"{place}.env.{key}", empty=True) for key, value in env.items()},
        None if cwd is None else str(Path(_text(cwd, f"{place}.cwd")).expanduser()),
    )


def _text(value: Any, place: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        raise ConfigInvalid(f"{place}: want a string (got {json.dumps(value):.60})")
    return value
