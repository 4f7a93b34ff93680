"""Which engine is there, for whom, and what the service does when it must go."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.app import App
from radchat.daemon.worker import Worker
from radchat.engine.request import Event, Finished, FinishReason, Request
from radchat.errors import Busy, ModelBroken
from tests.daemon.services import GREEDY, LONG, WHERE, House, house, named, run, until
from tests.fakes import END, greedy, says, scripted_engine, text


async def _long_answer(home: House) -> tuple[asyncio.Task[None], str]:
    """One that runs until it is cancelled, and its request's id."""
    stream = home.service.generate(
        where=WHERE, text="long", new_session=True, dtype="fp32", options=LONG
    )
    init = next(e for e in [event async for event in _until_init(stream)] if e.name == "init")

    async def read_on() -> None:
        async for _event in stream:
            pass

    return asyncio.create_task(read_on()), str(init.data["request"])


async def _until_init(stream: Any) -> Any:
    async for event in stream:
        yield event
        if event.name == "init":
            return


# -- unloading -------------------------------------------------------------------------------------


def test_a_model_that_answers_or_is_waited_for_is_busy_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            running, request = await _long_answer(home)
            home.room_for(1)
            with pytest.raises(Busy, match="is answering"):
                await asyncio.wait_for(home.service.models_unload(), 60)
            waiting = asyncio.create_task(home.say("b", new_session=True, dtype="bf16"))
            engines = home.service._engines
            await until(lambda: engines._asking and engines.loading is None)
            with pytest.raises(Busy, match="is answering"):
                await asyncio.wait_for(home.service.models_unload(), 60)
            await home.service.cancel(request)
            await running
            assert (await waiting)["branches"][0]["dtype"] == "bf16"
            assert (await home.service.models_unload())["models"] == ["tiny"]
            nothing = {"unloaded": False, "models": [], "engines": []}
            assert await home.service.models_unload() == nothing

    run(main())


def test_a_model_that_loads_is_busy_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            gate = threading.Event()
            home.hold(gate)
            asking = asyncio.create_task(home.say("x", new_session=True))
            await until(lambda: home.service._engines.loading is not None)
            with pytest.raises(Busy, match="tiny is loading"):
                await asyncio.wait_for(home.service.models_unload(), 60)
            gate.set()
            await asking

    run(main())


def test_a_load_goes_on_from_its_first_moment_without_whoever_asked_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            engines = home.service._engines
            asking = asyncio.create_task(home.say("x", new_session=True))
            await until(
                lambda: engines.loading is not None
            )  # it is only being counted what it needs
            asking.cancel()
            await until(lambda: engines.loaded is not None)
            assert engines.loaded is not None
            await until(lambda: engines.loaded is not None and not engines.loaded.users)

    run(main())


# -- replacing -------------------------------------------------------------------------------------


def _spoil(home: House, name: str) -> None:
    """As many bytes as before, of which nobody can make sense."""
    path = next(home.places.models.glob("other-*")) / name
    path.write_bytes(b"{" * path.stat().st_size)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_that_cannot_be_loaded_leaves_the_one_that_is(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            _spoil(home, name)
            first = await home.say("hello " * 20, new_session=True)
            with pytest.raises(ModelBroken):
                await home.ask("x", new_session=True, model="other")
            after = await home.say("and on", session=first["session"])
            assert after["usage"]["cached_input_tokens"] > 100
            assert home.service.state == "ready"

    run(main())


def test_a_model_loads_with_its_progress_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            gate = threading.Event()
            home.hold(gate)
            stream = home.service.models_load(where=WHERE, dtype="fp32")
            events = []
            async for event in stream:
                events.append(event)
                gate.set()
            assert named(events, "progress")[0]["stage"] == "load"
            assert events[-1].name == "done"
            assert events[-1].data["model"] == "tiny"
            assert not stream.has_begun

    run(main())


# -- stopping: what may be asked for again ---------------------------------------------------------


class _Stopper:
    def about(self) -> dict[str, Any]:
        return {}

    def stop(self, *, force: bool) -> None:
        raise AssertionError


async def _cut(home: House, when: Any) -> dict[str, Any]:
    """The error a client gets whose answer is cut as soon as ``when``."""
    app = App(_Stopper(), clock=time.monotonic)
    app.ready(home.service)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.sleep(3600)

    events = home.service.generate(
        where=WHERE, text="only once please", new_session="aaa", dtype="fp32", options=GREEDY
    )
    streaming = asyncio.create_task(app.stream("generate", events, receive, send))
    await until(when)
    app.cut.set()
    await streaming
    return dict(json.loads(b"".join(sent))["error"])


def test_a_turn_that_has_begun_is_never_said_to_be_open_for_asking_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            await home.say("load", new_session=True)
            began, gate = threading.Event(), threading.Event()

            def before(name: str) -> None:
                if name == "begin":
                    began.set()
                    assert gate.wait(30)

            store.before = before
            error = await _cut(home, began.is_set)
            gate.set()
            assert (error["code"], error["stopping"]) == ("busy", False)
            await until(lambda: not home.service.busy)
            said = [text for role, text in await home.texts(session="aaa") if role == "user"]
            assert said == ["only once please"]

    run(main())


def test_a_turn_cut_before_it_began_may_be_asked_again_and_has_left_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            engines = home.service._engines
            for when in (lambda: engines.loading is not None, lambda: home.service._answers):
                gate = threading.Event()
                home.hold(gate)  # first where it would load, then where it would be checked
                error = await _cut(home, when)
                gate.set()
                assert (error["code"], error["stopping"]) == ("busy", True)
                await until(lambda: not home.service.busy and engines.loading is None)
                assert (await home.service.sessions_list(WHERE))["sessions"] == []

    run(main())


def test_an_answer_that_is_closed_at_once_is_forgotten_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            stream = home.service.generate(where=WHERE, text="x", new_session=True)
            await stream.aclose()
            assert [event async for event in stream] == []
            assert not home.service.busy
            assert (await home.service.status())["answers"] == 0

    run(main())


# -- the stream's hot path -------------------------------------------------------------------------


def test_events_that_come_together_are_sent_together() -> None:
    from radchat.protocol import Event as Told

    sent: list[bytes] = []

    async def many() -> Any:
        for number in range(1000):
            yield Told("delta", {"choice": 0, "text": str(number)})
        yield Told("done", {})

    async def main() -> None:
        async def receive() -> Any:
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        app = App(_Stopper(), clock=time.monotonic)
        await app.stream("generate", many(), receive, send)
        assert app.idle

    run(main())
    assert b"".join(sent).count(b"event: delta\n") == 1000
    assert len(sent) < 50


# -- the engine's thread ---------------------------------------------------------------------------

PROMPT = [72, 105, 257]


def _request(name: str, *, n: int = 1) -> Request:
    params = greedy(None, stop_ids=frozenset({END}))
    return Request(name, array("I", PROMPT), params, n=n)


def test_the_worker_runs_a_scripted_engine_and_hands_its_events_over_in_order() -> None:
    async def main() -> None:
        broken: list[BaseException] = []
        worker = Worker(broken.append)
        worker.start()
        engine = await worker.install("a", lambda: scripted_engine(says("Hello, you two")))
        inboxes: dict[str, list[Event]] = {"a": [], "b": []}
        for name, inbox in inboxes.items():
            await worker.submit("a", _request(name, n=2), inbox.append)
        await until(lambda: not worker._sinks)
        await worker.call(lambda: None)  # and what was handed over has arrived
        for name, inbox in inboxes.items():
            assert [text(inbox, name, choice) for choice in (0, 1)] == ["Hello, you two"] * 2
            assert isinstance(inbox[-1], Finished)
            assert inbox[-1].last
        await worker.call(engine.check_idle)
        worker.stop()
        assert broken == []

    run(main())


def test_the_worker_ends_a_request_that_is_aborted() -> None:
    async def main() -> None:
        worker = Worker(lambda _error: None)
        worker.start()
        await worker.install("a", scripted_engine)  # says letters for ever
        inbox: list[Event] = []
        await worker.submit("a", _request("a"), inbox.append)
        await until(lambda: len(inbox) > 3)
        worker.abort("a")
        worker.abort("nobody")
        await until(lambda: isinstance(inbox[-1], Finished))
        end = inbox[-1]
        assert isinstance(end, Finished)
        assert end.reason == FinishReason.ABORT
        worker.stop()

    run(main())


def test_an_engine_that_breaks_is_told_once_and_its_thread_is_gone() -> None:
    async def main() -> None:
        broken: list[BaseException] = []
        worker = Worker(broken.append)
        worker.start()

        def break_down(_rows: int) -> None:
            raise ArithmeticError

        await worker.install("a", lambda: scripted_engine(on_forward=break_down))
        await worker.submit("a", _request("a"), lambda _event: None)
        await until(lambda: broken)
        assert [type(error) for error in broken] == [ArithmeticError]
        worker._thread.join(5)
        assert not worker._thread.is_alive()

    run(main())


def test_a_broken_engine_ends_the_daemon_without_its_words_in_the_log() -> None:
    code = (
        "import logging; logging.basicConfig()\n"
        "from radchat.daemon.service import _engine_broke\n"
        "_engine_broke(ValueError('a secret word'))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 70
    assert "ValueError" in done.stderr
    assert "secret" not in done.stderr


def test_the_last_used_model_need_not_be_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            home.places.state.joinpath("models.json").unlink()
            home.places.state.rmdir()
            home.places.state.write_text("in the way")
            done = await home.say("x", new_session=True, model="tiny")
            assert done["branches"][0]["message"]

    caplog.set_level(logging.WARNING)
    run(main())
    assert "not remembered" in caplog.text
