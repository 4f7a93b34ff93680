"""`radchat vote` with a real daemon and model: one reading, one name, an early end."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

from tests.e2e.homes import Shell, finish
from tests.waiting import wait_until

DRAWN = ("--exact", "--temp", "1", "--seed", "7")


def stands(shell: Shell) -> tuple[dict[str, str], str | None]:
    tree = shell.tree()
    return tree["branches"], tree["head"]


def texts(document: dict[str, Any]) -> list[str]:
    return [body["text"] for body in document["branches"]]


def test_the_question_is_read_once_and_only_who_won_has_a_name(terminal: Shell) -> None:
    home = terminal.home
    before = home.stats()["rows_run"] or 0
    first = terminal.json(
        "vote", *DRAWN, "-N", "9", "--regex", "[a-z][.]?", "--extract", "last-line", "so?"
    )
    ran = home.stats()["rows_run"] - before
    usage, cache = first["usage"], first["cache"]
    assert usage["input_tokens"] == len(home.prompt_ids(first["message"])) == cache["computed"]
    assert usage["input_tokens"] <= ran <= usage["input_tokens"] + usage["output_tokens"]

    counts = Counter(text.removesuffix(".") for text in texts(first))
    assert sum(counts.values()) == first["counted"] == 9
    assert len(counts) > 1
    shares = first["shares"]
    assert shares[0]["votes"] == max(counts.values())

    said = terminal.json("vote", "-c", *DRAWN, "-N", "3", "--choice", "a", "and now?")
    assert (said["answer"], said["shares"][0]["votes"]) == ("a", 3)
    log = terminal.call("log")["messages"]
    assert [m["id"] for m in log][1::2] == [first["message"], said["message"]]
    branches, head = stands(terminal)
    assert branches == {"main": head} == {"main": said["message"]}
    kept = {m["id"] for m in terminal.tree()["messages"]}
    assert {body["message"] for body in (*first["branches"], *said["branches"])} <= kept
    assert len(kept) == 2 + 9 + 3
    pruned = terminal.json("prune", "--dry-run")
    assert pruned["messages"] == 8 + 2
    home.assert_balanced()


def test_an_early_stop_ends_the_others_and_a_place_elsewhere_is_a_branch(terminal: Shell) -> None:
    """Most say a word, some go on for long."""
    asked = terminal.quick("hello")
    args = ["-N", "32", "--regex", "[l-y]yes|[a-kz][a-z]{400}", "--extract", "yes", "--early-stop"]
    done = terminal.json("vote", "--session", asked["session"], "--at", "1", *DRAWN, *args, "so?")
    ends = Counter(body["finish_reason"] for body in done["branches"])
    assert ends["abort"] == 32 - done["counted"] > 0
    assert done["shares"][0]["votes"] > ends["abort"]
    # of those that go on none came to its end, however slow the command was to hear of the others
    assert max(len(text) for text in texts(done)) <= 400
    assert stands(terminal)[0] == {"main": asked["message"], done["branch"]: done["message"]}
    terminal.home.assert_balanced()


def test_ctrl_c_leaves_head_where_it_was(terminal: Shell) -> None:
    asked = terminal.quick("hello")
    args = ["-c", *DRAWN, "-N", "4", "--regex", "[a-z]{900}", "go on"]
    process = terminal.start("vote", *args)
    wait_until(lambda: len(terminal.tree()["messages"]) > 2)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.out) == (130, "")
    assert "cancelled" in done.err
    terminal.home.assert_balanced()
    assert stands(terminal) == ({"main": asked["message"]}, asked["message"])
    failed = terminal.json(
        "vote", "-c", "-N", "2", "--choice", "a", "--extract", "b", "so?", code=57
    )
    assert [body["text"] for body in failed["error"]["branches"]] == ["a", "a"]
    assert stands(terminal) == ({"main": asked["message"]}, asked["message"])
