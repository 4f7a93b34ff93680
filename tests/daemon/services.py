"""The real service in this process, over tiny models: seen as a client sees it, and inside."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from radchat import config
from radchat.config import Config
from radchat.daemon.answering import Answer
from radchat.daemon.arguments import Generate, Options
from radchat.daemon.awake import awake_time
from radchat.daemon.opener import Opener
from radchat.daemon.service import Service
from radchat.engine.hardware import Hardware
from radchat.engine.memory import WORK_BYTES, available
from radchat.models.registry import set_default
from radchat.paths import Places
from radchat.protocol import Event, Where
from radchat_sessions.store import Store
from tests.e2e.tiny_models import converted
from tests.scripted import Script, ScriptedOpener

WHERE: Where = {"terminal": "t1", "folder": "/tmp"}
GREEDY: Options = {"temperature": 0, "max_tokens": 5}
LONG: Options = {"temperature": 0, "max_tokens": 3000}


@functools.cache
def models() -> Path:
    """``tiny`` and ``other``, converted once for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="rs-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    converted(folder / "models", "tiny")
    converted(folder / "models", "other", seed=1, eos=("e", "t"))
    return folder / "models"


class StumblingStore(Store):
    """A store whose methods do first what a test wants: wait, or raise."""

    before: Callable[[str], None] = staticmethod(lambda _name: None)

    def begin(self, *args: Any, **named: Any) -> Any:
        self.before("begin")
        return super().begin(*args, **named)

    def append_ids(self, *args: Any, **named: Any) -> None:
        self.before("append_ids")
        super().append_ids(*args, **named)

    def finish(self, *args: Any, **named: Any) -> Any:
        self.before("finish")
        return super().finish(*args, **named)

    def use(self, *args: Any, **named: Any) -> None:
        self.before("use")
        super().use(*args, **named)


class Machine:
    """What the service asks of a machine. Memory: ``free`` bytes less what engines have; with a
    ``gpu``, that one's own counts instead. ``script``: what is loaded on it answers by that.
    """

    def __init__(
        self,
        free: int | None = None,
        gpu: Hardware | None = None,
        script: Script | None = None,
    ) -> None:
        self.free = free
        self.script = script
        self.gpu = None if gpu is None else lambda *_: gpu
        self.now: float | None = None  # None: the real time
        self.taken: Callable[[], int] = lambda: 0

    def available(self) -> int:
        return available() if self.free is None else self.free - self.taken()

    def clock(self) -> float:
        return awake_time() if self.now is None else self.now


class House:
    """A home with a service in it."""

    def __init__(
        self,
        root: Path,
        machine: Machine | None = None,
        **env: str,
    ) -> None:
        self.machine = machine or Machine()
        self.env = {"RADCHAT_HOME": str(root / "h"), "RADCHAT_KV_DEVICE": "4096tok", **env}
        self.places = Places.from_env(self.env)
        if not self.places.models.exists():
            shutil.copytree(models(), self.places.models)
            set_default(self.places, "tiny")
        settings = config.load(self.places, self.env)
        self.service = Service(
            self.places,
            settings,
            available=None if self.machine.gpu else self.machine.available,
            clock=self.machine.clock,
            opener=_opener(settings, self.machine),
        )
        self.machine.taken = lambda: sum(
            each.num_bytes - each.promised for each in self.service._engines.all
        )

    @property
    def store(self) -> Store:
        return self.service._desk.stored

    async def stumbling(self) -> StumblingStore:
        """From now on the service's store is one that can be made to fail."""
        desk = self.service._desk

        def swap() -> StumblingStore:
            desk.stored.close()
            made = StumblingStore.open(self.places.database, running_dir=self.places.running)
            desk.stored = desk.ephemeral.beside = made
            made.beside = desk.ephemeral
            return made

        return await desk.run(swap)

    async def on_desk(self, work: Callable[[Store], Any]) -> Any:
        return await self.service._desk.run(lambda: work(self.store))

    async def ask(self, text: str = "", **args: Any) -> list[Event]:
        """All events of an answer; raises its error."""
        args = {"where": WHERE, "dtype": "fp32", "options": GREEDY, **args}
        return [event async for event in self.service.generate(text=text, **args)]

    async def say(self, text: str = "", **args: Any) -> dict[str, Any]:
        """The whole result of an answer."""
        return (await self.ask(text, **args))[-1].data

    def answer(self, say: Callable[[Event], None], **args: Any) -> Answer:
        """One that a test listens to from inside."""
        args = {"where": WHERE, "dtype": "fp32", "options": GREEDY, **args}
        service = self.service
        return Answer(Generate(**args), service._desk, service._engines, service._worker, say)

    async def cancelled(self, **args: Any) -> list[Event]:
        """An answer cancelled when the engine has it and has not computed a step of it yet."""
        events: list[Event] = []
        gate = threading.Event()
        loop = asyncio.get_running_loop()

        def release() -> None:
            answer.cancel()
            gate.set()

        def say(event: Event) -> None:
            events.append(event)
            if event.name == "init":
                self.hold(gate)
                loop.call_soon(release)  # after the request has gone into the engine's inbox

        answer = self.answer(say, **args)
        await answer.run()
        return events

    def hold(self, gate: threading.Event) -> None:
        """The engine's thread waits here."""

        def wait() -> None:
            assert gate.wait(30)

        self.service._worker._inbox.put(wait)

    async def loaded(self) -> list[str]:
        """Name and dtype of each loaded model, the one used last first."""
        return [f"{m['name']} {m['dtype']}" for m in (await self.service.models_ps())["models"]]

    def room_for(self, engines: int) -> None:
        """From now on the machine holds so many engines of the size of the one that is loaded."""
        one = max(each.num_bytes for each in self.service._engines.all)
        self.machine.free = engines * one + WORK_BYTES

    async def texts(self, **args: Any) -> list[tuple[str, str]]:
        log = await self.service.log(WHERE, **args)
        return [(message["role"], message["text"]) for message in log["messages"]]

    async def branches(self) -> dict[str, str]:
        return dict((await self.service.sessions_show(WHERE))["branches"])

    async def running(self) -> int:
        return len(await self.on_desk(lambda store: store.running()))


@contextlib.asynccontextmanager
async def house(root: Path, machine: Machine | None = None, **env: str) -> AsyncIterator[House]:
    made = House(root, machine, **env)
    await made.service.start()
    try:
        yield made
    finally:
        await made.service.close()


def _opener(settings: Config, machine: Machine) -> Opener:
    if machine.script is None:
        return Opener(settings, machine.gpu)
    return ScriptedOpener(settings, machine.script)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


def named(events: list[Event], name: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.name == name]


def notices(events: list[Event]) -> list[str]:
    return [str(data["code"]) for data in named(events, "notice")]
