"""The real daemon, told by files of a test when to die and what time it is.

``python -P hooked_daemon.py FOLDER``. FOLDER/die holds ``MOMENT N``: at the N-th such moment the
process gets SIGKILL, there and then. FOLDER/wait likewise: its thread waits there until the file is
gone, and FOLDER/waits tells so. FOLDER/clocks holds JSON
``{"awake": S, "boot": S, "wall": S}``: seconds that those clocks are off. While FOLDER/hold is
there, answers wait where it says: at ``submit``, each known by a file ``at-REQUEST``, or the
engines after the first ``words``. FOLDER/script names a script by which its models answer
(tests/scripted.py): ``module:function``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from radchat import config
from radchat.config import Config
from radchat.daemon import starting
from radchat.daemon.awake import awake_time
from radchat.daemon.desk import Desk, EphemeralStore
from radchat.daemon.engines import Engines
from radchat.daemon.handing import Sink
from radchat.daemon.main import serve
from radchat.daemon.opener import Opener
from radchat.daemon.pin_book import PinBook, boot_time
from radchat.daemon.service import Service
from radchat.daemon.worker import Worker
from radchat.engine.request import Event, Progress, Request, Started, Tokens
from radchat.errors import RadchatError
from radchat.paths import Places, private_folder
from radchat_sessions.messages import Ended
from radchat_sessions.running import AppendFile
from radchat_sessions.store import IN_MEMORY, Store

MOMENTS = {
    "load": ("reading weights", "making the engine"),
    "prefill": ("prefill step",),
    "decode": ("before ids", "between ids and words", "after words"),
    "commit": ("begin", "begun", "finish", "in the transaction", "committed", "finished"),
}


class Told:
    """``MOMENT N`` in a file: the N-th such moment, counted from when it was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._armed: str | None = None
        self._left = 0

    def is_now(self, moment: str) -> bool:
        try:
            told = self.path.read_text()
        except FileNotFoundError:
            return False
        if told != self._armed:
            self._armed, self._left = told, int(told.rpartition(" ")[2])
        if told.rpartition(" ")[0] != moment:
            return False
        self._left -= 1
        return self._left == 0


class Hooks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._die, self._wait = Told(folder / "die"), Told(folder / "wait")
        self._clocks = folder / "clocks"

    def reach(self, moment: str) -> None:
        """Die here, or wait, if this is the moment."""
        if self._die.is_now(moment):
            self._die.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._wait.is_now(moment):
            (self._folder / "waits").touch()
            while self._wait.path.exists():
                time.sleep(0.01)

    def holds(self, moment: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / "hold").read_text() == moment
        return False

    def arrive(self, request: str) -> None:
        (self._folder / f"at-{request}").touch()

    def opener(self, settings: Config) -> Opener | None:
        try:
            name = (self._folder / "script").read_text()
        except FileNotFoundError:
            return None
        sys.path.append(str(Path(__file__).parents[2]))  # behind the sources that it runs
        from tests import scripted

        return scripted.ScriptedOpener(settings, scripted.named(name))

    def clock(self, name: str, true: Callable[[], float]) -> Callable[[], float]:
        def told() -> float:
            with contextlib.suppress(FileNotFoundError):
                return true() + float(json.loads(self._clocks.read_text()).get(name, 0.0))
            return true()

        return told


def hooked(hooks: Hooks) -> Callable[[Places, Config], Service]:
    """A maker of services whose every moment is told to the hooks."""

    class HookedFile(AppendFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._holds_words = path.suffix == ".text"

        def write(self, data: bytes) -> int:
            if self._holds_words:
                hooks.reach("between ids and words")
            return super().write(data)

        def close(self) -> None:
            hooks.reach("committed")  # the files go when their message is in the database
            super().close()

    class HookedStore(Store):
        def begin(self, *args: Any, **named: Any) -> Any:
            hooks.reach("begin")
            begun = super().begin(*args, **named)
            hooks.reach("begun")
            return begun

        def append_ids(self, *args: Any, **named: Any) -> None:
            hooks.reach("before ids")
            super().append_ids(*args, **named)
            hooks.reach("after words")

        def finish(self, *args: Any, **named: Any) -> Ended:
            hooks.reach("finish")
            ended = super().finish(*args, **named)
            hooks.reach("finished")
            return ended

        @contextlib.contextmanager
        def as_one(self) -> Iterator[None]:
            with super().as_one():
                yield
                hooks.reach("in one")
            hooks.reach("stored")

        def _branch_to_answer(self, *args: Any) -> Any:
            placed = super()._branch_to_answer(*args)
            hooks.reach("in the transaction")
            return placed

    class HookedDesk(Desk):
        async def open(self) -> None:
            def opening() -> None:
                private_folder(self._places.data)
                private_folder(self._places.running)
                self.stored = HookedStore.open(
                    self._places.database,
                    running_dir=self._places.running,
                    clock=hooks.clock("wall", time.time),
                    open_file=HookedFile,
                )
                self.ephemeral = EphemeralStore.open(IN_MEMORY)
                self.ephemeral.beside, self.stored.beside = self.stored, self.ephemeral

            await self.run(opening)

    class HookedWorker(Worker):
        def submit_all(
            self, key: str, requests: Sequence[tuple[Request, Sink]]
        ) -> asyncio.Future[None]:
            async def wait() -> None:
                while hooks.holds("submit"):
                    for request, _ in requests:
                        hooks.arrive(request.id)
                    await asyncio.sleep(0.01)
                await submit(key, requests)

            submit = super().submit_all
            return asyncio.ensure_future(wait()) if hooks.holds("submit") else submit(key, requests)

        def _deliver(self, events: list[Event]) -> None:
            reads = any(isinstance(event, (Started, Progress)) for event in events)
            if reads and not any(isinstance(event, Tokens) for event in events):
                hooks.reach("prefill step")
            elif events:
                hooks.reach("decode step")
            super()._deliver(events)
            while any(isinstance(e, Tokens) for e in events) and hooks.holds("words"):
                time.sleep(0.01)

    class HookedEngines(Engines):
        @property
        def share_loaded(self) -> float:
            return self._share

        @share_loaded.setter
        def share_loaded(self, share: float) -> None:
            self._share = share
            if self.loading is not None and share:
                hooks.reach("reading weights")

        def _build_engine(self, *args: Any) -> Any:
            hooks.reach("making the engine")
            return super()._build_engine(*args)

    class HookedService(Service):
        def __init__(self, places: Places, settings: Config) -> None:
            super().__init__(places, settings)
            awake = hooks.clock("awake", awake_time)
            self._desk = HookedDesk(places)
            self._pins = PinBook(hooks.clock("boot", boot_time))
            self._worker = HookedWorker(_ended)
            opener = hooks.opener(settings)
            self._engines = HookedEngines(
                places, settings, self._worker, clock=awake, opener=opener
            )

    return HookedService


def _ended(error: BaseException) -> None:
    os._exit(70)


def main(folder: str) -> int:
    hooks = Hooks(Path(folder))
    places = Places.from_env()
    started_by_client = starting.READY_FD in os.environ
    try:
        return serve(
            places,
            config.load(places),
            foreground=not started_by_client,
            service_factory=hooked(hooks),
            clock=hooks.clock("awake", awake_time),
        )
    except RadchatError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
