"""The question whether a call may run: shown whole, answered by one key that was meant for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat.test_text import HOSTILE
from tests.e2e.harness import Terminal, clean_env

ROOT = Path(__file__).parents[2]
COMMAND: dict[str, Any] = {"title": "shell rm x", "body": "rm x", "body_kind": "command"}
ASKED = "[Esc] stop"


def asking(
    tmp_path: Path,
    preview: dict[str, Any],
    ahead: int = 0,
    term: str = "xterm-256color",
    **size: int,
) -> Terminal:
    paths = ":".join(str(ROOT / part) for part in ("", "kernels", "sessions"))
    env = clean_env(tmp_path, PYTHONPATH=paths, TERM=term)
    command = [sys.executable, "-m", "tests.agent.approving", json.dumps(preview), str(ahead)]
    return Terminal(command, env, cwd=ROOT, **size)


def told(screen: Terminal, word: str) -> Any:
    if not screen.child.closed:
        screen.wait_end()
    line = next(li for li in screen.everything.splitlines() if li.startswith(f"{word} "))
    return json.loads(line.removeprefix(f"{word} "))


@pytest.mark.parametrize(
    ("keys", "allowed", "remember", "stop"),
    [
        ("y", True, "once", False),
        ("Y", True, "once", False),
        ("s", True, "session", False),
        ("p", True, "project", False),
        ("u", True, "user", False),
        ("\x1b", False, "once", True),
        ("\x03", False, "once", True),
        ("\x04", False, "once", True),
    ],
)
def test_one_key_answers(
    keys: str, remember: str, tmp_path: Path, *, allowed: bool, stop: bool
) -> None:
    with asking(tmp_path, COMMAND, columns=200) as screen:
        screen.wait_for(ASKED)
        screen.type(keys)
        answer = told(screen, "ANSWER")
        assert (answer["allowed"], answer["remember"], answer["stop"]) == (allowed, remember, stop)
        kept = ["shell(rm:*)", "write(a)"] if remember != "once" else []
        assert answer["rules"] == kept
        assert "ECHO True True" in screen.everything, "the terminal is as it was"


def test_no_takes_words_with_it(tmp_path: Path) -> None:
    with asking(tmp_path, COMMAND, columns=200) as screen:
        screen.wait_for(ASKED)
        screen.type("n")
        screen.wait_for("What instead?")
        screen.type("use git rm\r")
        answer = told(screen, "ANSWER")
        assert (answer["allowed"], answer["feedback"], answer["stop"]) == (
            False,
            "use git rm",
            False,
        )


def test_what_was_typed_before_it_was_asked_is_no_answer(tmp_path: Path) -> None:
    with asking(tmp_path, COMMAND, ahead=3, columns=200) as screen:
        screen.wait_for("begun")
        screen.type("yyy")
        screen.wait_for(ASKED)
        screen.settle()
        assert "allowed" not in screen.text
        screen.type("\x1b")
        assert told(screen, "ANSWER")["allowed"] is False
        assert told(screen, "ASIDE") == "yyy"


@pytest.mark.parametrize(
    "keys", ["yes", "\x1b[200~y\x1b[201~", "\x1b[A", "\x1by", "q", "\r", " ", "é", "1"]
)
def test_what_is_no_answer_leaves_the_question_standing(keys: str, tmp_path: Path) -> None:
    with asking(tmp_path, COMMAND, columns=200) as screen:
        screen.wait_for(ASKED)
        screen.type(keys)
        screen.settle(0.4)
        assert "ANSWER" not in screen.everything
        screen.type("y")
        assert told(screen, "ANSWER")["allowed"] is True


def test_nothing_that_is_shown_can_drive_the_terminal(tmp_path: Path) -> None:
    body = "\n".join(f"echo [red]{number} {text}" for number, text in enumerate(HOSTILE))
    preview = {"title": f"shell {HOSTILE[1]}", "body": body, "body_kind": "command"}
    with asking(tmp_path, preview, rows=60, columns=200) as screen:
        screen.wait_for(ASKED)
        text = screen.everything
        assert r"\x1b[2J" in text
        assert r"\u202e" in text
        for number in range(len(HOSTILE)):
            assert f"| echo [red]{number} " in text
        screen.type("\x1b")
        told(screen, "ANSWER")
    for hostile in (b"\x1b[31m", b"\x1b[2J", b"\x1b]", b"\x07", b"\x1bP", b"\x1bc", b"\x1b[6n"):
        assert hostile not in screen.raw


def test_a_long_one_says_what_it_leaves_out_and_shows_it(tmp_path: Path) -> None:
    body = "\n".join(f"echo {number}" for number in range(500))
    preview = {"title": "shell", "body": body, "body_kind": "command"}
    with asking(tmp_path, preview, columns=200) as screen:
        screen.wait_for("[v] all of it")
        assert "[482 rows not shown here: v shows all of it]" in screen.text
        assert "| echo 250\n" not in screen.everything
        assert "| echo 0\n" in screen.text, "the beginning is on the same screen as the question"
        screen.type("v")
        screen.wait_for("1-22 of 500")
        screen.type("\x1b[6~" * 3)
        screen.wait_for("67-88 of 500")
        assert "| echo 87\n" in screen.text
        screen.resize(40, 60)
        screen.wait_for("67-104 of 500")
        screen.type("y\x1b[F")  # no answer there
        screen.wait_for("463-500 of 500")
        screen.resize(40, 200)
        screen.type("q")
        screen.wait_for(lambda t: "[v] all of it" in t.lines[t._screen.cursor.y])
        screen.type("y")
        assert told(screen, "ANSWER")["allowed"] is True


def test_where_nothing_is_painted_the_answer_is_a_line(tmp_path: Path) -> None:
    body = "\n".join(f"echo {number}" for number in range(100))
    preview = {"title": "shell", "body": body, "body_kind": "command"}
    with asking(tmp_path, preview, ahead=2, term="dumb", columns=200) as screen:
        screen.wait_for("begun")
        screen.type("y\r")
        screen.wait_for("then Enter (Enter alone: no)")
        assert "allowed" not in screen.text
        screen.type("v\r")
        screen.wait_for(lambda t: t.everything.count("then Enter (Enter alone: no)") == 2)
        assert all(f"  | echo {number}\n" in screen.everything for number in range(100))
        screen.type("\r")
        screen.wait_for("What instead?")
        screen.type("\r")
        answer = told(screen, "ANSWER")
        assert (answer["allowed"], answer["stop"]) == (False, False)
        assert "\x1b" not in screen.raw.decode()


def test_a_paste_that_comes_in_pieces_is_no_answer(tmp_path: Path) -> None:
    with asking(tmp_path, COMMAND, columns=200) as screen:
        screen.wait_for(ASKED)
        screen.type("\x1b[200~ls\n")
        screen.settle(0.3)
        screen.type("y")
        screen.settle(0.3)
        screen.type("\x1b[201~")
        screen.settle(0.3)
        assert "ANSWER" not in screen.everything
        screen.wait_for(lambda t: t.everything.count(ASKED) == 2)
        screen.type("n")
        screen.wait_for("What instead?")
        screen.type("one\ntwo\ny\n")  # one line is the answer
        assert told(screen, "ANSWER")["feedback"] == "one"


def test_on_a_narrow_screen_too(tmp_path: Path) -> None:
    body = "echo " + " " * 50 + "x" * 100 + "; " + "\n" * 30 + "rm -rf ~"
    with asking(tmp_path, {**COMMAND, "body": body}, columns=40) as screen:
        screen.wait_for("[v] all of it")
        assert "  | echo\n" in screen.text, "what comes before much that is empty is seen"
        assert "  | rm -rf ~\n" in screen.text
        screen.type("y")
        screen.wait_for("ANSWER")


def test_a_question_of_the_models_is_answered_by_words_or_a_number(tmp_path: Path) -> None:
    question = {"question": "Which \x1b[2J one?", "choices": ["red", "blue"]}
    with asking(tmp_path, question, columns=100) as screen:
        screen.wait_for("answer (")
        screen.type("2\r")
        assert told(screen, "ANSWER") == "blue"
    with asking(tmp_path, question, columns=100) as screen:
        screen.wait_for("answer (")
        screen.type("\x03")
        assert told(screen, "ANSWER") is None
