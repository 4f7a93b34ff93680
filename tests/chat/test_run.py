"""`radchat run` against the scripted daemon: its two streams, and how it fails."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import UsageError
from radchat.protocol import Event
from tests.chat.conftest import HOSTILE, Open, Run
from tests.chat.fake_server import FakeDaemon, usage
from tests.chat.trees import long

PROGRAM = """
from radchat.programs import assistant, gen, program, user

@program
def helper(s):
    s += user("hello")

@program
def greet(s, name: str, times: int = 1):
    helper(s)
    print("printed")
    s += assistant(f"Dear {name}, " + gen("words", max_tokens=4))
    return [s["words"]] * times
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "greet.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture(autouse=True)
def programs(daemon: FakeDaemon) -> Iterator[None]:
    """What the daemon says of any program."""
    over, numbers = threading.Event(), itertools.count(1)

    def opened(args: dict[str, Any]) -> Iterable[Event]:
        given = {"program": "p1", "model": "tiny", "dtype": "fp32", "context": 512, "state": 0}
        yield Event("init", given)
        over.wait(60)

    def generated(args: dict[str, Any]) -> Iterable[Event]:
        yield Event("delta", {"choice": 0, "text": HOSTILE, "forced": False})
        output = {"text": HOSTILE, "finish_reason": "stop", "tokens": 3, "forced_tokens": 0}
        cache = {"device": 1180, "host": 0, "disk": 0, "computed": 31}
        timing = {"first_token_s": 0.01, "total_s": 0.02, "tokens_per_s": 100.0}
        rest = {"usage": usage(output=3), "cache": cache, "timing": timing}
        yield Event("done", {"outputs": [output], "seed": 7, **rest})

    saved = {"session": long("e7f2"), "name": "kept", "branch": "main", "message": long("d9f1")}
    daemon.script |= {
        "program.open": opened,
        "program.fork": lambda args: {"states": [next(numbers) for _ in range(args["n"])]},
        "program.say": {"tokens": 9, "text": ""},
        "program.gen": generated,
        "program.drop": {},
        "program.save": saved,
    }
    yield
    over.set()


def test_a_pipe_gets_one_line_of_json_and_what_the_program_prints_is_none_of_it(
    run: Run, program: str, daemon: FakeDaemon
) -> None:
    done = run("run", program, "--arg", "name=Ada", "--arg", "times=2", "--temp", "0", "--no-jump")
    assert done.code == 0
    document = json.loads(done.out)
    assert list(document) == ["result", "variables", "usage", "cache", "trace"]
    assert document["result"] == [HOSTILE, HOSTILE]
    assert document["variables"] == {"words": HOSTILE}
    assert document["usage"] == usage(output=3)
    assert document["trace"]["place"].startswith(program + ":")
    assert done.out.count("\n") == 1
    assert "\x1b" not in done.out
    assert "printed\n" in done.err
    assert "This runs the last" in done.err
    (asked,) = daemon.asked("program.open")
    assert asked["options"] == {"temperature": 0}
    assert (asked["model"], asked["cache"], asked["jump"]) == ("tiny", True, False)


def test_the_trace_and_the_session_it_is_kept_in_are_told_on_stderr(
    run: Run, program: str, daemon: FakeDaemon
) -> None:
    done = run("run", program, "--arg", "name=Ada", "--trace", "--save", "kept")
    assert done.code == 0
    assert "kept · main@d9f1" in done.err
    assert "gen words  cached 1,180/1,211 · said 3" in done.err
    assert "program helper" in done.err
    assert "\x1b" not in done.err
    assert "\x9b" not in done.err
    assert daemon.asked("program.save")[0]["name"] == "kept"


def test_a_name_that_a_session_cannot_have_is_told_before_anything_is_asked(
    run: Run, program: str, daemon: FakeDaemon
) -> None:
    daemon.script["program.open"] = UsageError("there is a session kept already")
    done = run("run", program, "--arg", "name=Ada", "--save", "kept")
    assert done.code == 2
    assert done.err.endswith("error: there is a session kept already\n")
    assert daemon.asked("program.open")[0]["save"] == "kept"
    assert daemon.asked("program.say") == []


def test_on_a_terminal_the_document_is_for_a_person(
    open_: Open, program: str, daemon: FakeDaemon
) -> None:
    with open_("run", program, "--arg", "name=Ada", "--trace", columns=80) as terminal:
        terminal.wait_for("tiny fp32 · 1 call · cached 1,180/1,211 (97.4%) · said 3 · ")
        shown = terminal.everything
    assert '  "result": [' in shown
    assert '"trace"' not in shown
    assert "─ gen words  cached 1,180/1,211" in shown


def test_what_rows_print_stands_on_lines_of_its_own_above_the_progress(
    open_: Open, program: str, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "Ada"}\n' * 5)
    rows = ("--input", str(tmp_path / "in.jsonl"), "--at-once", "1")
    with open_("run", program, *rows, columns=200) as terminal:
        terminal.wait_end()
        lines = terminal.everything.splitlines()
    assert [line.strip() for line in lines if "printed" in line] == ["printed"] * 5
    assert not any("] " in line and " rows" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["smollm2-135m"], 2, "radchat chat -m smollm2-135m"),
        (["llama3", "tell", "me", "more"], 2, 'radchat chat "run llama3 tell me more"'),
        (["none.py"], 2, "no file none.py here"),
        (["{program}"], 2, "greet needs name: --arg name=TEXT"),
        (["{program}", "name=Ada"], 2, "--arg name=Ada"),
        (["{program}", "--arg", "nam=Ada"], 2, "did you mean name?"),
        (["{program}", "-s", "x"], 2, "-s/--system has no meaning here"),
        (["{program}", "--save", "x", "--ephemeral"], 2, "leave out --input and --ephemeral"),
        (["{program}", "--input", "/dev/null"], 42, "/dev/null has no rows"),
    ],
)
def test_what_is_wrong_with_the_line_is_told_before_a_daemon_is_asked(
    run: Run, program: str, daemon: FakeDaemon, words: list[str], code: int, said: str
) -> None:
    done = run("run", *(word.replace("{program}", program) for word in words))
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert daemon.asked("program.open") == []


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("x = (", 1, ":1: SyntaxError: '(' was never closed"),
        ("import none_such", 1, ":1: ModuleNotFoundError: No module named 'none_such'"),
        ("x = 1", 2, "has no program: put @program"),
        ("from radchat.programs import program\n@program\ndef f(s):\n    1 / 0", 1,
         ":4: ZeroDivisionError: division by zero"),
        ("from radchat.programs import program\n@program\ndef f(s):\n    return s['a']", 1,
         ":4: nothing here is called 'a'"),
    ],
)  # fmt: skip
def test_a_broken_program_is_told_with_its_line(
    run: Run, tmp_path: Path, source: str, code: int, said: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    done = run("run", str(path))
    assert (done.code, done.out) == (code, "")
    assert f"error: {path}" in done.err
    assert said in done.err
    assert "Traceback" not in done.err
    told = run("run", str(path), "--json")
    assert json.loads(told.out)["error"]["exit_code"] == code
    if code == 1 and "SyntaxError" not in said and "nothing here" not in said:
        assert "Traceback" in run("run", str(path), "-v").err
