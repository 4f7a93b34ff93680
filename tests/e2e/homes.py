"""A home with real daemons in it, and shells that run the real command line there.

Everything is a process of its own. ``Home.close`` stops whatever daemon is left, by its pid.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.client import Client
from radchat.daemon.lock import DaemonInfo, is_held, read_info
from radchat.models.registry import set_default
from radchat.paths import Places
from radchat.protocol import Event
from radchat.wire import EventStream
from radchat_sessions.store import Store
from tests.waiting import PATIENCE, alive, wait_until

OF_THE_ENGINE = (
    "cache.stats",
    "cache.ls",
    "cache.tree",
    "cache.top",
    "cache.clear",
)  # whoever asks, wherever
DAEMON_WORDS = (b"radchat", b"daemon", b"start")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """One terminal: its current session is its own."""

    def __init__(self, home: Home, name: str, flags: Sequence[str] = (), **env: str) -> None:
        self.home, self.name = home, name
        self.folder = home.root / "folders" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.flags = tuple(flags)  # of every generating command
        self.env = {**home.env, "TMUX_PANE": f"%{name}", **env}

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """The command as a process; its pipes are the caller's. Reaped when the home closes."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
        env = {**self.env, **options.pop("env", {})}
        command = [sys.executable, "-P", "-m", "radchat", *args]
        process = subprocess.Popen(
            command,
            env=env,
            cwd=self.folder,
            text=True,
            errors="surrogateescape",
            stderr=subprocess.PIPE,
            **options,
        )
        self.home.processes.append(process)
        return process

    def __call__(self, *args: str, code: int = 0, stdin: str | None = None, **env: str) -> Done:
        process = self.start(
            *args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, env=env
        )
        done = finish(process, stdin)
        assert done.code == code, f"{args}: exit {done.code}, not {code}\n{done.out}\n{done.err}"
        return done

    def json(self, *args: str, code: int = 0, stdin: str | None = None, **env: str) -> Any:
        return self(*args, "--json", code=code, stdin=stdin, **env).json

    def ask(self, text: str, *args: str, **options: Any) -> dict[str, Any]:
        """A question that makes a session, unless told otherwise; the answer's JSON."""
        return dict(self.json("ask", text, *self.flags, *args, **options))

    def say(self, text: str, *args: str, **options: Any) -> dict[str, Any]:
        """The next turn of this terminal's session."""
        return self.ask(text, "-c", *args, **options)

    def quick(self, text: str, session: str | None = None, **options: Any) -> dict[str, Any]:
        """As ``ask`` or, with a session, ``say``; by one call to the running daemon."""
        options = {"temperature": 0, "max_tokens": 8, **options}
        asked = {"text": text, "dtype": "fp32", "options": options}
        with self.stream(**asked, new_session=session is None, session=session) as events:
            return dict(list(events)[-1].data["branches"][0])

    def tree(self, **args: Any) -> dict[str, Any]:
        """What `radchat tree --json` prints."""
        return self.call("tree", **args)

    def texts(self, ref: str | None = None, session: str | None = None) -> list[tuple[str, str]]:
        """Who said what, on the path to here."""
        messages = self.call("log", ref=ref, session=session)["messages"]
        return [(m["role"], m["text"]) for m in messages]

    def num_sessions(self) -> int:
        return len(self.call("sessions.list")["sessions"])

    @property
    def where(self) -> dict[str, Any]:
        return {"terminal": self.env["TMUX_PANE"], "folder": str(self.folder)}

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """What a command would ask the daemon, without the command."""
        if method not in OF_THE_ENGINE:
            args = {"where": self.where, **args}
        return self._client().call(method, **args)

    def stream(self, **args: Any) -> EventStream:
        """A ``generate`` that the test itself reads, and may leave."""
        args = {"new_session": True, "options": {"temperature": 0}, **args}
        return self._client().stream("generate", where=self.where, **args)

    def run(self, method: str, **args: Any) -> dict[str, Any]:
        """Any other stream of the daemon's, to its end: what it says is done."""
        with self._client().stream(method, where=self.where, **args) as events:
            last = list(events)[-1]
        assert last.name == "done", last
        return last.data

    def _client(self) -> Client:
        if not self.home.is_up:
            self("daemon", "start")
        return self.home.client()


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> Done:
    """Wait for its end. Reads on where the test has read already: ``communicate`` would lose what
    lies in the stream's buffer.
    """
    with ThreadPoolExecutor(1) as pool:
        assert process.stderr is not None
        err = pool.submit(process.stderr.read)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(stdin or "")
        out = "" if process.stdout is None else process.stdout.read()
        return Done(process.wait(PATIENCE), out, err.result())


class Home:
    """``models``: folders to have in it by name; new sessions use the first."""

    def __init__(self, sources: str, models: Mapping[str, Path], **env: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))  # a socket's path is short
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {
            "RADCHAT_HOME": str(self.root / "h"),
            "HF_HOME": str(self.root / "hf"),
            "PYTHONPATH": sources,
            "OMP_NUM_THREADS": "1",
            "LC_CTYPE": "C.UTF-8",
            "COVERAGE_CORE": "",
        } | env
        self.processes: list[subprocess.Popen[str]] = []
        self.pids: set[int] = set()
        for folder in models.values():
            shutil.copytree(folder, self.places.models / folder.name)
        for name in itertools.islice(models, 1):
            set_default(self.places, name)

    # -- its daemon --------------------------------------------------------------------------------

    @property
    def places(self) -> Places:
        return Places.from_env(self.env)

    @property
    def info(self) -> DaemonInfo:
        wait_until(lambda: (found := read_info(self.places.lock)) and found.socket)
        info = read_info(self.places.lock)
        assert info is not None
        self.pids.add(info.pid)
        return info

    @property
    def pid(self) -> int:
        return self.info.pid

    @property
    def is_up(self) -> bool:
        return is_held(self.places.lock)

    def client(self) -> Client:
        """To the daemon that runs."""
        return Client.connect(self.places, start=False)

    def status(self) -> dict[str, Any]:
        return self.client().call("status")

    def log(self) -> str:
        return self.places.log.read_text() if self.places.log.exists() else ""

    def kill(self) -> None:
        """As a power cut does: no last words."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.is_up)
        assert not alive(pid)

    def stop(self) -> None:
        """In order, and wait until it is gone."""
        if self.is_up:
            os.kill(self.pid, signal.SIGTERM)
            wait_until(lambda: not self.is_up)

    # -- what it keeps -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """What is in the database now: a copy, for the daemon is its only writer."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.db"
            uri = f"file:{self.places.database}?mode=ro"
            with (
                contextlib.closing(sqlite3.connect(uri, uri=True)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
            store = Store.open(copy)
            try:
                yield store
            finally:
                store.close()

    def ids(self, message: str) -> list[int]:
        """The ids of the path to the end of this message, as the engine saw them."""
        with self.store() as store:
            found = store.ids(message)
        assert found is not None
        return list(found)

    def prompt_ids(self, answer: str) -> list[int]:
        """The ids the engine was given for this answer."""
        with self.store() as store:
            prompt = store.message(answer).prompt
            assert prompt is not None
            return list(store.prompt_ids(prompt))

    def out_ids(self, answer: str) -> list[int]:
        """The ids it gave."""
        with self.store() as store:
            return list(store.out(answer) or ())

    # -- balance -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        return self.client().call("cache.stats")

    def assert_balanced(self) -> None:
        """Promise 4: idle, nothing is locked and every page is free, can be had or is pinned."""
        wait_until(self._is_idle)
        stats = self.stats()
        assert stats["locked_tokens"] == 0, stats
        kept = stats["evictable_tokens"] + stats["pinned_tokens"]
        assert stats["free_tokens"] + kept == stats["total_tokens"], stats
        with self.store() as store:
            assert store.verify() == []

    def _is_idle(self) -> bool:
        now = self.status()  # of a daemon that starts: nothing of this yet
        return "answers" in now and not (now["running"] or now["waiting"] or now["answers"])

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError):
            if self.is_up:
                self.stop()
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        for pid in self.pids:
            with contextlib.suppress(OSError):
                if is_daemon(pid):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)


def is_daemon(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return all(word in words for word in DAEMON_WORDS)


def until(events: Iterator[Event], name: str, count: int = 1) -> list[Event]:
    """Read up to the ``count``-th event of this name; all that was read."""
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        count -= event.name == name
        if count == 0:
            return seen
    raise AssertionError(f"no {name} among {[event.name for event in seen]}")


def spoken(events: Sequence[Event], choice: int = 0) -> str:
    """The words that a client was sent."""
    return "".join(
        e.data["text"] for e in events if e.name == "delta" and e.data["choice"] == choice
    )
