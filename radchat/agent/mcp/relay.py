"""Stands between an agent and an MCP server, in a process of its own: `python -I -S relay.py CMD…`.

It lets through what an agent has a use for, a line at a time and of a bounded length: answers to
what was asked, a few requests and news; all else is counted and dropped. When the agent is gone,
however it ended, its end of stdin is closed, and the server ends with all that it has started.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

sys.path.append(os.path.abspath(__file__ + "/../../../.."))  # noqa: PTH100 - pathlib takes 20 ms

from radchat.agent.sandbox import processes

MOST_LINE = 8 * 1024**2  # bytes of a message
MOST_DROPPED = 64 * 1024**2  # bytes that are no use to anybody, before the server is ended
MOST_STDERR = 64 * 1024  # bytes that are kept of what it says there
MOST_NEWS = 20  # notifications
MOST_REQUESTS = 200  # of the server's
MOST_BUFFER = 1024**2
GRACE_S = 0.5  # after its stdin was closed, and once more after SIGTERM
NEWS = ("notifications/tools/list_changed",)
SUBREAPER = 36


class Pipe:
    """What waits to be written to a descriptor that may not be ready."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting = bytearray()
        os.set_blocking(fd, False)

    def flush(self) -> bool:
        """False: nobody reads it any more."""
        try:
            while self.waiting:
                del self.waiting[: os.write(self.fd, self.waiting[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True


class Filter:
    """What of the server's lines gets through."""

    def __init__(self) -> None:
        self.asked: set[str] = set()  # ids, as JSON
        self.dropped = 0
        self.num_news = self.num_requests = 0

    def sent(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict) and "method" in message and "id" in message:
                self.asked.add(json.dumps(message["id"]))

    def passes(self, line: bytes) -> bool:
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if self._is_wanted(message):
            return True
        self.dropped += len(line) + 1
        return False

    def _is_wanted(self, message: Any) -> bool:
        if not isinstance(message, dict):
            return False
        if "method" not in message:
            key = json.dumps(message.get("id"))
            found = key in self.asked
            self.asked.discard(key)
            return found
        if "id" in message:
            self.num_requests += 1
            return self.num_requests <= MOST_REQUESTS
        if message["method"] in NEWS:
            self.num_news += 1
            return self.num_news <= MOST_NEWS
        return False


class Relay:
    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        self.server = server
        self.to_server, self.to_agent = Pipe(server.stdin.fileno()), Pipe(1)
        self.out, self.err = server.stdout.fileno(), server.stderr.fileno()
        self.filter = Filter()
        self.room = MOST_STDERR
        self.asking, self.line = b"", bytearray()

    def run(self) -> str:
        """Why it is over; "": as the agent wanted it."""
        while True:
            poll = select.poll()
            read_agent = len(self.to_server.waiting) < MOST_BUFFER
            poll.register(0, (select.POLLIN if read_agent else 0) | select.POLLRDHUP)
            if len(self.to_agent.waiting) < MOST_BUFFER:
                poll.register(self.out, select.POLLIN)
            if self.err >= 0:
                poll.register(self.err, select.POLLIN)
            for pipe in (self.to_server, self.to_agent):
                if pipe.waiting:
                    poll.register(pipe.fd, select.POLLOUT)
            for fd, event in poll.poll():
                why = self._on(fd, event)
                if why is not None:
                    return why

    def _on(self, fd: int, event: int) -> str | None:
        if fd == 0:
            if event & select.POLLIN:
                return self._from_agent(os.read(0, 65536))
            return ""
        if fd == self.err:
            data = os.read(fd, 65536)
            if not data:
                self.err = -1
            self._say(data)
        elif fd == self.out:
            return self._from_server(os.read(fd, 65536))
        elif fd == self.to_agent.fd:
            return None if self.to_agent.flush() else ""
        elif not self.to_server.flush():
            return "it closed its stdin"
        return None

    def _from_agent(self, data: bytes) -> str | None:
        if not data:
            return ""
        *lines, self.asking = (self.asking + data).split(b"\n")
        for line in lines:
            self.filter.sent(line)
        self.to_server.waiting += data
        return None if self.to_server.flush() else "it closed its stdin"

    def _from_server(self, data: bytes) -> str | None:
        if not data:
            return "it ended"
        start = 0
        while (at := data.find(b"\n", start)) >= 0:
            self.line += data[start:at]
            start = at + 1
            if self.line.strip() and self.filter.passes(bytes(self.line)):
                self.to_agent.waiting += self.line + b"\n"
            self.line.clear()
        self.line += data[start:]
        if len(self.line) > MOST_LINE:
            return f"a line of more than {MOST_LINE:,} bytes"
        if self.filter.dropped > MOST_DROPPED:
            return f"more than {MOST_DROPPED:,} bytes that answer nothing"
        return None if self.to_agent.flush() else ""

    def say_the_rest(self) -> None:
        if self.err >= 0:
            os.set_blocking(self.err, False)
            with contextlib.suppress(OSError):
                self._say(os.read(self.err, MOST_STDERR))

    def _say(self, data: bytes) -> None:
        data = data[: self.room]
        self.room -= len(data)
        with contextlib.suppress(OSError):
            os.write(2, data)


def _as_usual() -> None:
    """A child would ignore what its parent does."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


def main(argv: list[str]) -> int:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends by its stdin
        signal.signal(each, signal.SIG_IGN)
    try:
        server = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_as_usual,  # noqa: PLW1509 - there are no threads here
        )
    except OSError as error:
        os.write(2, f"{argv[0]}: {(error.strerror or str(error)).lower()}\n".encode())
        return 127
    relay = Relay(server)
    why = relay.run()
    assert server.stdin is not None
    server.stdin.close()
    statuses: dict[int, int] = {}
    processes.wait_gone(statuses, GRACE_S)
    processes.end(statuses, GRACE_S)
    if why:
        relay.say_the_rest()
        code = os.waitstatus_to_exitcode(statuses[server.pid]) if server.pid in statuses else None
        ended = f" (exit code {code})" if why == "it ended" and code is not None else ""
        os.write(2, f"\n{why}{ended}\n".encode())
    os._exit(0)  # nothing of it is left to be waited for


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
