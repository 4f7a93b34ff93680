"""What radchat promises (docs/design: prefix, work, same answer, balance), through the real command
line and the real daemon, on a tiny model. RADCHAT_CHECK=1: the daemon recounts its pages and
poisons the free ones in every step, so each of these also holds promise 5, isolation.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EXACT
from tests.e2e.homes import Home, Shell, finish, until
from tests.waiting import wait_until

LONG = "tell me of the old house on the hill, and leave nothing out. " * 4


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["cached_input_tokens"])


def computed(answer: dict[str, Any]) -> int:
    return int(answer["cache"]["computed"])


def elsewhere(shell: Shell) -> Shell:
    """Another terminal of the same home."""
    return Shell(shell.home, f"{shell.name}-2", EXACT)


def adds_up(answer: dict[str, Any]) -> bool:
    cache, usage = answer["cache"], answer["usage"]
    parts = cache["device"] + cache["host"] + cache["disk"]
    same = parts == usage["cached_input_tokens"]
    return bool(same and parts + cache["computed"] == usage["input_tokens"])


# -- 1. prefix -------------------------------------------------------------------------------------


def test_each_turn_begins_with_the_ids_of_all_that_was_said_and_generated(terminal: Shell) -> None:
    before: list[int] = []
    for number, text in enumerate(["hello", " two  spaces\n", "12 Sep 123", "ünïcödé 🙂", "end"]):
        answer = terminal.say(text) if number else terminal.ask(text)
        ids = terminal.home.ids(answer["message"])
        assert ids[: len(before)] == before
        assert len(ids) > len(before)
        assert terminal.home.prompt_ids(answer["message"]) + terminal.home.out_ids(
            answer["message"]
        ) == (ids)
        before = ids
        if number == 3:  # and the way back from a restart is no other
            terminal("daemon", "restart")


@pytest.mark.parametrize("ending", ["length", "stop token", "stop string"])
def test_the_next_turn_reuses_what_was_generated_however_it_ended(
    terminal: Shell, ending: str
) -> None:
    """RC-02"""
    first = "a question of some length"
    whole = terminal.ask(first, "--max-tokens", "50")
    flags = {
        "length": ("--max-tokens", "50"),
        "stop token": ("-m", "other", "--max-tokens", "400"),
        "stop string": ("--max-tokens", "50", "--stop", whole["text"][20:23]),
    }[ending]
    answer = terminal.ask(first, *flags)
    assert answer["finish_reason"] == ("length" if ending == "length" else "stop")
    sent, given = answer["usage"]["input_tokens"], len(terminal.home.out_ids(answer["message"]))
    after = terminal.say("and then?", "--max-tokens", "1")
    assert sent + given - 1 <= cached(after) <= sent + given
    assert adds_up(after)


# -- 2. work ---------------------------------------------------------------------------------------


def test_a_fork_computes_only_its_new_words(terminal: Shell) -> None:
    first = terminal.ask(LONG, "--max-tokens", "30")
    terminal.say("the main line goes on here", "--max-tokens", "5")
    prefix = len(terminal.home.ids(first["message"]))
    rows = terminal.home.stats()["rows_run"]
    fork = terminal.json("fork", first["message"][:8], "and if not?", *EXACT, "--max-tokens", "4")
    answer = fork["branches"][0]
    assert adds_up(answer)
    assert cached(answer) >= prefix - 1
    assert computed(answer) == answer["usage"]["input_tokens"] - cached(answer)
    # the rows the model ran, by a count of its own: the last token said has not been run
    assert terminal.home.stats()["rows_run"] - rows == computed(answer) + 4 - 1


def test_siblings_of_one_cold_prefix_sent_at_once_compute_it_once(terminal: Shell) -> None:
    k = 6
    first = terminal.ask(LONG, "--max-tokens", "30")
    prefix = len(terminal.home.ids(first["message"]))
    terminal.call("cache.clear")
    rows = terminal.home.stats()["rows_run"]
    asking = [
        terminal.start(
            "ask", f"{n} is the number", "--at", first["message"][:8], *EXACT, "--max-tokens", "4",
            "--json",
        )
        for n in range(k)
    ]  # fmt: skip
    answers = [finish(process).json for process in asking]
    assert all(adds_up(answer) for answer in answers)
    new = [answer["usage"]["input_tokens"] - prefix for answer in answers]
    # each computes its own words and the last id of the prefix's page at most; one all of it
    assert sum(map(computed, answers)) <= prefix + sum(new) + k
    assert terminal.home.stats()["rows_run"] - rows == sum(map(computed, answers)) + k * 3
    assert len({answer["branch"] for answer in answers}) == k
    terminal.home.assert_balanced()


def test_n_samples_add_nothing_to_the_prompts_work(terminal: Shell) -> None:
    terminal.ask(LONG, "--max-tokens", "2")
    terminal("cache", "clear", "-y")
    again = terminal.json(
        "retry", "-N", "5", "--exact", "--temp", "1", "--seed", "7", "--max-tokens", "12"
    )
    assert len(again["branches"]) == 5
    assert computed(again) == again["usage"]["input_tokens"]
    for answer in again["branches"]:
        assert answer["cache"] == again["cache"]
        assert adds_up(answer)
    assert len({answer["text"] for answer in again["branches"]}) == 5
    twice = terminal.json(
        "retry", "-N", "5", "--exact", "--temp", "1", "--seed", "7", "--max-tokens", "12"
    )
    assert [a["text"] for a in twice["branches"]] == [a["text"] for a in again["branches"]]
    assert computed(twice) == 1  # the last prompt token, for its logits
    before = terminal.home.stats()["rows_run"]
    terminal.json("retry", "-N", "5", "--exact", "--seed", "7", "--max-tokens", "12")
    assert terminal.home.stats()["rows_run"] - before == 1 + 5 * 11


# -- 3. the same answer ----------------------------------------------------------------------------


def test_exact_answers_do_not_depend_on_what_the_cache_did(terminal: Shell) -> None:
    home, words = terminal.home, "say it again, the same way"
    base = terminal.ask(LONG, "--max-tokens", "20")["message"]
    cold = terminal.say(words, "--max-tokens", "24")
    expected = home.out_ids(cold["message"])

    def again(*, least: int) -> None:
        answer = terminal.ask(words, "--at", base[:8], "--max-tokens", "24")
        assert cached(answer) >= least
        assert home.out_ids(answer["message"]) == expected

    prefix = len(home.ids(base))
    again(least=prefix)  # warm
    terminal("cache", "clear", "-y")
    again(least=0)  # cold
    terminal("cache", "evict", base[:8])
    again(least=1)  # from the user message on
    with elsewhere(terminal).stream(text=LONG * 3, dtype="fp32") as neighbour:
        until(neighbour, "delta", 3)
        again(least=prefix)  # beside another
    again(least=prefix)  # after that one was cancelled
    for text in ("x", "say it", "say it again, the same wax"):  # cut inside pages, and shared
        terminal.ask(text, "--at", base[:8], "--max-tokens", "3")
        again(least=prefix)
    terminal("daemon", "restart")
    again(least=0)
    home.assert_balanced()


def test_a_branch_that_talks_leaves_its_siblings_and_parent_alone(terminal: Shell) -> None:
    """NU-03"""
    base = terminal.ask("a start for both", "--max-tokens", "9")["message"]
    home = terminal.home

    def say(text: str) -> list[int]:
        answer = terminal.ask(text, "--at", base[:8], "--max-tokens", "50")
        return home.out_ids(answer["message"])

    a, b = say("go left"), say("go right")
    assert say("go left") == a
    terminal("cache", "clear", "-y")
    assert say("go right") == b
    assert say("go left") == a


# -- 4. balance ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("-m", "other", "--max-tokens", "600"), "stop"),
        (("--max-tokens", "1"), "length"),
        (("--max-tokens", "33"), "length"),
        (("--stop", "a", "--stop", "e", "--stop", "i", "--stop", "o"), "stop"),
    ],
    ids=["end of turn", "one token", "length", "stop string"],
)
def test_after_an_answer_nothing_is_locked(
    terminal: Shell, flags: tuple[str, ...], reason: str
) -> None:
    answer = terminal.ask("what ends you?", *flags)
    assert answer["finish_reason"] == reason
    terminal.home.assert_balanced()


def test_a_bad_option_leaves_nothing_locked_and_no_session(terminal: Shell) -> None:
    before = terminal.num_sessions()
    terminal("ask", "hello", *EXACT, "--top-p", "0", code=42)
    terminal.home.assert_balanced()
    assert terminal.num_sessions() == before


@pytest.mark.parametrize("moment", ["extending", "the first word", "decoding"])
def test_a_client_that_goes_leaves_nothing_locked(terminal: Shell, moment: str) -> None:
    """AP-02: generation stops within a few steps, the partial answer is kept."""
    home = terminal.home
    with terminal.stream(text=LONG * 8, dtype="fp32") as events:
        if moment == "extending":
            until(events, "start")
            count = 0
        else:
            count = 1 if moment == "the first word" else 40
            until(events, "delta", count)
    steps = home.stats()["steps"]
    home.assert_balanced()
    later = home.stats()["steps"]
    assert later - steps < 1000, "it went on without anybody"  # to its end it would be 3,000
    with home.store() as store:
        assert store.running() == []
    said = terminal.json("log")["messages"]
    if count:
        assert said[-1]["role"] == "assistant"
        assert said[-1]["finish_reason"] == "abort"
        assert len(said[-1]["text"]) >= count - 1
    terminal.say("still here?", "--max-tokens", "2")
    home.assert_balanced()


def test_a_request_cancelled_in_the_queue_leaves_nothing(terminal: Shell) -> None:
    home = terminal.home
    big = "z" * 2300  # two of these do not fit in the pool at once
    with terminal.stream(text=big, dtype="fp32") as first:
        until(first, "delta")
        with terminal.stream(text="y" * 2300, dtype="fp32", only_terminal=True) as second:
            until(second, "init")
            wait_until(lambda: home.status()["waiting"] == 1)
        wait_until(lambda: home.status()["answers"] == 1)
    home.assert_balanced()
    with home.store() as store:
        assert store.running() == []


def test_a_request_cancelled_while_the_model_loads_leaves_nothing(shell: Shell, home: Home) -> None:
    shell("sessions", "ls")  # a daemon, and no torch in it yet
    asking = shell.start("ask", "hello", *EXACT)
    wait_until(lambda: home.status()["state"] == "loading")
    asking.send_signal(signal.SIGINT)
    assert finish(asking).code == 130
    assert shell.num_sessions() == 0
    wait_until(lambda: home.status()["model"] == "tiny")  # the load itself went on
    home.assert_balanced()
    assert shell.ask("hello", "--max-tokens", "2")["usage"]["output_tokens"] == 2
    shell("models", "stop")  # nobody still counts as using it
    assert home.status()["model"] is None


# -- 7. looking never loads ------------------------------------------------------------------------


def test_looking_never_loads_a_model(shell: Shell, home: Home) -> None:
    answer = shell.ask("something to look at", "--max-tokens", "3")
    shell("daemon", "stop")
    for command in (
        ("tree", "--show-cache"), ("tree", "--lru", "--json"), ("log",), ("sessions", "ls"),
        ("sessions", "show"), ("branch",), ("cache", "stats"), ("cache", "ls"), ("cache", "tree"),
        ("cache", "top"), ("models", "ls"), ("models", "ps"), ("switch", answer["message"][:6]),
        ("undo",), ("redo",), ("daemon", "status"), ("fork", "-n", "side"), ("doctor",),
        ("sessions", "rename", "seen"), ("cache", "evict", "HEAD"), ("cache", "clear", "-y"),
        ("sessions", "rm", "seen", "-y"),
    ):  # fmt: skip
        shell(*command)
        assert home.status()["model"] is None, command
    assert "libtorch" not in Path(f"/proc/{home.pid}/maps").read_text()
