"""Many answers at once, as a person sees them: columns in a terminal, labelled text elsewhere."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from radchat.chat.branches import shared_line
from radchat.errors import Busy, RadchatError
from tests.chat.conftest import Run, Unread
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.many_events import NAMES, SHARED, TEXTS, Speakers, left
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

HOSTILE = "[bold]\x1b[31mred\x9b你好"
Open = Callable[..., Terminal]


def heads(terminal: Terminal) -> str:
    return next(line for line in terminal.lines if "1 price" in line or "2 cost" in line)


def test_four_columns_fill_at_once_and_stay_side_by_side(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    terminal = open_()
    terminal.wait_for("Ctrl+C stop all")
    speakers.event("progress", choice=0, stage="extend", done=45, total=100)
    terminal.wait_for("reading the prompt 45%")
    assert [name in heads(terminal) for name in NAMES] == [True] * 4
    assert "report-q3 · 4 what-ifs at d9f1 · tiny fp32" in terminal.text
    for number in range(3):  # a step gives each of them a word
        speakers.say_all(f"says word {number}. ")
        terminal.wait_for(lambda t, n=number: t.text.count(f"word {n}.") == 4)  # type: ignore[misc]
    assert "4 answering" in terminal.text
    for choice, text in enumerate(TEXTS):
        assert f"> {text}" in terminal.text
        speakers.say(choice, HOSTILE)
    speakers.end_all()
    assert terminal.wait_end() == 0
    lines = left(terminal).splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [f"[{i + 1}] {NAMES[i]}@a{i}a0" for i in range(4)]
    for name in NAMES:  # each once
        assert left(terminal).count(f"{name} says word 0.") == 1
    assert "[bold]\\x1b[31mred\\x9b你好" in left(terminal)
    assert "4 branches · shared 8,371 tokens computed once · new 212" in lines
    assert any("radchat switch 2" in line for line in lines)
    assert "main@d9f1" not in left(terminal)  # HEAD stays: nobody moved
    assert daemon.asked("generate")[0]["texts"] == list(TEXTS)


def test_at_80_columns_four_are_watched_and_read_one_after_the_other(
    open_: Open, speakers: Speakers
) -> None:
    terminal = open_(columns=80)
    terminal.wait_for("> 1 price")
    speakers.event("progress", choice=0, stage="extend", done=45, total=100)
    terminal.wait_for("reading 45%")
    assert [name in terminal.lines[1] for name in NAMES] == [True] * 4
    speakers.say_all("says quite a few words. ")
    terminal.wait_for(lambda t: t.text.count("says quite") == 4)
    assert max(map(len, terminal.lines)) <= 80
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert "price says quite a few words.\n\n[2] cost@a1a0" in re.sub(" +\n", "\n", left(terminal))


def test_at_60_columns_three_are_seen_and_the_fourth_by_going_there(
    open_: Open, speakers: Speakers
) -> None:
    terminal = open_(columns=60)
    terminal.wait_for("1-3 of 4")
    speakers.say_all("says hello. ")
    terminal.wait_for(lambda t: t.text.count("says hello.") == 3)
    assert "hire" not in terminal.text
    terminal.type("4")
    terminal.wait_for("> 4 hire")
    assert "2-4 of 4" in terminal.text
    terminal.type("\x1b[C")  # right of the last is the first
    terminal.wait_for("> 1 price")
    terminal.type("\x1b[D")
    terminal.wait_for("> 4 hire")
    speakers.end_all()
    assert terminal.wait_end() == 0
    order = [left(terminal).index(f"[{i + 1}] {name}@") for i, name in enumerate(NAMES)]
    assert order == sorted(order)  # four have no room beside each other
    assert [left(terminal).count(f"{name} says hello.") for name in NAMES] == [1] * 4


def test_at_40_columns_each_has_a_line_and_the_selected_one_its_text(
    open_: Open, speakers: Speakers
) -> None:
    terminal = open_(columns=40)
    terminal.wait_for("> 1 price")
    speakers.say_all("says quite a few words, and these are the last")
    terminal.wait_for(lambda t: t.text.count("the last") >= 5)
    lines = terminal.lines
    assert lines[1].startswith("> 1 price   answering  ")
    assert lines[1].endswith("the last")
    assert lines[4].startswith("  4 hire    answering  ")
    assert lines[5] == "=" * 40
    assert lines[6] == "> price -10 %"
    speakers.end_all()
    assert terminal.wait_end() == 0


def test_who_waits_says_for_whom(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.event("progress", choice=0, stage="extend", done=45, total=100)
    waiting = "waiting for 1: reading the prompt 45%"
    terminal.wait_for(lambda t: t.text.count(waiting) == 3)
    speakers.event("progress", choice=1, stage="extend", done=5, total=10)
    terminal.wait_for("reading the prompt 50%")
    terminal.wait_for(lambda t: t.text.count(waiting) == 2)
    terminal.resize(24, 80)
    terminal.wait_for(lambda t: t.lines[2].endswith(" waiting for 1"))
    speakers.end_all()
    assert terminal.wait_end() == 0


def test_with_piped_text_keys_come_from_the_terminal(
    home: Path, daemon: FakeDaemon, speakers: Speakers
) -> None:
    line = shlex.join(radchat("--daemon", str(daemon.path), "what-if", *TEXTS))
    command = ["sh", "-c", f"echo a document | {line}; echo ended with $?"]
    env = clean_env(home, RADCHAT_MODEL="tiny")
    with Terminal(command, env, columns=200) as terminal:
        terminal.wait_for("> 1 price")
        assert daemon.asked("generate")[0]["before"] == "a document"
        terminal.type("2")
        terminal.wait_for("> 2 cost")
        terminal.type("\x03")
        terminal.wait_for("ended with 130")


def test_with_no_keys_to_come_there_is_no_screen(
    home: Path, daemon: FakeDaemon, speakers: Speakers
) -> None:
    line = shlex.join(radchat("--daemon", str(daemon.path), "what-if", *TEXTS))
    env = clean_env(home, RADCHAT_MODEL="tiny")
    with Terminal(["sh", "-c", f"echo a document | {line} > /dev/tty"], env) as terminal:
        speakers.say_all("says this.")
        speakers.end_all()
        assert terminal.wait_end() == 0
        assert b"\x1b[?1049h" not in terminal.raw
        assert terminal.everything.count("says this.") == 4


def test_a_window_that_is_resized_is_painted_anew(open_: Open, speakers: Speakers) -> None:
    terminal = open_(columns=120)
    terminal.wait_for("> 1 price")
    speakers.say_all("says some words that take a line or two here. ")
    terminal.wait_for("line or two here.")
    for columns, seen in ((80, 4), (200, 4), (60, 3)):
        terminal.resize(24, columns)
        speakers.say_all("More. ")
        terminal.wait_for(lambda t, n=seen: t.text.count("says some") == n)  # type: ignore[misc]
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert left(terminal).count("says some words") == 4


def test_a_long_answer_scrolls(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say(0, "".join(f"line {i}\n" for i in range(50)))
    terminal.wait_for("line 49")
    assert "line 10\n" not in terminal.text
    terminal.type("\x1b[H")
    terminal.wait_for("line 0")
    assert " of 53 " in terminal.text  # what was asked, a blank line, and the empty last one
    speakers.say(0, "line 50\n")
    speakers.say(1, "so?")
    terminal.wait_for("so?")
    assert "line 50" not in terminal.text
    terminal.type("\x1b[F")
    terminal.wait_for("line 50")
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert re.findall(r"line (\d+)", left(terminal)) == [str(i) for i in range(51)]


def test_an_error_in_the_middle_gives_the_terminal_back(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    speakers.fail(RadchatError("the engine \x1b[2J broke"))
    assert terminal.wait_end() == 1
    assert left(terminal).count("says this.") == 4
    assert "error: the engine \\x1b[2J broke" in left(terminal)


def test_sigterm_gives_the_terminal_back(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    terminal.child.kill(signal.SIGTERM)
    assert terminal.wait_end() == 143
    assert left(terminal).count("says this.") == 4


def test_what_one_thinks_is_seen_until_it_answers(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.event("reasoning", choice=1, text="let me see", tokens=3)
    terminal.wait_for("let me see")
    assert "thinking, 3 tokens" in terminal.text
    speakers.event("delta", choice=1, text="It is so.", tokens=7)
    terminal.wait_for("It is so.")
    assert "let me see" not in terminal.text
    assert "7 tokens" in terminal.lines[2]
    speakers.said[1] = "It is so."
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert "let me see" not in left(terminal)


def test_notices_are_seen_at_once_and_stay(open_: Open, speakers: Speakers) -> None:
    terminal = open_()
    terminal.wait_for("> 1 price")
    speakers.event("notice", text="this recomputes 8,371 tokens", code="recompute")
    terminal.wait_for("4 waiting · this recomputes 8,371 tokens")
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert "this recomputes 8,371 tokens\n" in left(terminal)


def test_no_color_has_no_colour_and_marks_the_selection(open_: Open, speakers: Speakers) -> None:
    terminal = open_(NO_COLOR="1")
    terminal.wait_for("> 1 price")
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert re.findall(rb"\x1b\[(?:[0-9;]*;)?[34][0-9](?:;[0-9]+)*m", terminal.raw) == []


@pytest.mark.parametrize("how", [{"TERM": "dumb"}, "--plain"], ids=str)
def test_without_a_screen_each_is_written_when_whole(
    open_: Open, speakers: Speakers, how: str | dict[str, str]
) -> None:
    env = how if isinstance(how, dict) else {}
    terminal = open_(*([how] if isinstance(how, str) else []), "what-if", *TEXTS, **env)
    speakers.say_all("says this.")
    speakers.end(1)
    speakers.end(0)
    terminal.wait_for("cost says this.")
    assert "[1] price@a0a0\nprice says this.\n\n[2] cost@a1a0\ncost says this." in terminal.text
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert b"\x1b" not in terminal.raw.replace(b"\r\x1b[2K", b"")


# --- piped ---


def whole(speakers: Speakers) -> None:
    """One ends before the others have begun."""
    for choice in (2, 0, 3, 1):
        speakers.say(choice, f"{NAMES[choice]} says {HOSTILE}.")
        speakers.end(choice)


def test_piped_they_come_in_the_order_of_their_numbers(run: Run, speakers: Speakers) -> None:
    whole(speakers)
    done = run("what-if", *TEXTS)
    assert done.code == 0, done.err
    assert done.out == "".join(
        f"[{i + 1}] {name}@a{i}a0\n{name} says [bold]\\x1b[31mred\\x9b你好.\n\n"
        for i, name in enumerate(NAMES)
    )
    assert done.err.splitlines() == [
        "4 branches · shared 8,371 tokens computed once · new 212",
        "`radchat switch 2` goes to one, `radchat compare 1 2` sets two side by side",
    ]


def test_json_is_one_document_with_every_branch(run: Run, speakers: Speakers) -> None:
    whole(speakers)
    done = run("what-if", *TEXTS, "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    document = json.loads(done.out)
    assert [branch["branch"] for branch in document["branches"]] == NAMES
    assert document["shared"] == SHARED
    assert {"session", "parent", "usage", "cache"} <= set(document)


def test_a_closed_pipe_ends_quietly_and_stops_them(
    unread: Unread, daemon: FakeDaemon, speakers: Speakers
) -> None:
    speakers.say_all("says this.")
    speakers.end(0)
    assert unread("what-if", *TEXTS) == (0, b"")
    for _ in range(3):  # to nobody: the second write or so tells
        speakers.say(1, "more")
    assert daemon.noticed_cancel.wait(60)


def test_what_was_cut_off_is_told_with_its_number(run: Run, speakers: Speakers) -> None:
    speakers.say_all("says this.")
    speakers.end(1, "length")
    speakers.end_all()
    done = run("what-if", *TEXTS)
    assert "cut off after 12 tokens: 2\n" in done.err
    assert "`radchat switch 2` goes to one, `radchat continue` there goes on with it, `" in done.err


def test_a_full_context_is_told_as_what_cut_it_off(run: Run, speakers: Speakers) -> None:
    speakers.limit = 1211 + 12
    speakers.end(0)
    for choice in (1, 2, 3):
        speakers.end(choice, "length")
    done = run("what-if", *TEXTS)
    assert "cut off, the context is full: 2, 3, 4\n" in done.err
    assert "continue" not in done.err


def test_one_what_if_alone_is_no_branches(run: Run, daemon: FakeDaemon) -> None:
    Speakers(daemon, ["why?"]).end_all()
    done = run("what-if", "why?")
    assert (done.code, done.err) == (0, "`radchat switch 1` goes there\n")


def test_one_that_failed_does_not_hide_the_others(run: Run, speakers: Speakers) -> None:
    speakers.say_all("says this.")
    speakers.event("notice", text="cost-5: the engine could not go on", code="ended")
    speakers.end(1, "error")
    speakers.end_all()
    done = run("what-if", *TEXTS)
    assert done.code == 0
    assert done.out.count("says this.") == 4
    assert "the engine could not go on" in done.err


@pytest.mark.parametrize(
    ("cached", "computed", "ran", "told"),
    [
        (0, 900, 920, "900 tokens computed once · new 20"),
        (0, 900, 1820, "900 tokens computed · new 20"),
        (900, 0, 22, "900 tokens, all cached · new 20"),
        (800, 100, 120, "900 tokens, 800 of them cached, 100 computed once · new 20"),
        (894, 6, 32, "900 tokens, 894 of them cached, 6 computed · new 20"),
        (0, 500, 500, "900 tokens, 500 of them computed"),
        (40, 460, 460, "900 tokens, 40 of them cached, 460 computed"),
        (40, 0, 0, "900 tokens, 40 of them cached"),
    ],
)
def test_what_was_computed_is_told_and_no_more(
    cached: int, computed: int, ran: int, told: str
) -> None:
    shared = {"tokens": 900, "cached": cached, "computed": computed, "new": 20}
    done = {"shared": shared, "cache": {"computed": ran}}
    assert shared_line(2, done) == f"2 branches · shared {told}"


# --- what is asked ---


def test_what_is_asked_of_the_daemon(run: Run, daemon: FakeDaemon) -> None:
    Speakers(daemon, ["price -10 %"], samples=3).end_all()
    line = ["whatif", "price -10 %", "-N", "3", "--at", "HEAD~2", "--seed-base", "7", "--temp", "1"]
    done = run(*line)
    assert done.code == 0, done.err
    sent = daemon.asked("generate")[0]
    assert (sent["kind"], sent["texts"], sent["n"]) == ("what-if", ["price -10 %"], 3)
    assert (sent["at"], sent["options"]) == ("HEAD~2", {"seed": 7, "temperature": 1.0})


def test_piped_text_comes_before_each(run: Run, daemon: FakeDaemon, speakers: Speakers) -> None:
    speakers.end_all()
    done = run("what-if", "one", "two", text=b"\n  a document\n")
    assert done.code == 0, done.err
    sent = daemon.asked("generate")[0]
    assert (sent["before"], sent["texts"]) == ("\n  a document", ["one", "two"])  # as `ask` has it


def test_a_pipe_with_nothing_in_it_is_said(
    run: Run, daemon: FakeDaemon, speakers: Speakers
) -> None:
    speakers.end_all()
    done = run("what-if", "one", "two", text=b"\n")
    assert done.code == 0
    assert "stdin was empty: only the words of the command line are sent" in done.err
    assert "before" not in daemon.asked("generate")[0]


@pytest.mark.parametrize("words", [["-"], []])
def test_without_a_text_the_lines_of_stdin_are_the_texts(
    run: Run, daemon: FakeDaemon, speakers: Speakers, words: list[str]
) -> None:
    speakers.end_all()
    assert run("what-if", *words, text=b"one \n\n two words\n").code == 0
    assert daemon.asked("generate")[0]["texts"] == ["one", "two words"]


def test_with_a_number_all_of_stdin_is_the_text(run: Run, daemon: FakeDaemon) -> None:
    Speakers(daemon, ["x"], samples=2).end_all()
    assert run("what-if", "-N", "2", text=b"one\ntwo\n").code == 0
    assert daemon.asked("generate")[0]["texts"] == ["one\ntwo"]


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ((), 2, "nothing to ask"),
        (("",), 2, "an empty TEXT"),
        (("one", "two", "-N", "2"), 2, "-N 2 is for one TEXT, and here are 2"),
        (("one", "-N", "0"), 2, "-N 0: want 1 or more"),
        (("one", "--seed", "1", "--seed-base", "2"), 2, "take one of them"),
        (("-", "--no-stdin"), 2, "give one of them"),
        (("-",), 42, "stdin was empty"),
    ],
)
def test_what_cannot_be_asked_is_said(
    run: Run, daemon: FakeDaemon, line: tuple[str, ...], code: int, told: str
) -> None:
    done = run("what-if", *line)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert daemon.asked("generate") == []


# --- in a chat ---


def test_in_a_chat_head_stays_and_the_answers_stay_on_the_screen(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type("/what-if 'price -10 %' 'cost -5 %' 'volume +20 %' \"hire two\"\r")
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    speakers.end_all()
    terminal.wait_for("`/switch 2` goes to one, `/compare 1 2` sets two side by side")
    terminal.wait_for(lambda t: ">" in t.lines)  # the prompt, above the status bar
    assert left(terminal).count("says this.") == 4
    sent = daemon.asked("generate")[0]
    assert sent["texts"] == list(TEXTS)
    terminal.type("/switch 2\r")
    wait_until(lambda: bool(daemon.asked("switch")))
    asked = daemon.asked("switch")[0]
    assert asked["ref"] == "2"
    assert asked["head"] == {"branch": "main", "message": long("d9f1")}


def test_in_a_chat_a_line_each_and_ctrl_c_leaves_the_chat_open(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type("/whatif\nprice -10 %\ncost -5 %\nvolume +20 %\nhire two")
    terminal.wait_for("hire two")
    terminal.type("\r")
    terminal.wait_for("> 1 price")
    assert daemon.asked("generate")[0]["texts"] == list(TEXTS)
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    daemon.script["cancel"] = {"cancelled": True}  # and goes on, so that its end is not heard
    terminal.type("\x03")
    terminal.wait_for("cancelled: what came so far is kept in 1 price, 2 cost, 3 volume, 4 hire")
    daemon.script["generate"] = lambda _args: answer_events(["Hello"])
    terminal.type("and then?\r")
    terminal.wait_for("62 tok/s")
    assert daemon.asked("generate")[1]["head"] == {"branch": "main", "message": long("d9f1")}
    terminal.type("/what-if\r")
    terminal.wait_for('/what-if "TEXT" "TEXT"...')
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


@pytest.mark.parametrize("line", ["/retry 4", "/retry -N 4"])
def test_retry_k_in_a_chat_is_seen_in_columns_too(
    open_: Open, daemon: FakeDaemon, line: str
) -> None:
    speakers = Speakers(daemon, [], samples=4)
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type(f"{line}\r")
    terminal.wait_for("4 answers at c0c0")
    speakers.say_all("says this. ")
    terminal.wait_for(lambda t: t.text.count("says this.") == 4)
    speakers.head = {"branch": "main-1", "message": long("a0a0")}  # one goes to the first
    speakers.end_all()
    terminal.wait_for("4 branches")
    assert daemon.asked("generate")[0]["n"] == 4
    daemon.script["generate"] = lambda _args: answer_events(["Hello"])
    terminal.type("and then?\r")
    wait_until(lambda: len(daemon.asked("generate")) == 2)
    assert daemon.asked("generate")[1]["head"] == speakers.head


def test_in_a_chat_what_is_typed_before_and_during_the_columns_is_for_the_prompt(
    open_: Open, speakers: Speakers, daemon: FakeDaemon
) -> None:
    """An Esc among it stops no answer that nobody has seen yet."""
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type(f"/what-if {shlex.join(TEXTS)}\r\x1b[D/set seed 7\r")
    terminal.wait_for("> 1 price")
    assert daemon.asked("cancel") == []
    terminal.type("2")  # nothing was typed before it: a column
    terminal.wait_for("> 2 cost")
    terminal.type("oo\x7fne of 3\r")
    terminal.wait_for("typed for the prompt: one of 3")
    daemon.script["generate"] = lambda _args: answer_events(["Hello"])
    speakers.end_all()
    wait_until(lambda: len(daemon.asked("generate")) == 2)
    sent = daemon.asked("generate")[1]
    assert (sent["text"], sent["options"]) == ("one of 3", {"seed": 7})


def test_an_error_in_a_chat_leaves_the_answers_once_and_the_chat_open(
    open_: Open, speakers: Speakers
) -> None:
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type("/what-if 'price -10 %' 'cost -5 %' 'volume +20 %' 'hire two'\r")
    terminal.wait_for("> 1 price")
    speakers.say_all("says this. ")
    terminal.wait_for("hire says this.")
    speakers.fail(RadchatError("the engine broke"))
    terminal.wait_for("error: the engine broke")
    assert left(terminal).count("says this.") == 4
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0


def test_what_was_not_begun_is_offered_again_as_it_was_typed(
    open_: Open, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = Busy("the daemon is about to end: try again")
    terminal = open_("chat", "-c")
    terminal.wait_for("> ")
    terminal.type("/what-if 'price -10 %' \"cost -5 %\"\r")
    terminal.wait_for("error: the daemon is about to end: try again")
    terminal.settle()
    assert terminal.lines[terminal._screen.cursor.y] == "> /what-if 'price -10 %' \"cost -5 %\""
