"""A home of its own for each test, real daemons in it, and none left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.client import Client
from radchat.daemon.lock import DaemonInfo, is_held, read_info
from radchat.paths import Places
from radchat.protocol import build_id
from radchat.wire import Exchange, result
from tests.waiting import wait_until

HERE = Path(__file__).parent
REPO = HERE.parent.parent
FAKE = (sys.executable, "-P", str(HERE / "fake_daemon.py"))
ROOTS = ("", "kernels", "sessions")  # the source roots, and the package in each
PACKAGES = ("radchat", "radchat_kernels", "radchat_sessions")


def copy_sources(to: Path) -> str:
    """The three packages at ``to``, sizes and times kept: the same build. As a PYTHONPATH."""
    for root, package in zip(ROOTS, PACKAGES, strict=True):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPO / root / package, to / package, ignore=ignore)
    return str(to)


def build_of(sources: str) -> str:
    code = "from radchat.protocol import build_id; print(build_id())"
    env = {**os.environ, "PYTHONPATH": sources}
    command = [sys.executable, "-P", "-c", code]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def copy_of_this_build(folders: pytest.TempPathFactory) -> str:
    """The sources as they are now, so that an edit meanwhile is no new build. As a PYTHONPATH."""
    while True:
        path = copy_sources(folders.mktemp("sources"))
        build_id.cache_clear()
        if build_of(path) == build_id():  # else somebody wrote a file in between
            return path


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the daemons of these tests run."""
    return copy_of_this_build(tmp_path_factory)


class Home:
    def __init__(self, root: Path, sources: str) -> None:
        self.root = root
        self.env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("RADCHAT_", "XDG_")) and k != "TMUX_PANE"
        }
        self.env |= {"RADCHAT_HOME": str(root), "PYTHONPATH": sources}
        self.processes: list[subprocess.Popen[str]] = []
        self.clients: list[Client] = []

    @property
    def places(self) -> Places:
        return Places.from_env(self.env)

    @property
    def info(self) -> DaemonInfo:
        wait_until(lambda: (found := read_info(self.places.lock)) and found.socket)
        info = read_info(self.places.lock)
        assert info is not None
        return info

    @property
    def held(self) -> bool:
        return is_held(self.places.lock)

    def started(self) -> list[int]:
        """The pid of every daemon process there was in this home."""
        try:
            return [int(line) for line in (self.places.data / "started").read_text().split()]
        except FileNotFoundError:
            return []

    def client(self, **options: Any) -> Client:
        client = Client.connect(self.places, command=FAKE, **options)
        self.clients.append(client)
        return client

    def popen(self, *command: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def command(self, method: str = "sessions.list", *flags: str, **env: str) -> Any:
        """A first command as a process of its own."""
        return self.popen(sys.executable, "-P", str(HERE / "fake_client.py"), method, *flags, **env)

    def daemon(self, *, wait: bool = True) -> subprocess.Popen[str]:
        """A daemon in the foreground, as somebody who debugs starts it."""
        process = self.popen(*FAKE)
        if wait:
            assert self.info.pid == process.pid
        return process

    def status(self) -> dict[str, Any]:
        exchange = Exchange(self.info.socket or "")
        with contextlib.closing(exchange):
            exchange.send("POST", "/rpc/status", {})
            exchange.receive_head(timeout=60)
            return result(exchange)

    def log(self) -> str:
        return self.places.log.read_text() if self.places.log.exists() else ""

    def clean_up(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in self.started():
            with contextlib.suppress(OSError):
                if b"fake_daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.held)
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(sources: str) -> Iterator[Home]:
    """A home whose daemon serves the tests of a module that leave it as it was."""
    home = Home(Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp")), sources)
    home.daemon()
    yield home
    home.clean_up()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, sources: str) -> Iterator[Home]:
    root = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
    home = Home(root, sources)
    for name in [n for n in os.environ if n.startswith(("RADCHAT_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RADCHAT_HOME", str(root))
    monkeypatch.setenv("PYTHONPATH", sources)
    yield home
    home.clean_up()


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, Any, str]:
    """Exit code, the JSON on stdout, stderr."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, json.loads(out) if out else None, err
