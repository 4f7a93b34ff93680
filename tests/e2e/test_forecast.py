"""What going on somewhere would compute again is said when one goes there, not when it is done."""

from __future__ import annotations

import re
import sys

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Shell
from tests.waiting import PATIENCE

LONG = "a long talk about what was and is. " * 12
TOLD = re.compile(r"going on here recomputes ([\d,]+) tokens(, (?:about|less than) [\d.]+ s)?: ")


def told(text: str) -> int | None:
    found = TOLD.search(text)
    return None if found is None else int(found[1].replace(",", ""))


def test_a_switch_says_what_the_next_turn_there_then_recomputes(terminal: Shell) -> None:
    first = terminal.quick(LONG)
    terminal.json("fork", first["message"], "elsewhere", "-n", "other", *EXACT)
    assert told(terminal("switch", "main").err) is None
    terminal.call("cache.clear")
    switched = terminal("switch", "other")
    again = told(switched.err)
    assert again == len(terminal.home.ids(terminal.call("branch.list")["branches"][1]["message"]))
    found = TOLD.search(switched.err)
    assert found is not None
    assert found[2], "the speed is known"
    assert terminal.json("switch", "main")["recompute"]["tokens"] < again
    terminal("switch", "other")
    notice = terminal("ask", "-c", "on?", *EXACT).err
    assert f"this recomputes {again - 1:,} tokens" in notice
    assert told(terminal("switch", "main").err) is None  # they share all but a few


def test_a_small_part_is_not_worth_a_line(terminal: Shell) -> None:
    first = terminal.quick("short")
    terminal.json("fork", first["message"], "elsewhere", "-n", "other", *EXACT)
    terminal.call("cache.clear")
    assert told(terminal("switch", "main").err) is None
    assert terminal.json("switch", "other")["recompute"] is None


def test_with_no_model_loaded_all_of_it_is_to_be_read_and_none_is_loaded_to_say_so(
    homes: Homes,
) -> None:
    home = homes(RADCHAT_PERSIST="off")
    shell = Shell(home, "1", EXACT)
    first = shell.quick(LONG)
    shell("models", "stop")
    switched = shell("switch", "HEAD")
    assert told(switched.err) == len(home.ids(first["message"]))
    assert " s:" not in switched.err
    assert home.status()["models"] == []


def test_an_open_chat_says_it_wherever_it_goes(homes: Homes) -> None:
    """`-c`, `/switch` and `/sessions`; and the cache is at hand there."""
    home = homes(RADCHAT_PERSIST="off")
    shell = Shell(home, "1", EXACT)
    first = shell.quick(LONG)
    name = shell.json("sessions", "show")["name"]
    shell.call("cache.clear")
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "-c", *EXACT]
    line = f"going on here recomputes {len(home.ids(first['message'])):,} tokens"
    with Terminal(command, env, cwd=shell.folder, rows=50, columns=120) as terminal:

        def says(typed: str, what: str) -> None:
            terminal.settle()
            before = terminal.everything.count(what)
            terminal.type(f"{typed}\r")
            terminal.wait_for(lambda t: t.everything.count(what) > before, PATIENCE)

        terminal.wait_for(line, PATIENCE)
        terminal.wait_for("> ", PATIENCE)
        says("/switch main", line)
        says(f"/sessions {name}", line)
        says("/why", "reuse ended at token 0")
        says("/cache ls", "nothing is cached")
        says("/pin HEAD 90m", "tokens cached, for 1h30m; pins take")
        says("/cache", "of at most 1,024 tokens")
        says("/cache unpin", "is not pinned any more")
        says("/cache unpin", "nothing is pinned here")
        says("/cache evict HEAD", "freed 0 tokens")
        says("/cache more", "want /cache [stats")
        says("on?", "main@")
        says("/cache tree", "[")
        says("/cache clear", "freed 4")
        terminal.type("/bye\r")
        assert terminal.wait_end(PATIENCE) == 0


@pytest.mark.parametrize("persist", ["auto", "off"])
def test_a_session_taken_up_again_says_it_before_its_first_prompt(
    homes: Homes, persist: str
) -> None:
    home = homes(RADCHAT_PERSIST=persist)
    shell = Shell(home, "1", EXACT)
    first = shell.quick(LONG)
    name = shell.json("sessions", "show")["name"]
    home.stop()
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", "-r", name, *EXACT]
    with Terminal(command, env, cwd=shell.folder, rows=50, columns=120) as terminal:
        num = len(home.ids(first["message"]))
        line = f"going on here recomputes {num:,} tokens: "
        if persist == "auto":  # all but the last, which has not run
            line = f"{num - 1:,} tokens come from disk"
        terminal.wait_for(line, PATIENCE)
