"""`radchat vote` and `/vote`: many answers counted, on terminals and pipes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import NotFound, RadchatError
from tests.chat.conftest import Open, Run, Unread
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.many_events import Speakers, left
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

ASKED = ["17 + 25?"]
NUMBER = ("--extract", "last-number")
SAYS = ["It is 41.", "So: 42.", "That makes 42.0", "who knows"]
HOSTILE = "[bold]\x1b[31mred\x9b"


def voters(daemon: FakeDaemon, *says: str) -> Speakers:
    """``says``: each says it, and goes on."""
    speakers = Speakers(daemon, [], samples=len(says), named=False)
    daemon.script["branch.advance"] = advanced
    for choice, text in enumerate(says):
        speakers.say(choice, text)
    return speakers


def advanced(args: dict[str, Any]) -> dict[str, Any]:
    place = {"session": args["session"], "name": "report-q3", "branch": "main"}
    return {**place, "head": args["message"], "short": None, "moved": True, "made": None}


def told(*says: str) -> Callable[[FakeDaemon], Speakers]:
    """All of it is said, and ends."""

    def begin(daemon: FakeDaemon) -> Speakers:
        speakers = voters(daemon, *says)
        speakers.end_all()
        return speakers

    return begin


def moves(daemon: FakeDaemon) -> list[dict[str, Any]]:
    return daemon.asked("branch.advance")


# --- on a terminal ---


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (50, 200)])
def test_answers_are_counted_as_they_come_and_the_table_stays(
    open_: Open, daemon: FakeDaemon, rows: int, columns: int
) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("vote", "-N", "4", *NUMBER, *ASKED, rows=rows, columns=columns)
    terminal.wait_for("Ctrl+C stop all")
    terminal.wait_for("who knows")
    assert "report-q3 · 4 answers at c0c0 · tiny fp32" in terminal.text
    speakers.end(1)
    terminal.wait_for("1 of 4: 1 for 42")
    assert "  2 42" in terminal.lines[1]  # the column has its answer
    speakers.end(0)
    speakers.end(3)
    terminal.wait_for("3 of 4: 1 for 41, 1 for 42, 1 without an answer")
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert left(terminal).splitlines() == [
        "votes  share  answer  the first of them",
        "    2  50.0%  42      @a1a0  So: 42.",
        "    1  25.0%  41      @a0a0  It is 41.",
        "    1  25.0%  (none)  @a3a0  who knows",
        "4 answers · shared 8,371 tokens computed once · new 212",
        "42",
        "report-q3 · main@a1a0",
    ]
    assert moves(daemon)[0]["message"] == long("a1a0")
    assert moves(daemon)[0]["expected"] == long("d9f1")


def test_a_line_counts_them_where_stdout_is_a_pipe(home: Path, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    line = shlex.join(radchat("--daemon", str(daemon.path), "vote", "-N", "4", *NUMBER, *ASKED))
    command = ["sh", "-c", f'answer=$({line}); echo got "$answer"']
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny")) as terminal:
        speakers.end(1)
        terminal.wait_for("1 of 4: 1 for 42 · 12 tokens")
        speakers.end_all()
        terminal.wait_for("got 42")
        assert terminal.wait_end() == 0
        assert b"\x1b[?1049h" not in terminal.raw
        assert "    2  50.0%  42      @a1a0  So: 42." in terminal.lines


@pytest.mark.parametrize("how", [{"TERM": "dumb"}, "--plain", {"NO_COLOR": "1"}], ids=str)
def test_nothing_is_painted_where_nothing_is_to_be(
    open_: Open, daemon: FakeDaemon, how: str | dict[str, str]
) -> None:
    told(*SAYS)(daemon)
    env = how if isinstance(how, dict) else {}
    flags = [how] if isinstance(how, str) else []
    terminal = open_(*flags, "vote", "-N", "4", *NUMBER, *ASKED, **env)
    assert terminal.wait_end() == 0
    assert "    2  50.0%  42      @a1a0  So: 42." in left(terminal).splitlines()
    assert re.findall(rb"\x1b\[(?:[0-9;]*;)?[34][0-9](?:;[0-9]+)*m", terminal.raw) == []
    if "NO_COLOR" not in env:
        assert b"\x1b" not in terminal.raw.replace(b"\r\x1b[2K", b"")


def test_ctrl_c_counts_what_is_whole_and_head_stays(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("vote", "-N", "4", *NUMBER, *ASKED)
    terminal.wait_for("> 1")
    speakers.end(1)
    terminal.wait_for("1 of 4: 1 for 42")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    lines = left(terminal).splitlines()
    assert lines[1] == "    1  100.0%  42      @a1a0  So: 42."
    kept = (
        "cancelled after 1 of 4 answers, all that came is kept in report-q3; `radchat switch a1a0`"
    )
    assert f"{kept} goes to one for 42" in " ".join(lines)
    assert "42" not in lines  # no answer to read for one who counts on it
    assert daemon.asked("cancel") == [{"request": "r1"}]
    assert moves(daemon) == []


def test_ctrl_c_under_json_is_a_document(home: Path, daemon: FakeDaemon, tmp_path: Path) -> None:
    speakers, out = voters(daemon, *SAYS), tmp_path / "out.json"
    line = shlex.join(radchat("--daemon", str(daemon.path), "vote", "--json", *NUMBER, *ASKED))
    command = ["sh", "-c", f"trap : INT; {line} > {out}; echo ended $?"]
    with Terminal(command, clean_env(home, RADCHAT_MODEL="tiny")) as terminal:
        speakers.end(1)
        terminal.wait_for("1 of 4: 1 for 42 · 12 tokens")
        terminal.type("\x03")
        terminal.wait_for("ended 130")
        assert "votes" not in terminal.text
    error = json.loads(out.read_text())["error"]
    assert error["message"].startswith("cancelled after 1 of 4 answers, all that came is kept in ")
    assert error["begun"]["messages"][1] == long("a1a0")
    assert moves(daemon) == []


def test_ctrl_c_before_a_word_says_where_the_question_is(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, "", "")
    terminal = open_("vote", "-N", "2", *NUMBER, *ASKED, TERM="dumb")
    speakers.event("progress", choice=0, stage="extend", done=32, total=100)
    speakers.event("notice", text="this recomputes 8,371 tokens", code="recompute")
    terminal.wait_for("this recomputes")
    terminal.type("\x03")
    assert terminal.wait_end() == 130
    kept = "cancelled before an answer: the question is kept in report-q3; `radchat retry"
    assert f"{kept} c0c0` answers it" in " ".join(terminal.everything.split("\n"))
    assert moves(daemon) == []


def test_esc_takes_the_vote_of_one(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("vote", "-N", "4", *NUMBER, *ASKED)
    terminal.wait_for("> 1")
    terminal.type("\t\x1b")
    terminal.wait_for("stopped")
    assert daemon.asked("cancel") == [{"request": "r1", "choice": 1}]
    speakers.end_all()
    assert terminal.wait_end() == 0
    assert "a tie: 41 and 42 have 1 vote each; the one said first is taken" in left(terminal)
    assert moves(daemon)[0]["message"] == long("a0a0")


def test_an_error_in_the_middle_leaves_head_where_it_was(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("vote", "-N", "4", *NUMBER, *ASKED)
    terminal.wait_for("> 1")
    speakers.end(1)
    speakers.fail(RadchatError("the engine \x1b[2J broke"))
    assert terminal.wait_end() == 1
    assert "42      @a1a0  So: 42." in left(terminal)
    assert left(terminal).endswith("error: the engine \\x1b[2J broke\n")
    assert moves(daemon) == []


# --- piped ---


def test_stdout_is_the_answer_alone(run: Run, daemon: FakeDaemon) -> None:
    told(*SAYS)(daemon)
    done = run("vote", "-N", "4", *NUMBER, *ASKED)
    assert (done.code, done.out) == (0, "42\n")
    assert done.err.splitlines() == [
        "votes  share  answer  the first of them",
        "    2  50.0%  42      @a1a0  So: 42.",
        "    1  25.0%  41      @a0a0  It is 41.",
        "    1  25.0%  (none)  @a3a0  who knows",
        "4 answers · shared 8,371 tokens computed once · new 212",
        "report-q3 · main@a1a0",
    ]
    told(*SAYS)(daemon)
    done = run("vote", "-q", "-N", "4", *NUMBER, *ASKED)
    assert (done.code, done.out, done.err) == (0, "42\n", "")


def test_without_extract_whole_texts_are_counted(run: Run, daemon: FakeDaemon) -> None:
    told("yes\nit is", " yes  it is\n", "no", f"no: {HOSTILE}")(daemon)
    done = run("vote", "-N", "4", *ASKED)
    assert (done.code, done.out) == (0, "yes\nit is\n")
    assert done.err.splitlines()[1:4] == [
        "    2  50.0%  yes it is                  @a0a0",
        "    1  25.0%  no                         @a2a0",
        "    1  25.0%  no: [bold]\\x1b[31mred\\x9b  @a3a0",
    ]


def test_an_answer_cannot_drive_the_terminal(run: Run, daemon: FakeDaemon) -> None:
    told(f"<{HOSTILE}>", f"<{HOSTILE}>")(daemon)
    done = run("vote", "-N", "2", "--extract", "<(.*)>", *ASKED)
    assert (done.code, done.out) == (0, "[bold]\\x1b[31mred\\x9b\n")
    assert "\x1b" not in done.err


def test_json_has_every_answer_and_the_shares(run: Run, daemon: FakeDaemon) -> None:
    told(*SAYS)(daemon)
    done = run("vote", "-N", "4", *NUMBER, *ASKED, "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    document = json.loads(done.out)
    assert {"session", "parent", "usage", "cache", "shared"} <= set(document)
    assert (document["answer"], document["branch"]) == ("42", "main")
    assert document["message"] == document["head"]["message"] == long("a1a0")
    assert document["shares"] == [
        {"answer": "42", "votes": 2, "share": 0.5, "message": long("a1a0"), "choices": [1, 2]},
        {"answer": "41", "votes": 1, "share": 0.25, "message": long("a0a0"), "choices": [0]},
    ]
    assert (document["tied"], document["without"], document["counted"]) == ([], [3], 4)
    bodies = document["branches"]
    assert [body["answer"] for body in bodies] == ["41", "42", "42", None]
    assert [body["branch"] for body in bodies] == [None, "main", None, None]
    assert [body["text"] for body in bodies] == SAYS


def test_show_all_has_every_text_on_stderr(run: Run, daemon: FakeDaemon) -> None:
    told(*SAYS)(daemon)
    done = run("vote", "-N", "4", *NUMBER, "--show-all", *ASKED)
    assert (done.code, done.out) == (0, "42\n")
    begins = "[1] 41@a0a0\nIt is 41.\n\n[2] 42@a1a0\nSo: 42.\n\n[3] 42@a2a0\nThat makes 42.0\n\n"
    assert done.err.startswith(f"{begins}[4] (none)@a3a0\nwho knows\n\nvotes")


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ((0, 1, 2), "decided after 3 of 5: 2 others stopped"),
        ((3, 4, 0, 1, 2), None),
    ],
)
def test_an_early_stop_ends_those_that_can_change_nothing(
    run: Run, daemon: FakeDaemon, order: tuple[int, ...], says: str | None
) -> None:
    speakers = voters(daemon, "42", "42", "42", "41", "41")
    for choice in order:
        speakers.end(choice)
    done = run("vote", "-N", "5", "--early-stop", *NUMBER, *ASKED)
    assert (done.code, done.out) == (0, "42\n")
    assert daemon.asked("cancel") == ([{"request": "r1"}] if says else [])
    assert ("decided" in done.err) is (says is not None)
    assert says is None or says in done.err.splitlines()


def test_a_tie_is_said_and_goes_to_who_spoke_first(run: Run, daemon: FakeDaemon) -> None:
    told("no", "yes", "yes.", "No")(daemon)
    done = run("vote", "-N", "4", "--extract", "last-line", *ASKED)
    assert (done.code, done.out) == (0, "no\n")
    assert "a tie: no and yes have 2 votes each; the one said first is taken" in done.err
    told("a", "b", "c", "d")(daemon)
    done = run("vote", "-N", "4", *ASKED)
    assert (done.code, done.out) == (0, "a\n")
    assert "a tie: a, b and 2 more have 1 vote each; the one said first is taken" in done.err


def test_what_was_cut_off_is_counted_and_said(run: Run, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, "42", "42", "41")
    speakers.end(0, "length")
    speakers.end_all()
    done = run("vote", "-N", "3", *NUMBER, *ASKED)
    assert (done.code, done.out) == (0, "42\n")
    assert "cut off, and counted as they are: answer 1\n" in done.err
    assert moves(daemon)[0]["message"] == long("a1a0")  # the first that is whole


def test_what_is_not_of_its_form_has_no_vote(run: Run, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, '{"a": 1', '{"a": 1', '{"a": 2}', '{"a": 1}')
    for choice, reason in enumerate(("length", "dead_end", "stop")):
        speakers.end(choice, reason, grammar="json_schema")
    speakers.end(3, grammar="json_schema", schema_error="a: 1 is too small")
    done = run("vote", "-N", "4", "--schema", "{}", "--extract", "json:a", *ASKED)
    assert (done.code, done.out) == (0, "2\n")
    assert "not of the form that was asked for, and not counted: answers 1, 2 and 4\n" in done.err
    assert daemon.asked("generate")[0]["grammar"]["kind"] == "json_schema"


def test_no_answer_at_all_is_57_with_the_texts_kept(run: Run, daemon: FakeDaemon) -> None:
    told("x", "y")(daemon)
    done = run("vote", "-N", "2", "--extract", r"\d+", *ASKED)
    assert (done.code, done.out) == (57, "")
    kept = "what they say is kept in report-q3; `radchat tree` shows it"
    assert done.err.endswith(f"error: none of 2 answers has a match for \\d+: {kept}\n")
    assert "    2  100.0%  (none)  @a0a0  x" in done.err
    told("x", "y")(daemon)
    error = json.loads(run("vote", "-N", "2", *NUMBER, *ASKED, "--json").out)["error"]
    assert (error["code"], error["exit_code"]) == ("output_invalid", 57)
    assert [body["text"] for body in error["branches"]] == ["x", "y"]
    speakers = voters(daemon, '{"a": 1')
    speakers.end(0, "length", grammar="json_schema")
    done = run("vote", "-N", "1", "--schema", "{}", *ASKED)
    assert done.code == 57
    assert "none of 1 answer is of the form that was asked for" in done.err
    assert moves(daemon) == []


def test_a_pattern_that_takes_for_ever_does_not(run: Run, daemon: FakeDaemon) -> None:
    told("x" * 60 + "!", "b xx", "c xx")(daemon)
    done = run("vote", "-N", "3", "--extract", "(x+)+$", *ASKED)
    assert (done.code, done.out) == (0, "xx\n")
    assert "given up after a second, in 1 text: the search for a match for (x+)+$\n" in done.err


def test_where_head_has_moved_on_it_is_on_a_branch_of_its_own(run: Run, daemon: FakeDaemon) -> None:
    told(*SAYS)(daemon)
    daemon.script["branch.advance"] = lambda args: {
        **advanced(args), "branch": "main-2", "moved": False, "made": "main-2",
    }  # fmt: skip
    done = run("vote", "-N", "4", *NUMBER, *ASKED)
    assert done.out == "42\n"
    assert "HEAD has moved on: this answer is on a branch of its own, main-2\n" in done.err
    told(*SAYS)(daemon)
    assert "has moved" not in run("vote", "-N", "4", *NUMBER, "--at", "2", *ASKED).err
    told(*SAYS)(daemon)
    daemon.script["branch.advance"] = NotFound("no such session")
    done = run("vote", "-N", "4", *NUMBER, *ASKED)
    assert (done.code, done.out) == (66, "42\n")  # it was found all the same


def test_a_closed_pipe_ends_quietly(unread: Unread, daemon: FakeDaemon) -> None:
    told(*SAYS)(daemon)
    assert unread("vote", "-q", "-N", "4", *NUMBER, *ASKED) == (0, b"")
    assert len(moves(daemon)) == 1


# --- what is asked ---


def test_what_is_asked_of_the_daemon(run: Run, daemon: FakeDaemon) -> None:
    told("42")(daemon)
    assert run("vote", *NUMBER, "17", "+ 25?", text=b"a document\n").code == 0
    sent = daemon.asked("generate")[0]
    assert (sent["kind"], sent["n"], sent["named"]) == ("turn", 16, False)
    assert (sent["text"], sent["new_session"]) == ("a document\n\n17 + 25?", True)
    assert sent["options"] == {}  # the daemon draws as for what-ifs
    told("42")(daemon)
    line = ["-c", "-N", "4", "--at", "HEAD~2", "--temp", "0", "--ephemeral", "--choice", "42"]
    done = run("vote", *line, "why?")
    assert done.code == 0
    sent = daemon.asked("generate")[1]
    assert (sent["at"], sent["n"], sent["ephemeral"]) == ("HEAD~2", 4, True)
    assert (sent["options"], sent["grammar"]["kind"]) == ({"temperature": 0.0}, "choices")
    assert "at temperature 0 all 4 answers are the same\n" in done.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("--extract", "(a", "x"), "--extract (a: no regular expression"),
        (("--extract", "json:a..b", "x"), "want keys and places"),
        (("--extract", "", "x"), "--extract wants a regular expression"),
        (("-N", "0", "x"), "-N 0: want 1 or more"),
        (("--no-jump", "x"), "--no-jump goes with"),
        (("--regex", "a", "--choice", "b", "x"), "an answer is held to one of them"),
        ((), "nothing to ask"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_runs(
    run: Run, daemon: FakeDaemon, line: tuple[str, ...], told: str
) -> None:
    done = run("vote", *line)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert daemon.asked("generate") == []


# --- in a chat ---


def test_in_a_chat_one_goes_on_from_who_won(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("chat", "-c", columns=80)
    terminal.wait_for("> ")
    terminal.type("/vote -N 4 --extract 'last-number' 17 + 25?\r")
    terminal.wait_for("> 1")
    sent = daemon.asked("generate")[0]
    assert (sent["text"], sent["n"], sent["named"]) == ("17 + 25?", 4, False)
    speakers.end_all()
    terminal.wait_for("report-q3 · main@a1a0")
    terminal.wait_for(lambda t: ">" in t.lines)
    lines = left(terminal).splitlines()
    assert "    2  50.0%  42      @a1a0  So: 42." in lines
    assert "So: 42." in lines  # what the conversation goes on from
    assert moves(daemon)[0]["head"] == {"branch": "main", "message": long("d9f1")}
    daemon.script["generate"] = lambda _args: answer_events(["Hello"])
    terminal.type("and then?\r")
    wait_until(lambda: len(daemon.asked("generate")) == 2)
    assert daemon.asked("generate")[1]["head"] == {"branch": "main", "message": long("a1a0")}


def test_in_a_chat_ctrl_c_and_none_leave_one_where_one_was(open_: Open, daemon: FakeDaemon) -> None:
    speakers = voters(daemon, *SAYS)
    terminal = open_("chat", "-c", columns=80)
    terminal.wait_for("> ")
    terminal.type("/vote -N 4 --early-stop --extract last-number\n17 + 25?")
    terminal.wait_for("17 + 25?")
    terminal.type("\r")
    terminal.wait_for("> 1")
    speakers.end(1)
    terminal.wait_for("1 of 4: 1 for 42")
    terminal.type("\x03")
    terminal.wait_for("all that came is kept; `/switch a1a0` goes to")
    terminal.wait_for(lambda t: ">" in t.lines)
    told("x", "y")(daemon)
    terminal.type("/vote -N 2 --extract last-number 17 + 25?\r")
    terminal.wait_for("error: none of 2 answers has a number: what they say is kept in")
    terminal.wait_for(lambda t: ">" in t.lines)
    terminal.type("/vote --extract (a why?\r")
    terminal.wait_for("error: --extract (a: no regular expression")
    assert len(daemon.asked("generate")) == 2
    assert moves(daemon) == []
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0
