"""What the terminal side and the daemon say to each other. Light: plain dicts, JSON, no dependency.

HTTP/1.1 on the Unix socket. ``POST /rpc/<method>`` with a JSON object; the answer is a JSON object,
or, for ``STREAMS``, server-sent events whose last is ``done`` or ``error``. A failure is
``{"error": {"code", "message", "exit_code", …}}`` with the status of its class (errors.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, TypedDict

from radchat import __version__

PROTOCOL = 1
HEADER = "X-Radchat-Protocol"
STOPPING = "the daemon is stopping"  # with data {"stopping": true}: nothing was begun, ask again
MAX_BODY = 64 * 1024 * 1024  # bytes; a loaded file travels in the body
STREAMS = frozenset(
    {"generate", "models.load", "compact", "serve", "program.open", "program.gen"}
    | {"search.open", "search.ask"}
    | {"cache.save", "cache.load", "cache.warm", "cache.verify"}
)
# Answered while the engine computes, while the daemon starts and while it stops; the same in every
# version of the protocol, so that a new client can always ask an old daemon to go.
CONTROL = frozenset({"health", "status", "stop", "cancel"})
METHODS = (
    CONTROL
    | STREAMS
    | {"defaults", "tree", "log", "fork", "switch", "undo", "redo", "models.unload", "models.ps"}
    | {"refs"}
    | {"sessions.list", "sessions.show", "sessions.rename", "sessions.rm"}
    | {"sessions.use", "sessions.open"}
    | {"sessions.search", "sessions.prune", "sessions.verify", "sessions.export", "sessions.import"}
    | {"branch.list", "branch.create", "branch.rename", "branch.delete", "branch.label"}
    | {"branch.advance"}
    | {"program.say", "program.select", "program.fork", "program.drop", "program.show"}
    | {"program.save"}
    | {"search.score", "search.mark", "search.release"}
    | {"context"}
    | {"cache.stats", "cache.ls", "cache.tree", "cache.top", "cache.evict", "cache.clear"}
    | {"cache.why", "cache.pin", "cache.unpin"}
)  # everything that has a name on the wire; nothing else of the service can be called

State = Literal["starting", "loading", "ready", "stopping"]
EventName = Literal[
    "notice",  # {"text", "code"}: one line for stderr, before the thing is done
    "progress",  # {"stage": "load"|"queue"|"extend"|"restore"|"verify", "done", "total", "text"}
    "init",  # {"request", "session", "name", "branch", "parent", "user", "messages", "branches",
    #          "head", …}; head: where one stands as long as nothing is said
    "start",  # {"input_tokens", "cached": {"device", "host", "disk"}, "computed", "choice"}
    "delta",  # {"choice", "text", "tokens"}; choice: which of the command's answers, from 0;
    #           tokens: how many it has said so far; "forced": true, if no choice was left
    "reasoning",  # {"choice", "text", "tokens"}
    "logprobs",  # {"choice", "logprobs": [{"id", "logprob", "top"}]}: where they were asked for
    "call_part",  # {"choice", "index", "text"}, the first of a call with "id" and "name": its
    #               arguments' text as it is written, where that was asked for
    "call",  # {"choice", "index", "id", "name", "arguments"}: a tool call, whole; told once
    "listening",  # {"url", "host", "port", "key_file", "is_local"}: of `serve`
    "answer",  # of `search.ask`: one ask is stored, with all its answers
    "failed",  # {"ask", "error"}: of `search.ask`: one is not, and nothing of it is kept
    "message",  # one choice has ended: the shape of `ask --json` for it
    "done",  # the whole result: see `generate`
    "error",  # the shape of errors.RadchatError.to_json()
]


class Where(TypedDict):
    """Who asks, for the current session: a terminal (tty or tmux pane) and a folder."""

    terminal: str | None
    folder: str


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: dict[str, Any]

    def encode(self) -> bytes:
        """One server-sent event; json.dumps writes no raw newline, so one data line is enough."""
        return f"event: {self.name}\ndata: {json.dumps(self.data)}\n\n".encode()


def decode_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Server-sent events from the lines of a body; comments (keep-alive) are skipped."""
    name, data = "", ""
    for raw in lines:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if name:
                yield Event(name, json.loads(data))
            name, data = "", ""
        elif line.startswith("event: "):
            name = line[len("event: ") :]
        elif line.startswith("data: "):
            data += line[len("data: ") :]


def _add_sources(root: str, digest: hashlib.blake2b) -> None:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for file in sorted(files):
            info = os.stat(os.path.join(folder, file))  # noqa: PTH116, PTH118 - on the start-up path
            digest.update(f"{file} {info.st_size} {info.st_mtime_ns}".encode())


@cache
def build_id() -> str:
    """Names the code that runs: version and a digest of every source file's size and time.

    A daemon of another build speaks another dialect: the client replaces it when it is idle. All
    three packages count; none is imported for it.
    """
    digest = hashlib.blake2b(digest_size=6)
    for package in ("radchat", "radchat_kernels", "radchat_sessions"):
        spec = find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            _add_sources(root, digest)
    return f"{__version__}+{digest.hexdigest()}"
