"""`radchat compare` and `diff` against a scripted daemon: streams, JSON, terminals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import NotFound, RadchatError
from tests.chat.conftest import Run, Unread
from tests.chat.fake_server import FakeDaemon
from tests.chat.test_chat_terminal import at_prompt
from tests.chat.test_paths import COLUMNS, COSTS, LABELLED, LOGS, PRICE, STAT, UNIFIED, WORDED
from tests.chat.test_paths import call as log_of
from tests.e2e.harness import Terminal, clean_env, radchat

BOTH = ("price", "costs")


@pytest.fixture(autouse=True)
def logs(daemon: FakeDaemon) -> None:
    def log(args: dict[str, Any]) -> dict[str, Any] | RadchatError:
        ref = args.get("ref", "HEAD").replace("HEAD", "costs")
        return log_of(ref) if ref in LOGS else NotFound(f"no branch {ref}")

    daemon.script["log"] = log


def test_piped_each_is_plain_and_labelled(run: Run) -> None:
    assert run("compare", *BOTH).out == LABELLED + "\n"
    assert run("diff", *BOTH).out == UNIFIED + "\n"
    assert run("diff", "price").out == UNIFIED + "\n"  # with HEAD
    assert run("diff", *BOTH, "--words").out == WORDED + "\n"
    assert run("diff", *BOTH, "--stat").out == STAT + "\n"
    told = run("compare", *BOTH, "--columns")
    assert told.out == LABELLED + "\n"
    assert told.err == "one after the other: columns are for a terminal\n"
    same = run("diff", "price", "price")
    assert (same.code, same.out.count("\n")) == (0, 3)


def test_json_tells_the_common_message_the_sides_and_the_changes(run: Run) -> None:
    what = json.loads(run("compare", *BOTH, "b7d0", "--json").out)
    assert what["common"] == {"message": COSTS[2]["id"], "messages": 3, "tokens": 8765}
    assert [side["ref"] for side in what["sides"]] == [*BOTH, "b7d0"]
    assert what["sides"][0]["messages"] == PRICE[3:]
    assert [side["tokens"] for side in what["sides"]] == [329, None, 0]
    what = json.loads(run("diff", *BOTH, "--words", "--json").out)
    assert (what["by"], what["common"]["messages"]) == ("words", 3)
    user = what["diff"][0]
    assert (user["role"], user["a"], user["b"]) == ("user", PRICE[3]["id"], COSTS[3]["id"])
    assert user["changes"] == [["-", "price -10"], ["+", "cost -5"], [" ", " %"]]
    assert json.loads(run("diff", *BOTH, "--json").out)["diff"][0]["changes"] == [
        ["-", "price -10 %"],
        ["+", "cost -5 %"],
    ]


def test_colour_is_added_where_it_is_wanted(run: Run) -> None:
    painted = run("diff", *BOTH, "--words", "--color", "always").out
    assert "\x1b[31m[-price -10-]\x1b[0m\x1b[32m{+cost -5+}\x1b[0m %" in painted
    for command in (("compare", *BOTH), ("diff", *BOTH)):
        assert "\x1b" not in run(*command, NO_COLOR="1").out


def test_what_can_not_be_compared_is_said(run: Run) -> None:
    for words, code, says in (
        (("compare", "price"), 2, "compare price with what?"),
        (("diff", *BOTH, "--words", "--stat"), 2, "one of them"),
        (("diff", "price", "nowhere"), 66, "no branch nowhere"),
    ):
        done = run(*words)
        assert (done.code, done.out) == (code, "")
        assert says in done.err
        assert "To say it" not in done.err


def test_words_of_which_none_is_a_ref_may_be_for_the_model(run: Run) -> None:
    said = "compare apples and pears please"
    done = run(*said.split())
    assert (done.code, done.out) == (66, "")
    told = " ".join(done.err.split())
    assert told == f'error: no branch apples. To say it to the model: radchat chat "{said}"'
    assert "To say it" not in run("compare", "apples", "price").err


@pytest.mark.parametrize("command", [("compare", *BOTH), ("diff", *BOTH)], ids=" ".join)
def test_a_closed_pipe_ends_it_quietly(unread: Unread, command: tuple[str, ...]) -> None:
    assert unread(*command) == (0, b"")


def test_a_terminal_has_columns_where_they_fit(home: Path, daemon: FakeDaemon) -> None:
    env = clean_env(home, TERM="dumb")
    for columns, told in ((80, COLUMNS), (49, LABELLED)):
        command = radchat("--daemon", str(daemon.path), "compare", *BOTH)
        with Terminal(command, env, columns=columns, rows=30) as terminal:
            assert terminal.wait_end() == 0
            assert terminal.text == told
            assert b"\x1b" not in terminal.raw


def test_a_narrow_terminal_breaks_a_difference_at_words(home: Path, daemon: FakeDaemon) -> None:
    command = radchat("--daemon", str(daemon.path), "diff", *BOTH)
    with Terminal(command, clean_env(home, TERM="dumb"), columns=20) as terminal:
        assert terminal.wait_end() == 0
        assert "-Revenue would\n-  fall by 4 %.\n+Revenue would\n" in terminal.text


def shows(text: str, terminal: Terminal) -> bool:
    return text in terminal.everything


def test_in_chat_the_same_is_seen_from_where_one_stands(home: Path, daemon: FakeDaemon) -> None:
    command = radchat("--daemon", str(daemon.path), "chat", "-c")
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny"), rows=30) as terminal:
        terminal.wait_for(at_prompt)
        for typed, wanted in (
            ("/compare price costs", COLUMNS),
            ("/compare price costs --no-columns", LABELLED),
            ("/diff price words", WORDED),
            ("/diff price costs stat", STAT),
        ):
            terminal.type(f"{typed}\r")
            terminal.wait_for(partial(shows, wanted))
        terminal.type("/diff\r")
        terminal.wait_for("/diff wants one REF or two")
        terminal.type("/compare price\r")
        terminal.wait_for("/compare wants two REFs or more")
    heads = {json.dumps(args["head"]) for args in daemon.asked("log")[1:]}
    assert len(heads) == 1


MARKED = "# Four **risks**\n\n- one `x`\n"


def test_on_a_painted_terminal_answers_are_shown_as_markdown_unless_raw(
    home: Path, daemon: FakeDaemon
) -> None:
    answers = {ref: [*LOGS[ref][:4], {**LOGS[ref][4], "text": MARKED}] for ref in BOTH}
    daemon.script["log"] = lambda args: {
        **log_of("price"), "messages": answers[args.get("ref") or "costs"]
    }  # fmt: skip
    both, log = ("compare", *BOTH), ("log", "-r")
    for command in (both, (*both, "--no-columns"), log):
        with Terminal(radchat("--daemon", str(daemon.path), *command), clean_env(home)) as terminal:
            terminal.wait_for("one x")
            assert "# Four risks" in terminal.text
            assert terminal.raw.count(b"\x1b[") > 4
    for command, env in (((*both, "--raw"), {}), ((*log, "--raw"), {}), (log, {"NO_COLOR": "1"})):
        words = radchat("--daemon", str(daemon.path), *command)
        with Terminal(words, clean_env(home, **env)) as terminal:
            terminal.wait_for("- one `x`")
            assert "# Four **risks**" in terminal.everything
