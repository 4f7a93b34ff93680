"""A command cancelled by an id of its client's own, before the client has heard anything of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.arguments import Kind
from radchat.errors import InvalidInput
from tests.daemon.services import GREEDY, WHERE, house, named, run, until

ID = "0123456789abcdef"
ASKED: dict[str, Any] = {"where": WHERE, "dtype": "fp32", "options": GREEDY, "request": ID}


@pytest.mark.parametrize("ephemeral", [False, True])
def test_one_that_has_not_begun_ends_without_a_word_and_leaves_nothing(
    tmp_path: Path, ephemeral: bool
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            first = await home.say("hello", new_session=True, ephemeral=ephemeral)
            session = first["session"]
            stream = home.service.generate(
                text="more", session=session, head=first["head"], ephemeral=ephemeral, **ASKED
            )
            assert await home.service.cancel(ID) == {"cancelled": True}
            assert [event.name async for event in stream] == []
            assert await home.service.cancel(ID) == {"cancelled": False}
            texts = await home.texts(session=session)
            assert [text for role, text in texts if role == "user"] == ["hello"]

    run(main())


@pytest.mark.parametrize("kind", ["turn", "what-if"])
def test_one_that_is_just_beginning_tells_where_one_stands(tmp_path: Path, kind: Kind) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            store = await home.stumbling()
            first = await home.say("hello", new_session=True)
            begins, goes_on = threading.Event(), threading.Event()

            def hold(name: str) -> None:
                if name == "begin":
                    begins.set()
                    assert goes_on.wait(30)

            store.before = hold
            says: dict[str, Any] = {"text": "more"} if kind == "turn" else {"texts": ["a", "b"]}
            stream = home.service.generate(kind=kind, head=first["head"], **says, **ASKED)
            await until(begins.is_set)
            assert await home.service.cancel(ID) == {"cancelled": True}
            goes_on.set()
            init = named([event async for event in stream], "init")[0]
            assert init["request"] == ID
            new = {"branch": "main", "message": init["user"]}
            assert init["head"] == (new if kind == "turn" else first["head"])
            tree = await home.service.tree(WHERE)
            assert tree["branches"]["main"] == init["head"]["message"]

    run(main())


@pytest.mark.parametrize("wrong", ["", "short", "0123456789abcde/"])
def test_an_id_is_sixteen_letters_and_digits(tmp_path: Path, wrong: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            with pytest.raises(InvalidInput, match="want 16 letters and digits"):
                await home.ask("hello", request=wrong)

    run(main())


def test_two_at_a_time_cannot_have_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            stream = home.service.generate(text="hello", new_session=True, **ASKED)
            with pytest.raises(InvalidInput, match="is being answered already"):
                home.service.generate(text="hello", new_session=True, **ASKED)
            assert [event.name async for event in stream][-1] == "done"

    run(main())
