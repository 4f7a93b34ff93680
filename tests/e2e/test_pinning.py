"""Pins through the command line: what stays, how much, how long, and what outlives the daemon."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell
from tests.e2e.hooked import Hooked
from tests.waiting import wait_until

TEXT = "what is to stay, at some length. " * 6


def cached(message: dict[str, Any]) -> int:
    return int(sum(message["cached"].values()))


def messages(terminal: Shell) -> dict[str, dict[str, Any]]:
    return {m["id"]: m for m in terminal.json("tree", "--lru")["messages"]}


@pytest.fixture
def pinned(terminal: Shell) -> Shell:
    """Two branches; one of them is pinned."""
    first = terminal.quick(TEXT)
    for name in ("kept", "left"):
        terminal.json("fork", first["message"], f"{name} is where we go", "-n", name, *EXACT)
    terminal("cache", "pin", "kept")
    return terminal


def test_what_is_pinned_is_marked_has_no_rank_and_stays(pinned: Shell) -> None:
    tree = messages(pinned)
    stats = pinned.json("cache", "stats")
    (pin,) = stats["pins"]
    mine = tree[pin["message"]]
    assert mine["pinned"]
    assert mine["lru_rank"] is None
    assert all(m["pinned"] == (m["lru_rank"] is None) for m in tree.values() if cached(m))
    assert not all(m["pinned"] for m in tree.values())
    assert 0 < 24 * 3600 - pin["expires_s"] < 3600
    assert 0 < stats["pinned_tokens"] <= stats["pin_tokens"] <= stats["pin_limit_tokens"] == 1024
    parts = ("free", "evictable", "pinned", "locked")
    assert sum(stats[f"{name}_tokens"] for name in parts) == stats["total_tokens"]
    assert "G*" in pinned("tree", "--show-cache").out
    assert "G*" in pinned("cache", "ls").out
    assert "G*" in pinned("cache", "tree").out
    assert f"{pin['message'][:4]} of " in pinned("cache", "stats").out
    cleared = pinned("cache", "clear", "-y").err
    assert "are pinned and stay" in cleared
    after = messages(pinned)
    assert {m: cached(after[m]) for m in after if after[m]["pinned"]} == {
        m: cached(tree[m]) for m in tree if tree[m]["pinned"]
    }
    assert pinned.json("cache", "evict", "kept")["freed_tokens"] == 0
    assert pinned.json("cache", "evict", "kept")["pinned_tokens"] > 0


def test_without_the_pin_it_goes_as_everything_does(pinned: Shell) -> None:
    assert "is not pinned any more" in pinned("cache", "unpin", "kept").err
    assert not any(m["pinned"] for m in messages(pinned).values())
    error = pinned.json("cache", "unpin", "kept", code=66)["error"]
    assert "nothing is pinned here" in error["message"]
    pinned("cache", "clear", "-y")
    assert not any(map(cached, messages(pinned).values()))


def test_all_that_is_cleared_is_what_is_pinned_too(pinned: Shell) -> None:
    assert pinned.json("cache", "clear", "--all", "-y")["freed_tokens"] > 0
    stats = pinned.home.stats()
    assert stats["free_tokens"] == stats["total_tokens"]
    assert stats["pins"] == []


def test_a_pin_is_refused_beyond_a_quarter_with_both_numbers(pinned: Shell) -> None:
    other = Shell(pinned.home, f"9{pinned.name}", EXACT)
    other.quick("very much " * 90)
    error = other.json("cache", "pin", code=42)["error"]
    assert error["limit"] == 1024 < error["tokens"]
    assert f"{error['tokens']:,}" in error["message"]
    assert "1,024" in error["message"]
    assert len(pinned.home.stats()["pins"]) == 1


def test_a_pin_ends_in_its_time(hooked: Hooked) -> None:
    hooked.client()
    shell = Shell(hooked.home, "1", EXACT)
    shell.quick(TEXT)
    assert "cached, for 1d23h" in shell("cache", "pin", "--for", "47h").err
    assert "cached, for 1d23h" in shell("cache", "stats").out
    hooked.set(boot_h=46.0)
    assert 0 < hooked.home.stats()["pins"][0]["expires_s"] <= 3600
    hooked.set(boot_h=47.0)
    wait_until(lambda: hooked.home.stats()["pins"] == [])


def test_a_pin_is_for_a_time_that_can_be(pinned: Shell) -> None:
    assert "want a duration" in pinned("cache", "pin", "--for", "soon", code=2).err
    assert "a pin ends" in pinned("cache", "pin", "--for", "-1", code=2).err


def test_a_pin_ends_with_its_session(pinned: Shell) -> None:
    name = pinned.json("sessions", "show")["name"]
    pinned("sessions", "rm", name, "-y")
    stats = pinned.home.stats()
    assert stats["pins"] == []
    assert stats["pinned_tokens"] == 0


def test_a_pin_outlives_the_daemon_and_holds_once_its_path_is_computed_again(home: Home) -> None:
    shell = Shell(home, "1", EXACT)
    first = shell.quick(TEXT)
    shell("cache", "pin", "--for", "2h")
    home.stop()
    assert shell.tree(show_cache=True)["messages"][1]["pinned"]
    (pin,) = shell.json("cache", "stats")["pins"]
    assert pin["held_tokens"] == 0
    assert 0 < 2 * 3600 - pin["expires_s"] < 1800
    shell.say("go on")
    (pin,) = shell.json("cache", "stats")["pins"]
    assert pin["message"] == first["message"]
    assert pin["held_tokens"] == pin["tokens"] > len(TEXT)
    shell("cache", "clear", "-y")
    assert home.stats()["pinned_tokens"] >= pin["tokens"]
    shell("cache", "pin", "--for", "1")  # of another message
    home.stop()
    time.sleep(1)
    shell("daemon", "start")  # and one that has ended meanwhile is over
    wait_until(lambda: len(home.stats()["pins"]) == 1)
    assert home.stats()["pins"][0]["message"] == first["message"]


def test_pins_give_way_to_an_answer_that_fits_but_for_them_and_that_is_said(homes: Homes) -> None:
    home = homes(RADCHAT_KV_DEVICE="512tok")
    old, new = Shell(home, "1", EXACT), Shell(home, "2", EXACT)
    old.quick("to be kept " * 8)
    old("cache", "pin")
    beside = new("ask", "something else " * 22, *EXACT)
    assert "gave way" not in beside.err
    assert home.stats()["pinned_tokens"] > 90
    long = new("ask", "very much of it " * 29, *EXACT)
    assert "pinned tokens gave way" in long.err
    assert "very much" in new.texts()[0][1]
    assert home.stats()["pins"][0]["held_tokens"] < 90
    old.quick("again", old.json("sessions", "show")["id"])
    pin = home.stats()["pins"][0]
    assert pin["held_tokens"] == pin["tokens"]
