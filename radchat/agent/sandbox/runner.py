"""Runs one command in a sandbox: its output, its time, its end, and that of all it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from radchat.agent.sandbox import processes
from radchat.agent.sandbox.bwrap import wrapped
from radchat.agent.sandbox.policy import Bounds, Kind, Policy, find_bwrap
from radchat.agent.sandbox.temporary import Temporary
from radchat.agent.types import Ran, RunInterrupted
from radchat.errors import ConfigInvalid, RadchatError

ENTER = Path(__file__).with_name("enter.py")
MOST_KEPT = 8 * 1024**2  # bytes of output, at its beginning and again at its end
TICK_S = 0.05
LATE_S = 15.0  # the supervisor keeps the time; this long after it, it is given up


class CannotRun(RadchatError):
    """The command did not begin, or nobody knows how it ended."""

    code = "cannot_run"


class Output:
    """What a command said: all of it, or its beginning and its end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._most - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]

    def parts(self) -> tuple[bytes, bytes, int]:
        tail = bytes(self._tail[-self._most :])
        return bytes(self._head), tail, self._total - len(self._head) - len(tail)


class SandboxRunner:
    """Several commands may run at once. ``root``: the folder that may be written; ``hidden``:
    folders that no command may read. ``close`` removes the commands' own temporary folder.

    Raises ConfigInvalid where that can't be had.
    """

    def __init__(
        self,
        kind: Kind,
        root: Path,
        hidden: Sequence[Path],
        env: Mapping[str, str],
        *,
        network: bool = False,
        bounds: Bounds | None = None,
        most_kept: int = MOST_KEPT,
        alias: Path | None = None,
    ) -> None:
        self.kind = kind
        self._temporary = Temporary()
        real = tuple(Path(os.path.realpath(path)) for path in hidden)
        self.policy = Policy(
            root.resolve(), self._temporary.path, real, network, bounds or Bounds(), alias
        )
        self._env = self.policy.environ(env)
        self._most_kept = most_kept
        self._bwrap = find_bwrap(env, self.policy.workspace) or "bwrap"
        if problem := self.policy.problem(kind):
            self.close()
            raise ConfigInvalid(problem)

    def close(self) -> None:
        self._temporary.close()

    def scratch(self, name: str, data: bytes) -> Path:
        """A file that commands can read, in the temporary folder."""
        path = self.policy.temporary / name
        path.write_bytes(data)
        return path

    def which(self, *names: str) -> str | None:
        """The first of these programs that is on the path commands have."""
        found = (shutil.which(name, path=self._env["PATH"]) for name in names)
        return next((path for path in found if path), None)

    @property
    def name(self) -> str:
        return self.kind

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        timeout_s: float,
        cancel: threading.Event,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Raises CannotRun where it does not begin, RunInterrupted at Ctrl+C. However it ends,
        nothing of it is left running.
        """
        if self.kind == "bwrap":
            words = wrapped(self._bwrap, self.policy, argv, cwd)
            cwd = Path("/")
        else:
            words = list(argv)
        order = self.policy.order(self.kind, words, cwd, timeout_s)
        order["env"] = self._env
        began = time.monotonic()
        output = Output(self._most_kept)
        was_interrupted = False
        with _Supervised(order) as supervised:
            try:
                told = supervised.follow(timeout_s + LATE_S, cancel, output, on_output)
            except KeyboardInterrupt:
                was_interrupted = True
                supervised.end()
                told = supervised.hear(time.monotonic() + LATE_S, cancel, output, None)
        if "error" in told and was_interrupted:
            raise KeyboardInterrupt
        if "error" in told:
            raise CannotRun(f"it could not be started: {told['error']}")
        head, tail, left_out = output.parts()
        ran = Ran(
            code=told["code"],
            signal=told["signal"],
            head=head,
            tail=tail,
            left_out=left_out,
            seconds=time.monotonic() - began,
            timed_out=told["ended"] == "timeout",
            cancelled=told["ended"] == "cancelled",
            too_many=told["ended"] == "processes",
            left_behind=told["left"],
        )
        if was_interrupted:
            raise RunInterrupted(ran)
        return ran


class _Supervised:
    """enter.py in a process of its own, and the three pipes to it."""

    def __init__(self, order: dict[str, Any]) -> None:
        read_order, self._order = os.pipe()
        self._output, write_output = os.pipe()
        self._report, write_report = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(ENTER)],
                stdin=read_order,
                stdout=write_output,
                stderr=write_output,
                pass_fds=[write_report],
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError as error:
            self._close(self._order, self._output, self._report)
            raise CannotRun(f"it could not be started: {error}") from error
        finally:
            self._close(read_order, write_output, write_report)
        self._said = b""  # its report, as far as it has come
        self._words = json.dumps({**order, "report": write_report}).encode() + b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LATE_S)
        self._close(self._output, self._report)

    def end(self) -> None:
        """The end of the order's pipe ends the command, if it still runs."""
        if self._order >= 0:
            self._close(self._order)
            self._order = -1

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def follow(
        self,
        patience_s: float,
        cancel: threading.Event,
        output: Output,
        on_output: Callable[[bytes], None] | None,
    ) -> dict[str, Any]:
        """Until it has ended, from its beginning."""
        with contextlib.suppress(BrokenPipeError):  # its report, or the lack of one, tells
            self._write(self._words)
        return self.hear(time.monotonic() + patience_s, cancel, output, on_output)

    def hear(
        self,
        until: float,
        cancel: threading.Event,
        output: Output,
        on_output: Callable[[bytes], None] | None,
    ) -> dict[str, Any]:
        """Until the supervisor has ended, and with it all that the command started.

        Never until the output has: who holds that pipe may be gone, or be stuck.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._report, selectors.EVENT_READ)
            while True:
                for descriptor in [key.fd for key, _ in selector.select(TICK_S)]:
                    data = os.read(descriptor, 65536)
                    if descriptor == self._report and data:
                        self._said += data
                    elif descriptor == self._report:
                        self._drain(output)
                        return self._told()
                    elif data:
                        output.add(data)
                        if on_output:
                            on_output(data)
                    else:
                        selector.unregister(self._output)
                if cancel.is_set():
                    self.end()
                if time.monotonic() > until:
                    self._process.kill()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._order, data) :]

    def _drain(self, output: Output) -> None:
        os.set_blocking(self._output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 65536):
                output.add(data)

    def _told(self) -> dict[str, Any]:
        """What the supervisor said last; where it was ended itself, what it can't do is done."""
        lines = [json.loads(line) for line in self._said.splitlines() if line.endswith(b"}")]
        last: dict[str, Any] = lines[-1] if lines else {"error": "the supervisor did not start"}
        if "pid" not in last:
            return last
        there = [each for each in processes.everything() if each.session == last["pid"]]
        processes.tell(there, signal.SIGKILL)
        raise CannotRun("it ended its own supervisor; what was still there of it has been ended")
