"""A home of its own, a scripted daemon, and the CLI as a subprocess."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon, answer_events, usage
from tests.chat.many_events import TEXTS, Speakers
from tests.chat.tops import top
from tests.chat.trees import long, report
from tests.e2e.harness import Terminal, clean_env, radchat

SESSION = {
    "id": long("e7f2"),
    "name": "report-q3",
    "branch": "main",
    "head": long("d9f1"),
    "model": "tiny",
    "messages": 14,
    "branches": 2,
    "used": 1_700_000_000.0,
    "created": 1_690_000_000.0,
    "folder": "/tmp",
    "current": True,
    "last": None,
}
HOSTILE = "x\x1b[31my\x9bz"
SAVED = {
    "session": long("e7f2"), "name": HOSTILE, "tokens": 3072, "blocks": 12, "bytes": 2**26,
    "on_disk_tokens": 3210, "path_tokens": 3210, "seconds": 0.31, "left": None,
}  # fmt: skip
PREDICTED = {
    "text": "11,240 tokens: 10,900 on disk, about 0.2 s", "code": "restore",
}  # fmt: skip
LOADED = {
    "session": long("e7f2"), "name": HOSTILE, "message": long("d9f1"), "model": "tiny",
    "dtype": "bf16", "path_tokens": 11240, "device": 0, "restored": 10900, "missing": 340,
    "seconds": 0.21,
}  # fmt: skip
VERIFIED = {
    "ok": True, "blocks": 43, "bytes": 2**29, "bad": [], "adopted": 0, "swept": 0, "seconds": 1.0,
}  # fmt: skip


def log() -> dict[str, Any]:
    return {
        "session": long("e7f2"),
        "name": "report-q3",
        "branch": "main",
        "head": long("d9f1"),
        "messages": [
            {"id": long("c2aa"), "parent": None, "role": "user", "text": "say [bold]\x1b[1m",
             "turn": 1, "branches": [], "tokens": 18},
            {"id": long("d9f1"), "parent": long("c2aa"), "role": "assistant",
             "text": "Here:\n```python\nprint(1)\n```\nand on", "turn": 1, "branches": ["main"],
             "finish_reason": "length", "tokens": 30},
        ],
    }  # fmt: skip


def full_script() -> dict[str, Any]:
    """An answer for every method the commands use, with hostile text in it."""
    moved = {
        "session": long("e7f2"),
        "name": "report-q3",
        "branch": "price",
        "head": long("d9f1"),
        "text": HOSTILE,
    }
    entry = {
        "rank": 1, "node": 3, "tokens": 32, "pages": 2, "frees": 32, "tier": "G", "last_used_s": 3,
        "hits": 1, "session": long("e7f2"), "name": HOSTILE, "message": long("d9f1"),
        "text": HOSTILE,
    }  # fmt: skip
    node = {
        "id": 3, "parent": 0, "depth": 1, "start": 0, "end": 32, "tokens_text": HOSTILE, "pages": 2,
        "locks": 0, "last_used_s": 3, "hits": 1, "tier": "G", "lru_rank": 1,
        "messages": [long("d9f1")],
    }  # fmt: skip
    pin = {
        "session": long("e7f2"), "name": HOSTILE, "message": long("d9f1"), "text": HOSTILE,
        "tokens": 12, "held_tokens": 10, "expires_s": 86399.5,
    }  # fmt: skip
    why = {
        "message": long("d9f1"), "parent": long("c2aa"), "text": HOSTILE, "model": HOSTILE,
        "dtype": "fp32", "input_tokens": 12, "cache": None, "matched": 4, "restored": 0,
        "computed": 8, "parts": [{"start": 4, "end": 12, "cause": "template", "why": HOSTILE}],
        "ended": {"position": 4, "before": HOSTILE, "token": HOSTILE, "after": HOSTILE},
        "now": None, "now_why_not": HOSTILE,
    }  # fmt: skip
    return {
        "generate": lambda args: answer_events(["Hello", " wor", "ld"]),
        "models.load": lambda args: answer_events([]),
        "sessions.open": SESSION,
        "sessions.list": {"sessions": [{**SESSION, "name": HOSTILE}], "total": 1},
        "sessions.show": {**SESSION, "branches": {"main": long("d9f1")}, "tokens": 900},
        "sessions.rename": {"name": "other"},
        "sessions.rm": {"removed": [{"id": long("e7f2"), "name": HOSTILE, "messages": 14}]},
        "sessions.search": {
            "hits": [
                {"session": long("e7f2"), "name": HOSTILE, "message": long("d9f1"), "short": "d9f1",
                 "branch": HOSTILE, "role": "user", "created": 1.0, "snippet": HOSTILE,
                 "marks": [[0, 2]], "rank": -1.0},
            ],
            "more": False,
        },
        "sessions.export": {
            "session": long("e7f2"), "name": HOSTILE, "format": "md", "messages": 2,
            "text": "# report\n\n" + HOSTILE + "\n",
        },
        "sessions.import": {
            "sessions": [{"id": long("0a0a"), "name": HOSTILE, "messages": 2, "branches": 1,
                          "renewed": True, "file": "a.json"}],
            "left_out": {HOSTILE: 2},
        },
        "sessions.verify": {"ok": True, "messages": 14, "problems": []},
        "sessions.prune": {
            "session": long("e7f2"), "name": HOSTILE, "messages": 2, "tokens": 30, "kv_tokens": 20,
            "kv_bytes": 4096, "branches": [HOSTILE], "labels": 0, "thoughts": 1,
            "shared": 1, "dry_run": False, "digest": "ab12",
        },
        "tree": report(),
        "log": log(),
        "fork": moved,
        "switch": moved,
        "undo": moved,
        "redo": moved,
        "branch.list": {
            "branches": [
                {"name": HOSTILE, "message": long("d9f1"), "text": HOSTILE, "tokens": 9,
                 "current": True, "updated": 1.0},
            ]
        },
        "branch.create": {},
        "branch.rename": {},
        "branch.delete": {},
        "branch.label": {},
        "context": {
            "model": HOSTILE, "exact": True, "used": 48, "tokens": 60, "limit": 100, "free": 40,
            "parts": {"system": 0, "files": 8, "user": 12, "answers": 20, "reasoning": 0,
                      "tools": 0, "template": 20},
            "cached": {"device": 45, "host": 0, "disk": 0}, "computed": 15,
            "messages": [{"id": long("d9f1"), "role": "assistant", "turn": 2, "tokens": 20,
                          "files": [HOSTILE], "text": HOSTILE}],
        },
        "compact": lambda args: [
            Event("notice", {"text": "this reads 90 tokens (80 cached)", "code": "compact"}),
            Event("delta", {"choice": 0, "text": f"in short: {HOSTILE}"}),
            Event("done", {"session": long("e7f2"), "name": "report-q3", "branch": "compact",
                           "head": long("beef"), "label": "before-compact", "before": 6210,
                           "after": 812}),
        ],
        "cache.stats": {
            "tiers": {
                "device": {"tokens": 10, "bytes": 2048, "budget_bytes": 4096},
                "disk": {"tokens": 3072, "bytes": 2**26, "budget_bytes": 2**33, "blocks": 12,
                         "free_bytes": 2**36, "written_bytes": 2**20, "hourly_bytes": 2**31,
                         "restored_tokens": 1900},
            },
            "persist": "auto", "persist_off": None, "disk_trouble": None,
            "total_tokens": 100, "free_tokens": 90, "evictable_tokens": 10, "locked_tokens": 0,
            "pinned_tokens": 0, "hit_rate": 0.5, "requests": 3, "pins": [pin],
            "pin_tokens": 16, "pin_limit_tokens": 25,
        },
        "cache.why": {"session": long("e7f2"), "name": HOSTILE, "answers": [why]},
        "cache.pin": {**pin, "pin_tokens": 16, "pin_limit_tokens": 25},
        "cache.unpin": {"session": long("e7f2"), "message": long("d9f1"), "unpinned": True},
        "cache.ls": {
            "entries": [
                entry,
                {**entry, "tier": "D", "node": "0f3a9c21", "tokens": 256, "frees": 256,
                 "hits": None, "name": None, "session": None, "message": None, "text": None},
            ]
        },
        "cache.tree": {"nodes": [node]},
        "cache.top": top(HOSTILE),
        "cache.evict": {"freed_tokens": 32, "freed_bytes": 4096, "pinned_tokens": 0},
        "cache.clear": {"freed_tokens": 32, "pinned_tokens": 0, "disk_tokens": 256,
                        "disk_bytes": 2**20},
        "cache.save": lambda args: [
            Event("progress", {"stage": "save", "done": 1, "total": 12, "text": HOSTILE}),
            Event("done", SAVED),
        ],
        "cache.load": lambda args: [Event("notice", PREDICTED), Event("done", LOADED)],
        "cache.warm": lambda args: [
            Event("notice", PREDICTED),
            Event("done", {**LOADED, "missing": 0, "computed": 340}),
        ],
        "cache.verify": lambda args: [Event("done", VERIFIED)],
        "cancel": cancels(),
        "status": {"state": "ready", "pid": 1, "model": "tiny", "device": "cpu", "usage": usage()},
        "defaults": {"settings": {"dtype": {"value": "auto", "from": "default"}}, "device": "cpu"},
    }  # fmt: skip


def cancels() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An answer ends as soon as that is asked for."""
    asked: set[str] = set()

    def cancel(args: dict[str, Any]) -> dict[str, Any]:
        goes_on = args["request"] not in asked
        asked.add(args["request"])
        return {"cancelled": goes_on}

    return cancel


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon(full_script()) as server:
        yield server


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    raw: bytes


Run = Callable[..., Done]


@pytest.fixture
def run(home: Path, daemon: FakeDaemon) -> Run:
    """`run("tree", "--json")`: the CLI against the scripted daemon, nothing on stdin."""

    def run_(
        *args: str, text: bytes | None = None, timeout: float = 60.0, stdin: Any = None, **env: str
    ) -> Done:
        done = subprocess.run(
            radchat("--daemon", str(daemon.path), *args),
            env=clean_env(home, RADCHAT_MODEL="tiny") | env,
            input=text,
            stdin=(subprocess.DEVNULL if stdin is None else stdin) if text is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode(), done.stdout)

    return run_


Open = Callable[..., Terminal]


Unread = Callable[..., tuple[int, bytes]]


@pytest.fixture
def unread(home: Path, daemon: FakeDaemon) -> Unread:
    """`unread("tree")`: the code and the stderr of a command whose reader left before the first
    byte.
    """

    def run_(*args: str) -> tuple[int, bytes]:
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run(
                radchat("--daemon", str(daemon.path), *args),
                env=clean_env(home, RADCHAT_MODEL="tiny"),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
        finally:
            os.close(write)
        return done.returncode, done.stderr

    return run_


@pytest.fixture
def chat(home: Path, daemon: FakeDaemon) -> Iterator[Open]:
    opened: list[Terminal] = []
    daemon.script["models.load"] = lambda args: [Event("done", {"model": "tiny"})]

    def open_(*args: str, rows: int = 24, columns: int = 80, **env: str) -> Terminal:
        terminal = Terminal(
            radchat("--daemon", str(daemon.path), *args),
            clean_env(home, RADCHAT_MODEL="tiny") | env,
            rows=rows,
            columns=columns,
        )
        opened.append(terminal)
        return terminal

    yield open_
    for terminal in opened:
        terminal.child.close(force=True)


@pytest.fixture
def speakers(daemon: FakeDaemon) -> Speakers:
    return Speakers(daemon, TEXTS)


@pytest.fixture
def open_(home: Path, daemon: FakeDaemon) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*args: str, rows: int = 24, columns: int = 200, **env: str) -> Terminal:
        terminal = Terminal(
            radchat("--daemon", str(daemon.path), *(args or ("what-if", *TEXTS))),
            clean_env(home, RADCHAT_MODEL="tiny") | env,
            rows=rows,
            columns=columns,
        )
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        with terminal:
            pass
