"""The daemon's life: lock, socket, service, idle exit, signals, the end.

``serve`` answers /health before the service is made, so before torch is imported. uvicorn's HTTP
protocol is used without uvicorn's ``Server``: that takes the signals, wakes ten times a second and
cannot be given another socket when the runtime folder was removed
(docs/adr/0009-bare-starlette.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from radchat.config import SETTINGS, Config, shown
from radchat.daemon import logs, starting
from radchat.daemon.awake import awake_time
from radchat.daemon.lock import DaemonInfo, Lock, take_daemon_lock
from radchat.daemon.unix_socket import BACKLOG, bind
from radchat.errors import Busy, RadchatError
from radchat.paths import Places
from radchat.protocol import STOPPING

if TYPE_CHECKING:
    from uvicorn import Config as HttpConfig
    from uvicorn.server import ServerState

    from radchat.daemon.app import App, Service

GRACE_S = 5.0  # running answers may end by themselves this long after a stop
CLOSE_S = 20.0  # the service may take this long to put things away
CHECK_S = 1.0  # between looks at the clock, the lock and the socket
END_S = 5.0  # and threads that hang in a disk this long: then the process ends without them
FAILED_S = 2.0  # a daemon whose service can't start tells whoever waits, this long
MIN_IDLE_S = 1.0  # whoever started it gets to ask
log = logging.getLogger("radchat.daemon")

ServiceFactory = Callable[[Places, Config], "Service"]


def serve(
    places: Places,
    config: Config,
    *,
    foreground: bool = True,
    service_factory: ServiceFactory | None = None,
    clock: Callable[[], float] = awake_time,
) -> int:
    """Run the daemon of this home until it ends; the exit code. In the main thread.

    ``foreground``: somebody watches, so the log goes to stderr too; a daemon that a client started
    has the log as stderr already. Raises Busy where one runs, and whatever else keeps it from
    starting; the client that started it is told the same.
    """
    os.umask(0o077)
    os.environ.setdefault("USE_HUB_KERNELS", "NO")  # transformers fetches none behind our back
    _share_the_cores()
    ready = starting.inherited_pipe(starting.READY_FD)
    life = starting.inherited_pipe(starting.LIFE_FD)
    try:
        lock, info = take_daemon_lock(places, private=life is not None)
        listener = bind(places, private=info.private)
        info = replace(info, socket=listener.getsockname())
        lock.write(info)
    except BaseException as error:
        starting.tell_starter(ready, _as_radchat(error))
        raise
    handler = logs.set_up(places.log, config.log_level, owns_output=not foreground)
    faulthandler.enable()
    starting.tell_starter(ready)
    daemon = Daemon(
        places,
        config,
        lock=lock,
        info=info,
        listener=listener,
        service_factory=service_factory,
        clock=clock,
        log_file=handler,
    )
    try:
        return asyncio.run(daemon.run(life))
    finally:
        lock.write(None)  # and keep it: it is free when the process, with all its memory, is gone
        logs.take_down(handler)


def _share_the_cores() -> None:
    """Keep torch's threads from spinning for long where they wait for each other.

    By default libgomp spins for milliseconds. While anything else runs that costs everything: two
    threads on two busy cores took 300 to 900 ms for a decode step, with a short spin 50 to 80.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is first imported


def _as_radchat(error: BaseException) -> RadchatError:
    if isinstance(error, RadchatError):
        return error
    return RadchatError(f"the daemon did not start: {type(error).__name__}: {error}")


class Daemon:
    """A running daemon. Everything happens on its event loop but the two signal handlers."""

    def __init__(
        self,
        places: Places,
        config: Config,
        *,
        lock: Lock,
        info: DaemonInfo,
        listener: socket.socket,
        service_factory: ServiceFactory | None,
        clock: Callable[[], float],
        log_file: logs.LogFile,
    ) -> None:
        self._places, self._config, self._lock, self._info = places, config, lock, info
        self._listener, self._clock, self._log_file = listener, clock, log_file
        self._factory = service_factory
        self._booted = clock()
        self._inode = _inode(info.socket)
        self._servers: list[asyncio.Server] = []
        self._service: Service | None = None
        self._code = 0
        self._signals = 0

    async def run(self, life: int | None) -> int:
        from radchat.daemon.app import App  # 150 ms that ``ok`` need not wait for

        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._app = App(self, clock=self._clock, places=self._places)
        self._http, self._state = _http(self._app)
        self._servers.append(await self._listen(self._listener))
        self._take_signals()
        if life is not None:
            self._loop.add_reader(life, self._owner_gone, life)
        log.info(
            "listening at %s, pid %d, build %s", self._info.socket, self._info.pid, self._info.build
        )
        tasks = [asyncio.create_task(self._start_service()), asyncio.create_task(self._watch())]
        try:
            await self._ended.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._hang_up()
        log.info("ended")
        faulthandler.dump_traceback_later(END_S, exit=True)  # whatever hangs: a disk may, for ever
        return self._code

    async def _listen(self, listener: socket.socket) -> asyncio.Server:
        def protocol() -> asyncio.Protocol:
            kind: Any = self._http.http_protocol_class
            made: asyncio.Protocol = kind(config=self._http, server_state=self._state, app_state={})
            return made

        return await self._loop.create_server(protocol, sock=listener, backlog=BACKLOG)

    async def _start_service(self) -> None:
        """Make the service and start it; a daemon that can't says why, and ends."""
        try:
            factory = self._factory or _default_factory()
            service = factory(self._places, self._config)
            await service.start()
        except Exception as error:
            log.critical("the service did not start", exc_info=error)
            self._app.fail(_as_radchat(error))
            self._code = 1
            await asyncio.sleep(FAILED_S)
            self.stop(force=True)
            return
        self._service = service
        self._app.ready(service)

    def about(self) -> dict[str, Any]:
        return {
            "pid": self._info.pid,
            "build": self._info.build,
            "protocol": self._info.protocol,
            "private": self._info.private,
            "socket": self._info.socket,
            "log": str(self._places.log),
            "uptime_s": round(self._clock() - self._booted, 3),
            "settings": {s.name: shown(getattr(self._config, s.name)) for s in SETTINGS},
        }

    # -- watching ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._app.stopping:
            await asyncio.sleep(CHECK_S)
            try:
                if not self._app.stopping:  # then it is we who took the socket away
                    await self._check()
            except Exception:
                log.exception("the daemon's look at itself failed")

    async def _check(self) -> None:
        if not self._lock.intact():
            log.error("%s is gone: the home of this daemon was removed", self._lock.path)
            self.stop(force=False)
        elif self._idle_for() >= max(self._config.idle_exit, MIN_IDLE_S):
            log.info("idle for %.0f s", self._idle_for())
            self.stop(force=False)
        elif _inode(self._info.socket) != self._inode:
            await self._bind_again()

    def _idle_for(self) -> float:
        return self._clock() - self._app.last_used if self._app.idle else 0.0

    async def _bind_again(self) -> None:
        """The runtime folder was removed under us: a new socket, told in the lock file."""
        old = self._info.socket
        listener = bind(self._places, private=self._info.private)
        self._servers.append(await self._listen(listener))
        self._info = replace(self._info, socket=listener.getsockname())
        self._inode = _inode(self._info.socket)
        self._lock.write(self._info)
        log.warning("the socket %s was removed: now at %s", old, self._info.socket)

    # -- ending ------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._loop.add_signal_handler(signal.SIGHUP, self._log_file.reopen)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """First: end in order. Second: end now, even if the event loop hangs."""
        self._signals += 1
        if self._signals > 1:
            self._unlink()
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(lambda: self.stop(force=False))

    def _owner_gone(self, life: int) -> None:
        """The command this private daemon belongs to has ended."""
        self._loop.remove_reader(life)
        os.close(life)
        self.stop(force=True)

    def stop(self, *, force: bool) -> None:
        """Stop admitting, give running requests a few seconds (``force``: none), end."""
        if force:
            self._app.cut.set()
        if self._app.stopping:
            return
        self._app.stop_begun.set()
        if self._service is None:
            self._app.fail(Busy(STOPPING, stopping=True))
        self._unlink()  # nobody new finds us; who is connected is answered
        self._ending = asyncio.create_task(self._wind_down())

    async def _wind_down(self) -> None:
        try:
            await self._app.drain(GRACE_S, until_cut=True)
            self._app.cut.set()
            await self._app.drain(GRACE_S, until_cut=False)
            if self._service is not None:
                await asyncio.wait_for(self._service.close(), CLOSE_S)
        except Exception:
            log.exception("the daemon could not put everything away")
            self._code = 1
        finally:
            self._ended.set()

    async def _hang_up(self) -> None:
        """Close the sockets; whoever was waiting in the backlog is told first that we stop."""
        await asyncio.sleep(0.05)
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=1.0)
        for task in list(self._state.tasks):
            task.cancel()

    def _unlink(self) -> None:
        """Remove our socket; another's at the same path is left alone."""
        path = self._info.socket
        if path is not None and _inode(path) == self._inode:
            with contextlib.suppress(OSError):
                Path(path).unlink()


def _inode(path: str | None) -> tuple[int, int] | None:
    try:
        info = os.stat(path or "")  # noqa: PTH116 - called every second
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _http(app: App) -> tuple[HttpConfig, ServerState]:
    import uvicorn
    from uvicorn.server import ServerState

    config = uvicorn.Config(
        app.asgi,
        http="httptools",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    return config, ServerState()


def _default_factory() -> ServiceFactory:
    from radchat.daemon.service import Service  # opens the store; the engine's thread imports torch

    return Service


def start(places: Places, service_factory: ServiceFactory | None = None) -> int:
    """``radchat daemon start --foreground``: read the settings, then serve."""
    from radchat import config

    started_by_client = starting.READY_FD in os.environ
    try:
        settings = config.load(places)
    except RadchatError as error:
        starting.tell_starter(starting.inherited_pipe(starting.READY_FD), error)
        raise
    return serve(
        places, settings, foreground=not started_by_client, service_factory=service_factory
    )
