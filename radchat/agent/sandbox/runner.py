"""Processes for tools: started in the sandbox, listened to, and ended whole.

A command's output is kept, of a long one its beginning and its end. It has ended when its own
process has, whoever still holds its pipe: what it leaves behind is ended too, and counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.agent.sandbox.choosing import Name
from radchat.agent.types import Ran

ENTER = Path(__file__).with_name("enter.py")
KEPT = 8 * 1024 * 1024  # bytes of an output's beginning, and as many of its end
READ = 65536
END_S = 3.0  # for the watcher to have ended all of it; then it is killed itself
DRAIN_S = 0.2  # for the last output, once the command has ended
FILE_BYTES = 4 << 30
PROCESSES = 4096
PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV")
SET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Kept:
    """An output as it comes."""

    head: bytearray = field(default_factory=bytearray)
    tail: deque[bytes] = field(default_factory=deque)
    num_tail: int = 0
    left_out: int = 0

    def add(self, data: bytes) -> None:
        room = KEPT - len(self.head)
        self.head += data[:room]
        data = data[room:] if room < len(data) else b""
        if data:
            self.tail.append(data)
            self.num_tail += len(data)
        while self.num_tail - len(self.tail[0] if self.tail else b"") >= KEPT:
            gone = self.tail.popleft()
            self.num_tail -= len(gone)
            self.left_out += len(gone)


class SandboxRunner:
    """``close`` removes its temporary folder. ``root``: the folder that may be written;
    ``hidden``: folders whose files no command may read.
    """

    def __init__(
        self,
        name: Name,
        root: Path,
        hidden: Sequence[Path],
        env: Mapping[str, str],
        *,
        network: bool = False,
    ) -> None:
        self.name: str = name
        self._root = root
        self._hidden = [str(path) for path in hidden if path.exists()]
        self._network = network
        self._tmp = Path(tempfile.mkdtemp(prefix="radchat-agent-"))
        locale = {key: value for key, value in env.items() if key.startswith("LC_")}
        kept = {key: env[key] for key in PASSED_ON if key in env}
        self._env = {**kept, **locale, **SET, "TMPDIR": str(self._tmp)}

    def close(self) -> None:
        shutil.rmtree(self._tmp, ignore_errors=True)

    def scratch(self, name: str, data: bytes) -> Path:
        """A file that commands can read, in the temporary folder."""
        path = self._tmp / name
        path.write_bytes(data)
        return path

    def which(self, *names: str) -> str | None:
        """The first of these programs that is on the path commands have."""
        found = (shutil.which(name, path=self._env.get("PATH")) for name in names)
        return next((path for path in found if path), None)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        timeout_s: float,
        cancel: threading.Event,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Raises OSError where it can't be started; KeyboardInterrupt, when all of it has ended."""
        heard, status = os.pipe()
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                self._command(argv, status, timeout_s),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=self._env,
                pass_fds=(status,),
                start_new_session=True,
            )
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(status)
        kept = Kept()
        watch = _Watch(process, heard, kept, on_output)
        try:
            told, why = watch.until_end(began + timeout_s, cancel)
        except BaseException:
            watch.end()
            raise
        finally:
            watch.close()
        code = told.get("code")
        number = None if code is None or code >= 0 else -code
        return Ran(
            code=None if number is not None else code,
            signal=number
            if number is not None or why
            else (signal.SIGKILL if code is None else None),
            head=bytes(kept.head),
            tail=b"".join(kept.tail),
            left_out=kept.left_out,
            seconds=time.monotonic() - began,
            timed_out=why == "timeout",
            cancelled=why == "cancel",
            left_behind=0 if why else int(told.get("left", 0)),
        )

    def _command(self, argv: Sequence[str], status: int, timeout_s: float) -> list[str]:
        is_bare = self.name == "none"
        spec: dict[str, Any] = {
            "status": status,
            "write": [str(self._root), str(self._tmp)],
            "hidden": self._hidden,
            "landlock": self.name == "landlock",
            "seccomp": not is_bare,
            "network": self._network or is_bare,
            "limits": {
                "CORE": 0,
                "CPU": int(timeout_s * (os.cpu_count() or 1)) + 10,
                "FSIZE": FILE_BYTES,
                "NPROC": PROCESSES,
            },
        }
        entered = [sys.executable, "-I", "-S", str(ENTER), json.dumps(spec), *argv]
        return [*self._bwrap(), *entered] if self.name == "bwrap" else entered

    def _bwrap(self) -> list[str]:
        path = self.which("bwrap") or "bwrap"
        command = [path, "--unshare-all", "--die-with-parent", "--new-session"]
        if self._network:
            command.append("--share-net")
        command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for hidden in self._hidden:
            command += ["--tmpfs", hidden]
        for path_ in (self._root, self._tmp):
            command += ["--bind", str(path_), str(path_)]
        for name in ("hooks", "config"):  # what git runs for the user later
            inner = self._root / ".git" / name
            if inner.exists():
                command += ["--ro-bind", str(inner), str(inner)]
        return [*command, "--"]


class _Watch:
    """A process that is listened to."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        heard: int,
        kept: Kept,
        on_output: Callable[[bytes], None] | None,
    ) -> None:
        self._process, self._heard, self._kept, self._on_output = process, heard, kept, on_output
        assert process.stdout is not None
        self._out = process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        for file in (self._out, heard):
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ)

    def until_end(self, deadline: float, cancel: threading.Event) -> tuple[dict[str, Any], str]:
        """What the watcher said, and "timeout" or "cancel" where that ended it."""
        told = b""
        while True:
            if cancel.is_set():
                return self.end(), "cancel"
            left = deadline - time.monotonic()
            if left <= 0:
                return self.end(), "timeout"
            for key, _ in self._selector.select(min(left, 0.1)):
                data = self._read(key.fd)
                if key.fd == self._out:
                    self._take(data)
                elif data:
                    told += data
                elif data == b"":  # all that could write it has ended
                    self._drain()
                    # one that could kill the watcher may live on in its group
                    return _parsed(told) or self.end(), ""

    def _read(self, file: int) -> bytes | None:
        """None: nothing now."""
        try:
            data = os.read(file, READ)
        except BlockingIOError:
            return None
        if not data and file == self._out:
            self._selector.unregister(file)
        return data

    def _take(self, data: bytes | None) -> None:
        if data:
            self._kept.add(data)
            if self._on_output is not None:
                self._on_output(data)

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._out in {key.fd for key in self._selector.get_map().values()}:
            data = self._read(self._out)
            self._take(data)
            if data is None:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)

    def end(self) -> dict[str, Any]:
        """All of it, now: the watcher is asked, and killed where it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        deadline = time.monotonic() + END_S
        while self._process.poll() is None and time.monotonic() < deadline:
            for key, _ in self._selector.select(0.05):
                data = self._read(key.fd)
                if key.fd == self._out:
                    self._take(data)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._drain()
        return {}

    def close(self) -> None:
        self._selector.close()
        os.close(self._heard)
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)


def _parsed(told: bytes) -> dict[str, Any]:
    try:
        found = json.loads(told)
    except ValueError:  # the watcher was killed
        return {}
    return found if isinstance(found, dict) else {}
