"""`kill -9` at random moments while KV is written: the next command works, nothing is lost."""

from __future__ import annotations

import random

import pytest

from tests.e2e.busy import Busy, Told
from tests.e2e.conftest import Homes
from tests.e2e.homes import Home

LONGEST_S = 1.2  # from the first answer to the kill


def moments(dice: random.Random) -> float:
    return dice.random() * LONGEST_S


def assert_all_is_there(busy: Busy) -> None:
    by_session: dict[str, list[Told]] = {}
    for told in busy.told:
        by_session.setdefault(told.session, []).append(told)
    client = busy.client()
    for session, turns in by_session.items():
        where = busy.chats[0].where
        messages = client.call("tree", where=where, session=session)["messages"]
        found = {message["id"]: message for message in messages}
        for told in turns:
            assert found[told.user]["text"] == told.asked
            answer = found[told.message]
            assert (answer["parent"], answer["text"]) == (told.user, told.answered)


def assert_the_disk_is_in_order(busy: Busy) -> int:
    """How many blocks there are."""
    home = busy.home
    with busy.client().stream("cache.verify") as events:
        verified = list(events)[-1].data
    assert verified["ok"], verified
    assert list((home.places.kv / "tmp").iterdir()) == []
    with home.store() as store:
        assert store.verify() == []
    return int(verified["blocks"])


def assert_the_same_is_said(busy: Busy) -> int:
    """A turn asked again, from whatever the disk holds of it: so many tokens."""
    told = busy.random.choice(busy.told)
    options = {"temperature": 0, "max_tokens": 4}
    with busy.client().stream(
        "generate", where=busy.chats[0].where, kind="retry", session=told.session,
        ref=told.message, dtype="fp32", options=options,
    ) as events:  # fmt: skip
        (answer,) = list(events)[-1].data["branches"]
    shorter = min(len(answer["text"]), len(told.answered))
    assert answer["text"][:shorter] == told.answered[:shorter]
    assert sum(answer["cache"].values()) == answer["usage"]["input_tokens"]
    return int(answer["cache"]["disk"])


@pytest.mark.parametrize(
    "times", [10, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_killed_while_kv_is_written_no_turn_is_lost_and_the_store_is_whole(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    home: Home = homes(RADCHAT_KV_DEVICE="2048tok")  # less than they need: it is evicted, too
    for name, value in home.env.items():  # of the daemons that this process starts
        monkeypatch.setenv(name, value)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    busy = Busy(home, seed)
    restored = blocks = 0
    for _ in range(times):
        busy.until_killed(moments)
        assert_all_is_there(busy)
        blocks = max(blocks, assert_the_disk_is_in_order(busy))
        restored += assert_the_same_is_said(busy)
    assert blocks > 3, "nothing was written"
    assert restored > 0, "nothing was read"
    home.assert_balanced()
    home.stop()
    assert "Traceback" not in home.log()
