"""An answer's life in the service, and everything that can end it."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import ContextOverflow, InvalidInput, NotFound, RadchatError, UsageError
from radchat.protocol import Event
from tests.daemon.services import (
    GREEDY,
    LONG,
    WHERE,
    House,
    house,
    named,
    notices,
    run,
    until,
)
from tests.e2e.tiny_models import CHATML, converted

NOTHING = {"temperature": 0, "max_tokens": 1}


# -- cancelled before the first token --------------------------------------------------------------


def test_a_turn_cancelled_before_its_first_token_leaves_one_at_it_on_its_branch(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            events = await home.cancelled(text="more", head=first["head"])
            done = events[-1].data
            asked = named(events, "init")[0]["user"]
            assert done["head"] == {"branch": "main", "message": asked}
            assert named(events, "init")[0]["head"] == done["head"]
            body = done["branches"][0]
            assert (body["message"], body["branch"]) == (None, "main")
            after = await home.ask("go on", head=done["head"])
            assert notices(after) == []
            assert after[-1].data["head"]["branch"] == "main"
            texts = [text for role, text in await home.texts() if role == "user"]
            assert texts == ["hello", "more", "go on"]

    run(main())


def test_a_retry_cancelled_before_its_first_token_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            second = await home.say("more", head=first["head"])
            before = await home.branches()
            here = await home.cancelled(kind="retry", head=second["head"])
            assert here[-1].data["head"] == named(here, "init")[0]["head"] == second["head"]
            there = await home.cancelled(kind="retry", ref="1", head=second["head"])
            assert named(there, "init")[0]["branch"] == "main-2"
            assert there[-1].data["head"] == named(there, "init")[0]["head"] == second["head"]
            many = await home.cancelled(kind="retry", ref="1", n=3)
            assert many[-1].data["head"] == second["head"]
            assert await home.branches() == before
            tree = await home.service.tree(WHERE)
            assert (tree["branch"], tree["head"]) == ("main", second["head"]["message"])
            assert notices(await home.ask("on")) == []
            assert await home.running() == 0

    run(main())


def test_a_continue_cancelled_before_its_first_token_makes_no_second_answer(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True)
            events = await home.cancelled(kind="continue", head=first["head"])
            assert named(events, "init")[0]["continues"] == first["branches"][0]["text"]
            assert events[-1].data["head"] == named(events, "init")[0]["head"] == first["head"]
            assert len(await home.texts()) == 2
            assert (await home.service.sessions_show(WHERE))["messages"] == 2

    run(main())


# -- several samples -------------------------------------------------------------------------------


def test_of_several_retries_the_first_gets_the_branch_and_none_is_said_to_have_moved(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            events = await home.ask(
                kind="retry", n=3, options={"temperature": 1, "seed": 1, "max_tokens": 3}
            )
            assert notices(events) == []
            done = events[-1].data
            assert [body["branch"] for body in done["branches"]] == ["main", "main-2", "main-3"]
            assert done["head"] == {"branch": "main", "message": done["branches"][0]["message"]}
            assert await home.branches() == {
                body["branch"]: body["message"] for body in done["branches"]
            }

    run(main())


def test_one_may_ask_for_as_many_samples_as_the_engine_makes(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            done = await home.say("x", new_session=True, n=100, options=NOTHING)
            assert len(done["branches"]) == 100
            with pytest.raises(InvalidInput, match="want 1 to 128"):
                await home.ask("x", n=129)

    run(main())


# -- the order of events ---------------------------------------------------------------------------


def test_an_answer_starts_before_its_first_word_and_its_words_come_before_its_end(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            for _ in range(3):
                names = [event.name for event in await home.ask("x", n=2)]
                assert names.index("start") < names.index("delta")
                assert names.count("message") == 2
                assert names[-1] == "done"

    run(main())


# -- what goes wrong -------------------------------------------------------------------------------


def stumble(on: str, error: BaseException, at: int = 1) -> Any:
    """Raises at the ``at``-th call of one method."""
    calls = {"n": 0}

    def before(name: str) -> None:
        calls["n"] += name == on
        if name == on and calls["n"] == at:
            raise error

    return before


def test_an_error_in_mid_answer_ends_the_request_and_keeps_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            await home.say("hello", new_session="aaa")
            store.before = stumble("append_ids", ValueError("a secret word"), at=3)
            with pytest.raises(RadchatError, match=r"inside the daemon \(ValueError\)"):
                await home.ask("more", options=LONG)
            status = await home.service.status()
            assert (status["running"], status["answers"]) == (0, 0)
            assert status["models"][0]["users"] == 0
            assert not home.service._worker._sinks
            assert await home.running() == 0
            last = (await home.service.log(WHERE))["messages"][-1]
            assert (last["finish_reason"], last["branches"]) == ("error", ["main"])
            assert last["text"]
            assert notices(await home.ask("and on")) == []
            await home.service.sessions_rm(WHERE, ["aaa"])

    run(main())
    assert "generate failed" in caplog.text


def test_an_error_before_the_first_word_leaves_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            await home.say("hello", new_session=True)
            store.before = stumble("finish", ValueError("x"))
            with pytest.raises(RadchatError):
                await home.ask("more")  # what can't be finished is finished as an error
            assert await home.running() == 0
            assert [role for role, _ in await home.texts()] == ["user", "assistant"] * 2

    run(main())


def test_an_answer_goes_on_though_its_running_file_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            folder = home.places.running
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            folder.write_text("in the way")
            done = await home.say(kind="continue")
            assert done["branches"][0]["usage"]["output_tokens"] == 5
            assert await home.running() == 0
            folder.unlink()

    run(main())


@pytest.mark.parametrize("on", ["use", "begin"])
def test_what_fails_around_the_beginning_loses_no_answer_and_leaves_no_session(
    tmp_path: Path, on: str
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            store.before = stumble(on, ValueError("x"))
            if on == "begin":
                with pytest.raises(RadchatError):
                    await home.ask("hello", new_session=True)
                assert (await home.service.sessions_list(WHERE))["sessions"] == []
            else:
                done = await home.say("hello", new_session=True)
                assert done["branches"][0]["message"]
            assert await home.running() == 0

    run(main())


def test_an_unexpected_failure_is_logged_with_its_traceback_and_an_expected_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            store.before = stumble("begin", ZeroDivisionError())
            stream = home.service.generate(
                where=WHERE, text="x", dtype="fp32", new_session=True, options=GREEDY
            )
            await until(lambda: not home.service.busy)  # nobody reads a word of it
            await stream.aclose()
            with pytest.raises(NotFound):
                await home.ask("x", session="nobody")

    run(main())
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == ["generate failed"]
    assert errors[0].exc_info is not None
    assert errors[0].exc_info[0] is ZeroDivisionError


# -- a full disk -----------------------------------------------------------------------------------


def _limit(store: Any, pages: int) -> None:
    store._db._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def _fill(store: Any) -> None:
    (count,) = store._db._connection.execute("PRAGMA page_count").fetchone()
    _limit(store, count)


async def _answered_on_a_full_disk(home: House) -> tuple[asyncio.Task[None], list[Event]]:
    """An answer that has ended and can't be saved, in a session ``aaa``; what it has told."""
    await home.say("hello", new_session="aaa")
    store = await home.stumbling()
    store.before = lambda name: _fill(store) if name == "append_ids" else None
    events: list[Event] = []
    answer = home.service.generate(
        where=WHERE, text="more", session="aaa", dtype="fp32", options=LONG
    )

    async def listen() -> None:
        async for event in answer:
            events.append(event)  # noqa: PERF401 - the test looks at it meanwhile

    asking = asyncio.create_task(listen())
    await until(lambda: "not_saved" in notices(events))
    store.before = lambda _name: None
    return asking, events


def test_an_answer_that_waits_for_the_disk_does_not_hold_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            asking, events = await _answered_on_a_full_disk(home)
            other = await home.say("x", new_session=True, ephemeral=True, dtype="bf16")
            assert other["branches"][0]["dtype"] == "bf16"
            await home.on_desk(lambda store: _limit(store, 1 << 20))
            await asking
            assert notices(events) == ["not_saved"]
            assert [event.name for event in events[-2:]] == ["message", "done"]
            last = (await home.service.log(WHERE, session="aaa"))["messages"][-1]
            assert last["id"] == events[-1].data["head"]["message"]

    run(main())


def test_a_daemon_that_ends_with_a_full_disk_leaves_the_answer_to_its_running_file(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        home = House(tmp_path)
        await home.service.start()
        asking, _events = await _answered_on_a_full_disk(home)
        await asyncio.wait_for(home.service.close(), 60)
        with pytest.raises(RadchatError, match="not saved"):
            await asking
        async with house(tmp_path) as home:
            last = (await home.service.log(WHERE, session="aaa"))["messages"][-1]
            assert last["finish_reason"] == "abort"
            assert len(last["text"]) > 1000

    run(main())


# -- which session ---------------------------------------------------------------------------------


def test_a_session_is_chosen_once_whatever_becomes_current_while_the_model_loads(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("one", new_session="aaa")
            await home.say("two", new_session="bbb")
            await home.service.models_unload()
            await home.service.sessions_use(WHERE, session="aaa")
            gate = threading.Event()
            home.hold(gate)  # where it would load
            asking = asyncio.create_task(home.say("for aaa"))
            await until(lambda: home.service._engines.loading is not None)
            await home.service.sessions_use(WHERE, session="bbb")
            gate.set()
            assert (await asking)["name"] == "aaa"

    run(main())


def test_a_branch_name_that_is_taken_is_a_wrong_command_and_leaves_no_session(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            with pytest.raises(UsageError, match="a branch main already"):
                await home.ask("x", new_session=True, branch="main")
            assert (await home.service.sessions_list(WHERE))["sessions"] == []
            await home.say("hello", new_session=True)
            with pytest.raises(UsageError):
                await home.ask("x", branch="main")

    run(main())


def test_a_session_is_named_by_its_first_words_and_by_no_later_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("the first words", new_session=True)
            assert first["name"] == "the-first-words"
            edited = await home.say("other words", kind="edit", ref="1")
            assert (edited["name"], edited["parent"] is not None) == ("the-first-words", True)
            again = await home.say("system now", system="be brief")
            assert again["name"] == "the-first-words"

    run(main())


# -- what is told before it is done ----------------------------------------------------------------


def test_a_context_larger_than_there_is_is_told_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            events = await home.ask("x", new_session=True, options={**GREEDY, "num_ctx": 10**6})
            (notice,) = named(events, "notice")
            assert "1,000,000" in notice["text"]
            assert "4,096" in notice["text"]
            assert events[-1].data["context"]["limit"] == 4096
            fits = await home.ask("x", options={**GREEDY, "num_ctx": 4096})
            assert notices(fits) == []

    run(main())


def test_what_another_model_must_read_again_is_told_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            folder = next(home.places.models.glob("other-*"))
            _give_another_tokenizer(folder)
            first = await home.say("word " * 120, new_session=True)
            assert first["branches"][0]["model"] == "tiny"
            events = await home.ask("and you?", model="other")
            (notice,) = [n for n in named(events, "notice") if n["code"] == "recompute"]
            made_up = await reuse_of(home, events[-1].data)
            assert [part["cause"] for part in made_up["parts"]] == ["model", "new"]
            assert made_up["matched"] == 0
            assert notice["tokens"] == made_up["parts"][0]["end"] > 600
            assert "tiny wrote this in ids of its own" in notice["text"]
            back = await home.ask("and back", model="tiny", dtype="bf16")
            (notice,) = [n for n in named(back, "notice") if n["code"] == "recompute"]
            assert "other" in notice["text"]

    run(main())


async def reuse_of(home: House, done: dict[str, Any]) -> dict[str, Any]:
    """How the prompt of an answer was made up, as it is kept with it."""
    answer = done["branches"][0]["message"]
    usage = await home.on_desk(lambda store: store.message(answer).usage)
    return dict(usage["reuse"])


def _give_another_tokenizer(folder: Path) -> None:
    """The same letters under other numbers: no id of one is an id of the other."""
    import json

    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(tokenizer))
    about = json.loads((folder / "radchat.json").read_text())
    about["files"]["tokenizer.json"] = path.stat().st_size
    (folder / "radchat.json").write_text(json.dumps(about))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_ctx": 64}])
def test_what_cannot_fit_is_refused_before_it_is_tokenized(
    tmp_path: Path, options: dict[str, int]
) -> None:
    """The exact number would have been counted; "at least" is told from the text's length."""

    async def main() -> None:
        async with house(tmp_path) as home:
            text = "word " * (20_000 if not options else 200)
            with pytest.raises(ContextOverflow, match=r"has at least .* tokens") as caught:
                await home.ask(text, new_session=True, options={**GREEDY, **options})
            assert caught.value.data["limit"] == options.get("num_ctx", 4096)
            assert await home.on_desk(lambda store: store.sessions()) == []

    run(main())


def test_a_turn_nobody_answered_is_named_where_the_template_wants_roles_to_alternate(
    tmp_path: Path,
) -> None:
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
    )

    async def main() -> None:
        async with house(tmp_path) as home:
            converted(home.places.models, "strict", template=strict)
            first = await home.say("hello", new_session=True, model="strict")
            stopped = await home.cancelled(text="more", head=first["head"])
            here = stopped[-1].data["head"]
            with pytest.raises(InvalidInput, match=r"must alternate.*radchat retry.*undo"):
                await home.ask("go on", head=here)
            answered = await home.say(kind="retry", head=here)
            await home.say("go on", head=answered["head"])

    run(main())
