"""`radchat think` against the scripted daemon: its two streams, its screen, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from radchat.chat.width import width
from radchat.errors import Busy
from radchat.programs.search.tasks.free import FREE
from tests.chat.conftest import HOSTILE, Open, Run, Unread
from tests.chat.fake_search import FakeSearch
from tests.chat.fake_server import FakeDaemon
from tests.chat.many_events import left
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

ASKED = ("think", "count the ferries", "-d", "2", "--seed", "7")


@pytest.fixture
def search(daemon: FakeDaemon) -> Iterator[FakeSearch]:
    fake = FakeSearch(daemon)
    yield fake
    fake.end()


@pytest.fixture
def held(daemon: FakeDaemon) -> Iterator[FakeSearch]:
    fake = FakeSearch(daemon, held=True)
    yield fake
    fake.end()


def test_stdout_is_the_answer_and_each_step_a_line_on_stderr(
    run: Run, search: FakeSearch, daemon: FakeDaemon
) -> None:
    done = run(*ASKED, "--budget", "2000")
    assert (done.code, done.out) == (0, "The answer is 42.\n")
    lines = done.err.splitlines()
    assert lines[0] == "grown s1.1, s1.2, s1.3 · 15/2,000 tokens"
    assert lines[1] == "judged s1.1 9, s1.2 8, s1.3 7 · 60/2,000 tokens"
    assert lines[2].startswith("pruned s1.3 7: 212 tokens of KV released · 60/2,000 tokens")
    assert lines[-2].startswith("the full depth is reached: the answer follows s1.1.1, score 9 · ")
    assert " · 9 thoughts, " in lines[-2]
    assert " cached 97% · " in lines[-2]
    assert lines[-1].startswith("report-q3 · main@")
    (asked,) = daemon.asked("search.open")
    assert (asked["new_session"], asked["only_terminal"]) == (True, True)
    (moved,) = daemon.asked("branch.advance")
    assert moved["expected"] is None
    (turn,) = daemon.asked("generate")
    assert (turn["session"], turn["options"]["seed"]) == (long("e7f2"), 7)
    assert 0 < turn["options"]["max_tokens"] <= 2000 - 60
    assert "\x1b" not in done.err


def test_quiet_it_says_the_answer_alone(run: Run, search: FakeSearch) -> None:
    done = run(*ASKED, "-q")
    assert (done.code, done.out, done.err) == (0, "The answer is 42.\n", "")


def test_json_has_the_tree_the_best_path_and_what_it_took(run: Run, search: FakeSearch) -> None:
    done = run(*ASKED, "--json", "--budget", "900")
    assert done.code == 0
    assert done.out.count("\n") == 1
    told = json.loads(done.out)
    assert told["answer"] == "The answer is 42."
    assert [each["name"] for each in told["best_path"]] == ["s1.1", "s1.1.1"]
    assert told["tree"]["name"] == "s1"
    assert [each["status"] for each in told["tree"]["children"]] == ["best", "live", "pruned"]
    assert (told["session"], told["branch"], told["search"]) == (long("e7f2"), "main", "s1")
    assert (told["reason"], told["solved"], told["budget"]) == ("depth", False, 900)
    tokens = 5 * (9 + 9 * 3)
    assert told["spent"] == told["usage"]["output_tokens"] == tokens + 62
    assert sum(told["cache"].values()) == told["usage"]["input_tokens"]
    assert told["settings"]["seed"] == 7


def test_piped_text_and_files_come_before_the_words(
    run: Run, search: FakeSearch, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("ferries\n")
    run("think", "how many?", "-d", "1", "-f", str(tmp_path / "a.md"), text=b"a list\n")
    assert search.asked[0].startswith("a.md:\n\nferries\n\na list\n\nhow many?\n\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["think"], 2, "nothing to ask: give a prompt"),
        (["think", "x", "--method", "dsf"], 2, "--method is bfs, dfs or beam (got dsf)"),
        (["think", "x", "-k", "0"], 2, "--branch is at least 1"),
        (["think", "x", "--task", "gome24"], 2, "did you mean game24?"),
        (["think", "x", "--task", "game24"], 2, "game24: "),
        (["think", "x", "--resume"], 2, "leave out PROMPT"),
        (["think", "--resume", "--temp", "1"], 2, "--temp has no meaning here"),
        (["think", "x", "-c", "--new-session", "y"], 2, "leave out -c"),
    ],
)
def test_what_is_wrong_with_the_line_is_told_before_a_daemon_is_asked(
    run: Run, search: FakeSearch, daemon: FakeDaemon, words: list[str], code: int, said: str
) -> None:
    done = run(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert daemon.asked("search.open") == []
    told = run(*words, "--json")
    assert json.loads(told.out)["error"]["exit_code"] == code


def test_a_budget_for_no_thought_says_how_much_is(run: Run, search: FakeSearch) -> None:
    done = run(*ASKED, "--budget", "20")
    assert (done.code, done.out) == (2, "")
    least = re.search(
        r"--budget 20 is too small for one thought: .* ([0-9,]+) is the least", done.err
    )
    assert least is not None
    assert run(*ASKED, "--budget", least[1].replace(",", "")).code == 0


def test_an_error_of_the_daemons_is_told_with_its_code(
    run: Run, search: FakeSearch, daemon: FakeDaemon
) -> None:
    daemon.script["search.open"] = Busy("64 searches are open already: try again later")
    done = run(*ASKED, "--json")
    assert (done.code, json.loads(done.out)["error"]["code"]) == (75, "busy")


def test_what_fails_in_the_middle_says_what_is_kept(
    run: Run, search: FakeSearch, daemon: FakeDaemon
) -> None:
    daemon.script["search.release"] = Busy("not now")
    done = run(*ASKED)
    assert (done.code, done.out) == (75, "")
    assert done.err.endswith(
        "stopped: 3 thoughts are kept in report-q3; `radchat think --resume` goes on\n"
        "error: not now\n"
    )


def test_a_closed_pipe_ends_quietly(unread: Unread, search: FakeSearch) -> None:
    code, err = unread(*ASKED, "-q")
    assert (code, err) == (0, b"")


def test_what_is_wrong_with_the_answer_is_told_before_the_search(
    run: Run, search: FakeSearch, daemon: FakeDaemon
) -> None:
    done = run("think", "x", "--max-tokens", "0")
    assert (done.code, done.err) == (42, "error: max_tokens: want 1 or more (got 0)\n")
    assert daemon.asked("search.open") == []


def test_where_no_thought_lives_the_answer_follows_the_problem(
    run: Run, search: FakeSearch, daemon: FakeDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "from radchat.programs.search.task import Task\n"
        "task = Task('mine', step='Next.', answer='Answer.', check=lambda p, thoughts: 'dead')\n"
    )
    done = run("think", "the words", "--task", str(path))
    assert (done.code, done.out) == (53, "The answer is 42.\n")
    assert "grown s1.1 dead, s1.2 dead, s1.3 dead" in done.err
    assert "not solved, nothing is left to go on from: the answer follows no thought" in done.err
    assert daemon.asked("branch.advance") == []
    assert daemon.asked("generate")[0]["text"] == "the words"


def test_what_a_task_file_prints_is_no_answer(run: Run, search: FakeSearch, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "from radchat.programs.search.task import Task\n"
        "print('loaded')\n"
        "task = Task('mine', step='Next.', depth=1)\n"
    )
    done = run("think", "x", "--task", str(path))
    assert (done.code, done.out) == (0, "The answer is 42.\n")
    assert "loaded\n" in done.err


# -- going on --------------------------------------------------------------------------------------


def test_a_search_is_gone_on_with_where_it_was(run: Run, search: FakeSearch) -> None:
    whole = run(*ASKED, "--json")
    assert whole.code == 0
    stored, asked = list(search.stored), len(search.asked)
    search.stored[:] = stored[: len(stored) // 2]
    again = run("think", "--resume", "--json")
    assert again.code == 0, again.err
    assert "going on with s1 of report-q3: count the ferries (" in again.err
    assert 0 < len(search.asked) - asked < asked
    first, second = json.loads(whole.out), json.loads(again.out)
    assert [each["name"] for each in first["best_path"]] == [
        each["name"] for each in second["best_path"]
    ]
    assert second["spent"] == first["spent"]


def test_a_search_that_has_ended_says_its_answer_again(
    run: Run, search: FakeSearch, daemon: FakeDaemon
) -> None:
    run(*ASKED)
    asked = len(search.asked)
    done = run("think", "--resume", "s1")
    assert (done.code, done.out) == (0, "The answer is 42.\n")
    assert "s1 of report-q3 has ended: this is its answer" in done.err
    assert "grown" not in done.err
    assert len(search.asked) == asked
    assert len(daemon.asked("generate")) == 1
    assert daemon.asked("search.open")[1]["resume"] == "s1"


# -- on a terminal ---------------------------------------------------------------------------------


def last_line(terminal: Terminal) -> str:
    return next((line for line in reversed(terminal.lines) if line), "")


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (50, 200)])
def test_the_tree_is_seen_as_it_grows_and_stays(
    open_: Open, held: FakeSearch, rows: int, columns: int
) -> None:
    held.text = "{name} " + HOSTILE + "你好" + " and on" * 40
    with open_(*ASKED, "--budget", "2000", rows=rows, columns=columns) as terminal:
        terminal.wait_for(lambda t: t.text.count("s1.+") == 3 and "/2,000 tokens" in t.text)
        assert "s1             growing  count the ferries" in terminal.text
        assert "\n0 thoughts · 0/2,000 tokens" in terminal.text
        held.step()
        terminal.wait_for(lambda t: "15/2,000 tokens" in t.text and "judging" in t.text)
        first = next(line for line in terminal.lines if line.startswith("  s1.1 "))
        assert "s1.1 x\\x1b[31my\\x9bz你好 and on" in first
        assert first.endswith("...")  # to the last column
        terminal.resize(rows - 6, columns - 30)
        terminal.wait_for(lambda t: len(last_line(t)) > 0 and "judging" in t.text)
        held.step()
        terminal.wait_for(lambda t: "s1.2.+" in t.text and "frontier 2 · 3 thoughts, 1" in t.text)
        assert "  s1.3          7  pruned" in terminal.text
        terminal.resize(rows, columns)
        held.end()
        assert terminal.wait_end() == 0
    kept = left(terminal)
    assert b"\x1b[?1049h" in terminal.raw
    assert b"\x1b[K" not in terminal.raw  # in the last column a terminal erases that, pyte nothing
    assert kept.startswith("name ")
    assert "    s1.1.1      9  best     s1.1.1 x\\x1b[31m" in kept
    assert "  s1.3          7  pruned" in kept
    assert "\nthe full depth is reached: the answer follows s1.1.1, score 9\n" in kept
    assert kept.count("The answer is 42.") == 1
    assert max(map(width, kept.splitlines())) <= columns
    assert b"\x1b[1m    s1.1.1      9  best" in terminal.raw
    assert b"\x1b[2m  s1.3          7  pruned" in terminal.raw


def test_more_thoughts_than_rows_are_folded(open_: Open, held: FakeSearch) -> None:
    with open_("think", "x", "-k", "9", "-d", "3", "-b", "4", "--seed", "1", rows=12) as terminal:
        terminal.wait_for(lambda t: bool(re.search(r"\.\.\. +3 coming\n\d+ thoughts", t.text)))
        assert terminal.text.count("s1.+") == 6
        held.end()
        assert terminal.wait_end() == 0
    tree = left(terminal).partition(" thoughts, ")[0].splitlines()[:-1]
    assert len(tree) <= 41
    assert any(re.match(r" *\.\.\. +\d+ pruned", line) for line in tree)
    assert sum(" best " in line for line in tree) == 3


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour_nothing_is_lost(
    open_: Open, search: FakeSearch, env: dict[str, str]
) -> None:
    with open_(*ASKED, columns=100, **env) as terminal:
        assert terminal.wait_end() == 0
    kept, is_dumb = left(terminal), "TERM" in env
    assert ("grown s1.1, s1.2, s1.3 · 15 tokens" in kept) == is_dumb
    assert ("s1.1.1      9  best" in kept) != is_dumb
    assert "The answer is 42." in kept
    assert not re.search(rb"\x1b\[[0-9;]*m", terminal.raw)
    assert not (is_dumb and b"\x1b" in terminal.raw)


def test_ctrl_c_keeps_what_was_thought_and_says_how_to_go_on(open_: Open, held: FakeSearch) -> None:
    with open_(*ASKED, columns=100) as terminal:
        terminal.wait_for("s1.+")
        held.step(2)
        terminal.wait_for("s1.2.+")
        terminal.type("\x03")
        assert terminal.wait_end() == 130
    kept = left(terminal)
    assert kept.endswith("3 thoughts are kept in report-q3; `radchat think --resume` goes on\n")
    assert "  s1.1      9  frontier  the idea s1.1\n" in kept
    assert terminal.raw.rindex(b"\x1b[?1049l") > terminal.raw.rindex(b"\x1b[?1049h")


def test_ctrl_c_under_json_is_a_document(home: Path, daemon: FakeDaemon, held: FakeSearch) -> None:
    with subprocess.Popen(
        radchat("--daemon", str(daemon.path), *ASKED, "--json"),
        env=clean_env(home, RADCHAT_MODEL="tiny"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        held.step()
        wait_until(lambda: len(held.asked) >= 2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    error = json.loads(out)["error"]
    assert error["begun"] == {"session": long("e7f2"), "search": "s1", "thoughts": 3}


# -- in a chat -------------------------------------------------------------------------------------


def opened(chat: Open, *args: str) -> Terminal:
    terminal = chat("chat", *args, columns=100)
    terminal.wait_for("> ")
    return terminal


def test_in_a_chat_the_answer_is_the_next_turn(
    chat: Open, search: FakeSearch, daemon: FakeDaemon
) -> None:
    terminal = opened(chat)
    terminal.type("/tot -d 2 --budget 900 count the ferries\r")
    terminal.wait_for("The answer is 42.")
    terminal.wait_for(lambda t: ">" in t.lines)
    (asked,) = daemon.asked("search.open")
    assert (asked["session"], asked["head"]["branch"]) == (long("e7f2"), "main")
    assert asked["head"] == daemon.asked("branch.advance")[0]["head"]
    (turn,) = daemon.asked("generate")
    assert turn["head"]["message"] == daemon.asked("branch.advance")[0]["message"]
    assert turn["text"] == FREE.answer_text("count the ferries", ["x", "y"])
    assert "s1.1.1      9  best" in terminal.everything


def test_ctrl_c_ends_the_search_and_the_chat_goes_on(
    chat: Open, held: FakeSearch, daemon: FakeDaemon
) -> None:
    terminal = opened(chat)
    terminal.type("/tot count the ferries\r")
    terminal.wait_for("s1.+")
    held.step(2)
    terminal.wait_for("s1.2.+")
    terminal.type("and then")
    terminal.type("\x03")
    terminal.wait_for("stopped: 3 thoughts are kept in report-q3; `/tot resume` goes on")
    terminal.wait_for("> and then")
    assert daemon.asked("generate") == []
    terminal.type("\x15/tot resume s1\r")
    held.end()
    terminal.wait_for("The answer is 42.")
    terminal.wait_for(lambda t: ">" in t.lines)
    assert b"going on with s1 of report-q3: count the ferries (" in terminal.raw


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/tot", "or /tot resume"),
        ("/tot resume now", "or /tot resume [s1]"),
        ("/tot resume --task free", "or /tot resume [s1]"),
        ("/tot -k two x", "-k wants a number (got 'two')"),
        ("/tot --bogus 3 x", "--bogus: /tot [--budget N]"),
    ],
)
def test_what_is_wrong_with_a_line_of_a_chat_is_told(
    chat: Open, search: FakeSearch, typed: str, said: str
) -> None:
    terminal = opened(chat)
    terminal.type(f"{typed}\r")
    terminal.wait_for(said)
