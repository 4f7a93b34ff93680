"""A search that is ended in the midst of its answer, and gone on with."""

from __future__ import annotations

import signal

from tests.e2e.homes import Home, Shell, finish
from tests.waiting import wait_until

SMALL = ("-k", "2", "-d", "1", "--n-eval", "1", "--thought-tokens", "8")


def spoken(home: Home) -> int:
    return int(home.stats()["output_tokens"] or 0)


def test_an_answer_that_was_cut_off_is_written_again_where_it_stood(terminal: Shell) -> None:
    home = terminal.home
    before = spoken(home)
    process = terminal.start("think", "--exact", *SMALL, "--max-tokens", "3000", "why?")
    wait_until(lambda: home.status()["running"] and spoken(home) > before + 120)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    cut = terminal.tree()
    assert list(cut["branches"]) == ["main"]
    texts = {m["id"]: m for m in cut["messages"]}
    asked = texts[cut["head"]]["parent"]

    done = terminal.json("think", "--resume", "--max-tokens", "5")
    assert (done["branch"], texts[asked]["role"]) == ("main", "user")
    now = terminal.tree()
    assert now["branches"] == {"main": done["message"]}
    assert {m["parent"] for m in now["messages"] if m["id"] == done["message"]} == {asked}
    assert len(now["messages"]) == len(cut["messages"]) + 1
    again = terminal.json("think", "--resume")
    assert (again["message"], again["answer"]) == (done["message"], done["answer"])
    home.assert_balanced()
