"""The terminal side's door to the daemon: find it or start it, ask, stream. Light.

The address comes from the lock file, and is trusted only as far as somebody answers there. A start
is made by one client at a time, under a second lock (``daemon.lock.start``); the others wait for
what it starts. Nothing that was sent is ever sent again by itself, but for what the daemon says it
did not begin ("stopping").
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from radchat.daemon.lock import DaemonInfo, Lock, is_held, is_suspended, read_info
from radchat.daemon.starting import COMMAND, Spawned, spawn
from radchat.errors import Busy, RadchatError, Unreachable
from radchat.paths import Places
from radchat.protocol import STREAMS, build_id
from radchat.wire import EventStream, Exchange, result

PATIENCE = 30.0  # seconds for a daemon that holds the lock to answer at all
PRIVATE_PATIENCE = 5.0  # seconds for another command's private daemon to go
POLL = 0.02  # seconds
STARTING = "starting the daemon"

Notice = Callable[[str], None]  # a line the user must see
Wait = Callable[[str], None]  # what is being waited for, to show or not
_spawned: list[Spawned] = []  # kept so that an ended child is reaped, not left a zombie


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class Client:
    """One daemon, asked over a new connection each time; found again if it was replaced."""

    def __init__(
        self,
        places: Places,
        *,
        start: bool = True,
        daemon_socket: str | Path | None = None,
        on_wait: Wait | None = None,
        on_notice: Notice = _say,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Connects nothing yet: use ``connect``."""
        self.places = places
        self._start = start
        self._fixed = None if daemon_socket is None else str(daemon_socket)
        self._address = self._fixed
        self._on_wait = on_wait
        self._on_notice = on_notice
        self._command = command
        self._private: Spawned | None = None
        self.health: dict[str, Any] = {}

    @classmethod
    def connect(
        cls,
        places: Places,
        *,
        start: bool = True,
        daemon_socket: str | Path | None = None,
        on_wait: Wait | None = None,
        on_notice: Notice = _say,
        command: Sequence[str] = COMMAND,
    ) -> Client:
        """A client whose daemon has answered.

        Finds the daemon, or starts it (``start``); with RADCHAT_NO_DAEMON=1 starts one that ends
        with this process. ``daemon_socket`` names one to use as it is. An idle daemon of another
        build is replaced, a busy one kept, each told in a line to ``on_notice``. ``on_wait`` is
        called a few times a second while there is nothing to do but wait, with what for.

        Raises Unreachable (69) when there is none or it doesn't answer, Busy (75) when a private
        daemon holds this home or RADCHAT_NO_DAEMON meets a live daemon.
        """
        client = cls(
            places,
            start=start,
            daemon_socket=daemon_socket,
            on_wait=on_wait,
            on_notice=on_notice,
            command=command,
        )
        if start and daemon_socket is None and os.environ.get("RADCHAT_NO_DAEMON") == "1":
            client._start_private()
        client.health = client._hello()
        if client._private is None and daemon_socket is None and start:
            client._match_build()
        return client

    # -- asking ------------------------------------------------------------------------------------

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """The answer of one RPC; raises the daemon's error, or Unreachable. No time limit."""
        assert method not in STREAMS, f"{method} is a stream"
        while True:
            with contextlib.closing(self._ask("POST", f"/rpc/{method}", args)) as exchange:
                try:
                    return result(exchange)
                except Busy as error:
                    self._wait_if_stopping(error)
                except OSError as error:
                    raise Unreachable(f"the daemon ended before it answered: {error}") from error

    def glance(self, method: str, patience_s: float, **args: Any) -> dict[str, Any] | None:
        """As ``call``, of the daemon that answered last; None where it does not soon, or has gone:
        none is started, found or waited for.
        """
        if self._address is None:
            return None
        try:
            with contextlib.closing(Exchange(self._address)) as exchange:
                exchange.send("POST", f"/rpc/{method}", args)
                exchange.receive_head(timeout=patience_s)
                return result(exchange)
        except (OSError, RadchatError):
            return None

    def stream(self, method: str, **args: Any) -> EventStream:
        """The events of a streaming RPC; what was wrong before the first event is raised here."""
        assert method in STREAMS, f"{method} is no stream"
        while True:
            exchange = self._ask("POST", f"/rpc/{method}", args)
            if exchange.status == 200:
                return EventStream(exchange)
            with contextlib.closing(exchange):
                try:
                    result(exchange)
                except Busy as error:
                    self._wait_if_stopping(error)
                except OSError as error:
                    raise Unreachable(f"the daemon ended before it answered: {error}") from error

    def _ask(
        self, verb: str, target: str, body: dict[str, Any] | None, timeout: float | None = None
    ) -> Exchange:
        """Send and read the head of the answer. Finds a new daemon only where none was reached."""
        return self._ask_over(self._dial(), verb, target, body, timeout)

    def _ask_over(
        self,
        exchange: Exchange,
        verb: str,
        target: str,
        body: dict[str, Any] | None,
        timeout: float | None,
    ) -> Exchange:
        try:
            exchange.send(verb, target, body)
            on_wait = self._saying("waiting for the daemon") if timeout else None
            exchange.receive_head(timeout=timeout, on_wait=on_wait)
        except TimeoutError as error:
            exchange.close()
            raise Unreachable(self.silence()) from error
        except OSError as error:
            exchange.close()
            raise Unreachable(f"the daemon ended before it answered: {error}") from error
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _wait_if_stopping(self, error: Busy) -> None:
        """A daemon on its way out did nothing with the request: ask the next one instead."""
        if not error.data.get("stopping") or not self._start or self._fixed or self._private:
            raise error
        self._address = None
        time.sleep(POLL)

    # -- finding -----------------------------------------------------------------------------------

    def _dial(self) -> Exchange:
        if self._address is not None:
            try:
                return Exchange(self._address)
            except OSError as error:
                if self._fixed or self._private:
                    raise Unreachable(f"no daemon answers at {self._address}: {error}") from error
        return self._find()

    def _find(self) -> Exchange:
        """A connection to this home's daemon, which is started if need be."""
        deadline = time.monotonic() + PATIENCE
        while True:
            info = read_info(self.places.lock)
            if not is_held(self.places.lock):
                if not self._start:
                    raise Unreachable("no daemon is running: radchat daemon start", running=False)
                self._start_one()
                deadline = time.monotonic() + PATIENCE  # a start takes its time
                continue
            if info is not None and info.private:
                self._refuse_private(info, deadline)
            elif info is not None and info.socket is not None:
                with contextlib.suppress(OSError):  # it is just binding, or just going
                    exchange = Exchange(info.socket)
                    self._address = info.socket
                    return exchange
            if time.monotonic() > deadline:
                raise Unreachable(self.silence())
            self._pause()

    def _start_one(self) -> None:
        """Start a daemon, unless another client is at it; returns when that one listens."""
        start_lock = Lock.take(self.places.lock.with_name("daemon.lock.start"))
        if start_lock is None:
            self._pause()
            return
        try:
            if not is_held(self.places.lock):
                command, on_wait = self._command, self._saying(STARTING)
                _spawned.append(spawn(self.places, command=command, on_wait=on_wait))
        except Busy:
            pass  # somebody started one by hand meanwhile: it will be found
        except OSError as error:
            raise RadchatError(f"the daemon can't be started: {error}") from error
        finally:
            start_lock.release()

    def _start_private(self) -> None:
        deadline = time.monotonic() + PRIVATE_PATIENCE
        while True:
            try:
                self._private = spawn(
                    self.places,
                    command=self._command,
                    private=True,
                    on_wait=self._saying(STARTING),
                )
                break
            except Busy as error:
                info = read_info(self.places.lock)
                if info is None or not info.private or time.monotonic() > deadline:
                    raise Busy(
                        f"RADCHAT_NO_DAEMON=1, but {error.message}: unset it, or stop that one"
                    ) from error
                self._pause()  # a private one that is just ending with its command
            except OSError as error:
                raise RadchatError(f"the daemon can't be started: {error}") from error
        atexit.register(self.close)
        info = read_info(self.places.lock)
        self._address = info.socket if info is not None else None

    def _refuse_private(self, info: DaemonInfo, deadline: float) -> None:
        if time.monotonic() > deadline - PATIENCE + PRIVATE_PATIENCE:
            raise Busy(
                f"a command with RADCHAT_NO_DAEMON=1 (its daemon is pid {info.pid}) "
                f"holds {self.places.data}: try again when it has ended"
            )

    def _pause(self) -> None:
        if self._on_wait is not None:
            self._on_wait("waiting for the daemon")
        time.sleep(POLL)

    def _saying(self, text: str) -> Callable[[], None] | None:
        return None if self._on_wait is None else functools.partial(self._on_wait, text)

    def silence(self) -> str:
        """What to tell a user whose daemon lives and says nothing."""
        info = read_info(self.places.lock)
        who = "the daemon" if info is None else f"the daemon (pid {info.pid})"
        if info is not None and is_suspended(info.pid):
            return f"{who} is suspended: kill -CONT {info.pid} wakes it"
        return f"{who} holds its lock but doesn't answer: radchat daemon stop --force"

    # -- handshake ---------------------------------------------------------------------------------

    def ask_to_stop(self, *, force: bool) -> None:
        """The stop RPC, with a time limit: the daemon may hang."""
        patience = 2.0 if force else PATIENCE
        exchange = self._ask("POST", "/rpc/stop", {"force": force}, timeout=patience)
        with contextlib.closing(exchange):
            result(exchange)

    def _hello(self) -> dict[str, Any]:
        """The health of a daemon that means to stay; one on its way out is waited for."""
        may_change = self._start and not self._fixed and not self._private
        deadline = time.monotonic() + PATIENCE
        while True:
            exchange = self._dial()  # what keeps one from starting is raised here
            try:
                with contextlib.closing(exchange):
                    self._ask_over(exchange, "GET", "/health", None, PATIENCE)
                    health = result(exchange)
                if health.get("state") != "stopping" or not may_change:
                    return health
            except (Unreachable, OSError):
                if not may_change or is_held(self.places.lock):
                    raise
            if time.monotonic() > deadline:
                raise Unreachable(self.silence())
            self._address = None
            self._pause()

    def _match_build(self) -> None:
        """Replace an idle daemon of another build, once; keep a busy one. Both are told."""
        theirs, ours = self.health.get("build"), build_id()
        if theirs == ours:
            return
        answer = self.call("stop", only_idle=True)
        if not answer.get("stopped"):
            self._on_notice(
                f"the daemon (pid {self.health.get('pid')}) is of another build ({theirs}, this is "
                f"{ours}) and busy: kept; `radchat daemon restart` replaces it"
            )
            return
        self._on_notice(f"the daemon was of another build ({theirs}): replaced by {ours}")
        wait_free(self.places, PATIENCE)
        self._address = None
        self.health = self._hello()

    def close(self) -> None:
        """End the private daemon, if there is one, and wait until its home is free."""
        private, self._private = self._private, None
        if private is None or private.life is None:
            return
        os.close(private.life)
        private.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def wait_free(places: Places, timeout: float) -> bool:
    """Wait until nobody holds the lock: the daemon has ended, whatever its pid says."""
    deadline = time.monotonic() + timeout
    while is_held(places.lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    for one in list(_spawned):
        with contextlib.suppress(Exception):
            one.process.wait(timeout=1.0)
            _spawned.remove(one)
    return True
