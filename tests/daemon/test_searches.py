"""Searches: asks that are messages of a session, and what it takes to go on from them."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.searching import search
from tests.daemon.services import WHERE, house, named, run


def test_an_ask_is_stored_with_the_very_ids_and_told_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            assert (s.init["number"], s.init["at"], s.init["found"]) == (1, None, None)
            before = s.computed()
            events = await s.events(
                s.asked("one two", n=3, names=["s1.1", "s1.2", "s1.3"], options={"temperature": 2})
            )
            (answer,) = named(events, "answer")
            assert [event.name for event in events if event.name != "delta"] == ["answer", "done"]
            user = await s.ids(answer["user"])
            assert s.computed() - before == len(user) + 3 * 4, "the prompt once"
            for out in answer["outputs"]:
                message = await s.on_desk(lambda store, of=out["message"]: store.message(of))
                assert (message.text, message.parent) == (out["text"], answer["user"])
                ids = await s.ids(out["message"])
                assert ids[: len(user)] == user
                assert len(ids) == len(user) + 5 == len(user) + out["tokens"]
            first = await s.ids(answer["outputs"][1]["message"])
            ran = s.computed()
            again = await s.ask("three", answer["outputs"][1]["message"], max_tokens=1)
            ids = await s.ids(again["user"])
            assert ids[: len(first)] == first
            assert s.computed() - ran == again["cache"]["computed"] == len(ids) - len(first) + 1
            labels = await s.on_desk(lambda store: store.labels(s.session))
            assert sorted(each.value for each in labels) == ["s1.1", "s1.2", "s1.3"]
            assert (await home.branches()) == {"main": None}
            assert (await home.service.sessions_verify(WHERE))["problems"] == []

    run(main())
