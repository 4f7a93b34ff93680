"""Many answers of which some, or all, are stopped: what is left, and what is said of it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.chat.conftest import Open
from tests.chat.fake_server import FakeDaemon
from tests.chat.many_events import TEXTS, Speakers, left


def test_esc_stops_the_selected_one_and_the_others_go_on(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.type("\t")
    terminal.wait_for("> 2 cost")
    terminal.type("\x1b")
    terminal.wait_for("1 stopped")
    assert daemon.asked("cancel") == [{"request": "r1", "choice": 1}]
    speakers.say(0, "And that.")
    terminal.wait_for("And that.")
    terminal.type("\x1b")  # it has ended: there is nothing to stop
    speakers.say(3, "And so on.")
    terminal.wait_for("And so on.")
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert len(daemon.asked("cancel")) == 1
    assert "(stopped, 12 tokens" in left(terminal)


@pytest.mark.parametrize("key", ["\x03", "SIGINT"])
def test_ctrl_c_stops_all_and_says_what_is_kept(
    open_: Open, speakers: Speakers, daemon: FakeDaemon, key: str
) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    if key == "SIGINT":
        terminal.child.kill(signal.SIGINT)
    else:
        terminal.type(key)
    assert terminal.wait_end() == 130
    assert daemon.asked("cancel") == [{"request": "r1"}]
    assert left(terminal).count("says this.") == 4
    kept = "cancelled: what came so far is kept in report-q3 · 1 price, 2 cost, 3 volume, 4 hire"
    assert f"{kept}; `radchat switch 1` goes to one" in left(terminal)


def test_a_daemon_that_does_not_answer_a_stop_is_left(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    daemon.script["cancel"] = {"cancelled": True}  # and goes on
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    assert left(terminal).count("says this.") == 4
    assert left(terminal).count("(stopped)") == 4
    speakers.say_all("more")  # to nobody
    assert daemon.noticed_cancel.wait(60)


def test_the_prompt_is_back_at_once_however_long_the_daemon_takes(
    open_: Open, daemon: FakeDaemon
) -> None:
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    waited = []
    for _ in range(3):  # the best of them: other processes run, too
        speakers = Speakers(daemon, TEXTS)
        daemon.script["cancel"] = {"cancelled": True}  # and goes on: it is in a long step
        terminal.type("/what-if 'price -10 %' 'cost -5 %' 'volume +20 %' 'hire two'\r")
        terminal.wait_for("> 1 price")
        speakers.say(0, "this is the first")
        terminal.wait_for("this is the first")
        terminal.type("\x03")
        waited.append(terminal.wait_for("cancelled: what came so far is kept in 1 price; "))
        terminal.wait_for(lambda t: ">" in t.lines)
        speakers.end_all()
    assert min(waited) < 0.5
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("obeys", [True, False], ids=["told", "untold"])
def test_stopped_before_a_word_it_says_what_is_there(
    open_: Open, speakers: Speakers, daemon: FakeDaemon, obeys: bool
) -> None:
    if not obeys:
        daemon.script["cancel"] = {"cancelled": True}
    terminal = open_(rows=24, columns=80)
    terminal.wait_for("> 1 price")
    speakers.event("progress", choice=0, stage="extend", done=45, total=100)
    terminal.wait_for("reading 45%")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    assert left(terminal).splitlines() == [
        "cancelled before an answer: the questions are kept in report-q3 · 1 price, 2",
        "cost, 3 volume, 4 hire; `radchat switch 1`, and `radchat retry` there answers",
        "one",
    ]


def test_stopped_before_a_word_of_samples_nothing_stays(open_: Open, daemon: FakeDaemon) -> None:
    Speakers(daemon, [], samples=3)
    terminal = open_("retry", "-N", "3")
    terminal.wait_for("> 1 main-1")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    assert left(terminal) == "cancelled: nothing was said, and nothing is kept\n"


def test_what_was_not_said_is_no_column_and_is_named(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    terminal.type("\x1b")
    terminal.wait_for("1 stopped")
    for choice in (1, 2, 3):
        speakers.say(choice, "says this.")
    speakers.end_all()
    assert terminal.wait_end() == 0
    lines = left(terminal).splitlines()
    assert lines[0].startswith("[2] cost@a1a0")
    assert "[1]" not in left(terminal)
    assert "without an answer: 1 price; `radchat switch 1`, and `radchat retry` there" in lines[-2]
    assert "`radchat switch 3` goes to one, `radchat compare 2 3` sets" in lines[-1]


def test_of_many_the_numbers_are_enough(open_: Open, daemon: FakeDaemon) -> None:
    texts = [f"{name} with a long name" for name in "abcdefghi"]
    speakers = Speakers(daemon, texts)
    terminal = open_("what-if", *texts, columns=80)
    terminal.wait_for("1-4 of 9")
    speakers.event("progress", choice=0, stage="extend", done=45, total=100)
    terminal.wait_for("waiting for 1")
    for choice in (0, 1, 2, 3, 6):
        speakers.say(choice, "says this.")
    terminal.wait_for(lambda t: t.text.count("says this.") == 4)
    terminal.wait_for("5 answering")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    assert left(terminal).splitlines()[-2:] == [
        "cancelled: what came so far is kept in report-q3 · 1 a, 2 b, 3 c, 4 d, 7 g;",
        "`radchat switch 1` goes to one",
    ]


def test_under_json_ctrl_c_is_a_document_with_every_branch(open_: Open, speakers: Speakers) -> None:
    terminal = open_("what-if", *TEXTS, "--json")
    speakers.say(0, "says this.")
    terminal.wait_for("1 answering, 3 waiting")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    screen = terminal.text.replace("\n", "")
    error = json.loads(screen[screen.index("{") :])["error"]
    assert error["message"].startswith("cancelled: what came so far is kept in report-q3 · 1 price")
    assert [row["branch"] for row in error["begun"]["branches"]] == speakers.names
