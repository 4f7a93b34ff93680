"""`radchat ask`: what it reads, what it writes, and where (docs/cli.md, "Streams")."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.chat.code_block import first_block
from radchat.chat.files import load
from radchat.cli import stdin
from radchat.errors import ContextOverflow, InvalidInput, UsageError
from radchat.protocol import Event
from tests.chat.conftest import Run
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.trees import long
from tests.e2e.harness import clean_env, radchat


def asked(daemon: FakeDaemon) -> dict[str, Any]:
    return daemon.asked("generate")[-1]


# --- stdin ---


def compose(words: list[str], data: bytes | None, **more: Any) -> tuple[str, list[str]]:
    """The prompt made of these words and a pipe that holds this; and the notes."""
    notes: list[str] = []
    if data is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    else:
        descriptor, write = os.pipe()
        os.write(write, data)
        os.close(write)
    try:
        text = stdin.compose(words, note=notes.append, descriptor=descriptor, **more)
    finally:
        os.close(descriptor)
    return text, notes


@pytest.mark.parametrize(
    ("words", "data", "prompt"),
    [
        (["what", "is", "it"], None, "what is it"),
        (["what is it"], b"some text\n", "some text\n\nwhat is it"),
        ([], b"only piped\n", "only piped"),
        (["-"], b"forced", "forced"),
        (["-", "and", "words"], b"forced\n\n", "forced\n\nand words"),
        (["q"], "\ufefftext".encode(), "text\n\nq"),
    ],
)
def test_piped_text_comes_before_the_words(
    words: list[str], data: bytes | None, prompt: str
) -> None:
    assert compose(words, data) == (prompt, [])


def test_an_empty_pipe_is_said_and_alone_is_an_error() -> None:
    text, notes = compose(["q"], b"")
    assert text == "q"
    assert "stdin was empty" in notes[0]
    with pytest.raises(InvalidInput, match="stdin was empty"):
        compose([], b" \n")
    with pytest.raises(UsageError, match="nothing to ask"):
        compose([], None)


def test_no_stdin_leaves_the_pipe_alone() -> None:
    assert compose(["q"], b"piped", no_stdin=True) == ("q", [])
    with pytest.raises(UsageError):
        compose(["-"], b"piped", no_stdin=True)


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidInput, match=r"stdin is not UTF-8 text \(byte 0xff at 3\)"):
        compose(["q"], b"abc\xff")


def test_a_silent_pipe_is_noted_and_then_refused() -> None:
    read, write = os.pipe()
    notes: list[str] = []
    try:
        for timeout_s, noted in ((0.1, 0), (2.1, 1)):
            with pytest.raises(InvalidInput, match="--no-stdin") as caught:
                stdin.compose(["q"], note=notes.append, timeout_s=timeout_s, descriptor=read)
            assert caught.value.exit_code == 42
            assert f"silent for {timeout_s:g} s" in caught.value.message
            assert len(notes) == noted  # said after 2 s, where it waits for so long
    finally:
        os.close(read)
        os.close(write)
    assert "waiting for text on stdin" in notes[0]


def test_a_slow_pipe_that_speaks_in_time_is_read_whole(run: Run, daemon: FakeDaemon) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "printf a; sleep 0.6; printf b"], stdout=subprocess.PIPE
    ) as slow:
        done = run("ask", "q", "--stdin-timeout", "5", stdin=slow.stdout)
    assert done.code == 0
    assert asked(daemon)["text"] == "ab\n\nq"


def test_an_inherited_terminal_never_blocks(home: Path, daemon: FakeDaemon) -> None:
    primary, secondary = os.openpty()
    try:
        done = subprocess.run(
            radchat("--daemon", str(daemon.path), "ask", "hi"),
            env=clean_env(home, RADCHAT_MODEL="tiny"),
            stdin=secondary,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(primary)
        os.close(secondary)
    assert (done.returncode, done.stdout) == (0, b"Hello world\n")


def test_a_file_is_sent_by_name_and_a_missing_one_named(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Report\n")
    assert load(str(path)) == {"name": "report.md", "text": "# Report\n"}
    with pytest.raises(InvalidInput, match="No such file"):
        load(str(tmp_path / "none"))


# --- what is sent ---


def test_a_one_shot_makes_a_session_for_this_terminal_only(run: Run, daemon: FakeDaemon) -> None:
    assert run("ask", "hi").code == 0
    args = asked(daemon)
    assert args["new_session"] is True
    assert args["only_terminal"] is True
    assert (args["kind"], args["text"], args["n"], args["model"]) == ("turn", "hi", 1, "tiny")
    assert set(args["where"]) == {"terminal", "folder"}


@pytest.mark.parametrize(
    ("flags", "session", "more"),
    [
        (("-c",), None, {}),
        (("-r", "report"), "report", {}),
        (("--at", "d9f1"), None, {"at": "d9f1"}),
        (("--session", "other"), "other", {}),
        (("-r", "report", "--at", "4"), "report", {"at": "4"}),
    ],
)
def test_flags_that_go_on_make_no_session(
    run: Run, daemon: FakeDaemon, flags: tuple[str, ...], session: str | None, more: dict[str, str]
) -> None:
    assert run("ask", *flags, "go on").code == 0
    args = asked(daemon)
    assert "new_session" not in args
    assert args["session"] == session
    assert {key: args[key] for key in more} == more


def test_generation_flags_reach_the_request(run: Run, daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    flags = "--temp 0 --top-p 0.9 --top-k 5 --min-p 0.1 --seed 3 --max-tokens 9 --ctx 512 --exact"
    more = ["-o", "presence_penalty=0.5", "-s", "Be brief.", "--think", "high", "--stop", "END"]
    done = run("ask", *flags.split(), *more, "-f", str(tmp_path / "a.txt"), "--ephemeral", "hi")
    assert done.code == 0, done.err
    args = asked(daemon)
    assert args["options"] == {
        "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "max_tokens": 9,
        "num_ctx": 512, "presence_penalty": 0.5, "stop": ["END"],
    }  # fmt: skip
    assert args["files"] == [{"name": "a.txt", "text": "A"}]
    assert (args["system"], args["think"], args["exact"]) == ("Be brief.", "high", True)
    assert args["ephemeral"] is True


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-o", "temprature=1"), "did you mean temperature?"),
        (("-o", "seed=x"), "want a number"),
        (("--dtype", "fp64"), "--dtype fp64"),
        (("--temp", "hot"), "--temp"),
        (("-r",), "sessions ls"),
        (("--new-session", "a", "-c"), "leave out -c"),
    ],
)
def test_a_wrong_flag_is_a_usage_error(run: Run, flags: tuple[str, ...], words: str) -> None:
    done = run("ask", "hi there", *flags)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""


def test_broken_letters_on_the_command_line_are_repaired(run: Run, daemon: FakeDaemon) -> None:
    done = run("ask", os.fsdecode(b"a\xffb"))
    assert done.code == 0, done.err
    assert asked(daemon)["text"] == "a\ufffdb"


# --- what comes out ---


def test_stdout_holds_the_answer_alone_and_no_escape(run: Run, daemon: FakeDaemon) -> None:
    thoughts = [Event("reasoning", {"choice": 0, "text": "hm\x1b[2J"})]
    notice = [Event("notice", {"text": "this recomputes 8,371 tokens, about 4 s", "code": "x"})]
    daemon.script["generate"] = lambda args: answer_events(
        ["a\x1b", "[31m", "[/INST]"], before=[*notice, *thoughts]
    )
    done = run("ask", "hi")
    assert done.out == "a\\x1b[31m[/INST]\n"
    assert "this recomputes 8,371 tokens" in done.err
    assert "hm" not in done.err  # reasoning is for a terminal
    assert "\x1b" not in done.err


@pytest.mark.parametrize("flags", [(), ("-c",), ("--at", "d9f1"), ("--no-stream",)], ids=str)
def test_where_one_is_now_is_said_though_the_footer_is_for_terminals(
    run: Run, flags: tuple[str, ...]
) -> None:
    done = run("ask", *flags, "hi")
    assert done.err == "report-q3 · main@d9f1\n"
    assert done.out == "Hello world\n"
    assert run("ask", *flags, "hi", "--json").err == ""


def test_a_notice_about_thinking_is_shown(run: Run, daemon: FakeDaemon) -> None:
    notice = Event("notice", {"text": "tiny has no reasoning to switch", "code": "think"})
    daemon.script["generate"] = lambda args: answer_events(["a"], before=[notice])
    assert "tiny has no reasoning to switch\n" in run("ask", "hi", "--think", "high").err


def test_quiet_leaves_stderr_empty(run: Run, daemon: FakeDaemon) -> None:
    thoughts = [Event("reasoning", {"choice": 0, "text": "hm"})]
    daemon.script["generate"] = lambda args: answer_events(["a"], before=thoughts)
    assert run("ask", "-q", "hi").err == ""


def test_json_is_one_document_in_the_shape_of_the_manual(run: Run) -> None:
    for flags in (("--json",), ("--output-format", "json")):
        done = run("ask", "hi", *flags)
        answer = json.loads(done.out)
        assert done.out.count("\n") == 1
        assert {
            "session", "message", "parent", "branch", "model", "dtype", "text", "finish_reason",
            "usage", "cache", "timing",
        } <= set(answer)  # fmt: skip
        assert answer["text"] == "Hello world"


def test_stream_json_is_an_object_a_line_and_ends_with_result(run: Run) -> None:
    lines = [
        json.loads(line)
        for line in run("ask", "hi", "--output-format", "stream-json").out.splitlines()
    ]
    assert [next(iter(line)) for line in lines] == ["type"] * len(lines)
    kinds = [line["type"] for line in lines]
    assert kinds == ["init", "text_delta", "text_delta", "text_delta", "message", "result"]
    assert lines[-1]["is_error"] is False


def test_no_stream_prints_the_same_words(run: Run) -> None:
    assert run("ask", "hi", "--no-stream").out == run("ask", "hi").out == "Hello world\n"


CODE = "Here:\n```py\nprint(1)\x1b\n```\nor\n```\nother\n```\n"


def test_extract_prints_only_the_first_code_block(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: answer_events([CODE[:7], CODE[7:]])
    done = run("ask", "hi", "-x")
    assert (done.code, done.out) == (0, "print(1)\\x1b\n")
    assert "no code block" not in done.err
    document = json.loads(run("ask", "hi", "-x", "--json").out)
    assert (document["extracted"], document["text"]) == ("print(1)\x1b", CODE)
    lines = run("ask", "hi", "-x", "--output-format", "stream-json").out.splitlines()
    assert json.loads(lines[-1])["extracted"] == "print(1)\x1b"


def test_extract_without_a_code_block_is_the_whole_answer_and_a_note(run: Run) -> None:
    done = run("ask", "hi", "--extract")
    assert (done.code, done.out) == (0, "Hello world\n")
    assert "no code block in the answer" in done.err
    assert json.loads(run("ask", "hi", "-x", "--json").out)["extracted"] is None
    assert "extracted" not in json.loads(run("ask", "hi", "--json").out)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("a\n~~~\nx\n\ny\n~~~", "x\n\ny"),
        ("````\n```\nx\n```\n`````\n", "```\nx\n```"),
        ("1. so:\n   ```sh\n   a\n     b\n   ```\n", "a\n  b"),
        ("```\r\nx\r\n```\r\n", "x\r"),
        ("```\n```", ""),
        ("```x``` is code\n```\ny\n```", "y"),
        ("```\ncut off", None),
        ("no `code`", None),
    ],
)
def test_a_code_block_is_what_stands_between_its_fences(text: str, block: str | None) -> None:
    assert first_block(text) == block


def overflow() -> ContextOverflow:
    return ContextOverflow("9,000 tokens do not fit the context of 8,192", tokens=9000, limit=8192)


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_is_json_too_and_keeps_its_exit_code(
    run: Run, daemon: FakeDaemon, late: bool
) -> None:
    if late:
        daemon.script["generate"] = lambda args: [Event("error", overflow().to_json())]
    else:
        daemon.script["generate"] = overflow()
    done = run("ask", "hi", "--json")
    assert done.code == 56
    error = json.loads(done.out)["error"]
    assert (error["code"], error["tokens"]) == ("context_length_exceeded", 9000)
    done = run("ask", "hi", "--output-format", "stream-json")
    assert done.code == 56
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["type"] for line in lines] == ["error", "result"]
    done = run("ask", "hi")
    assert (done.code, done.out) == (56, "")
    assert done.err == "error: 9,000 tokens do not fit the context of 8,192\n"


def test_an_answer_cut_at_its_length_says_so(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: answer_events(["a"], finish_reason="length")
    assert "cut off after 62 tokens" in run("ask", "hi").err


# --- ends ---


def endless(args: dict[str, Any]) -> Any:
    def words() -> Any:
        for i in range(2000):
            time.sleep(0.01)
            yield f"word{i}\n"

    return answer_events(words())


def test_a_reader_that_leaves_ends_it_quietly_and_cancels(home: Path, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = endless
    process = subprocess.Popen(
        radchat("--daemon", str(daemon.path), "ask", "hi"),
        env=clean_env(home, RADCHAT_MODEL="tiny"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"word0\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(10) == 0
    assert daemon.noticed_cancel.wait(60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_and_is_the_exit_code(
    home: Path, daemon: FakeDaemon, number: signal.Signals, code: int
) -> None:
    daemon.script["generate"] = endless
    process = subprocess.Popen(
        radchat("--daemon", str(daemon.path), "ask", "hi"),
        env=clean_env(home, RADCHAT_MODEL="tiny"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"word0\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert out == b"" or out.endswith(b"\n")
    assert daemon.noticed_cancel.wait(60)


def interrupted(
    home: Path, daemon: FakeDaemon, *args: str, heard: bool, number: signal.Signals = signal.SIGINT
) -> tuple[int, list[dict[str, Any]], str]:
    """What `ask` ends with after a signal: its code, the documents of stdout, stderr's words."""
    is_over = threading.Event()

    def events(_args: dict[str, Any]) -> Iterator[Event]:
        init, _start, word, *_rest = answer_events(["word"])
        yield from (init, word) if heard else (init,)
        yield Event("notice", {"text": "come so far"})
        is_over.wait(60)

    daemon.script["generate"] = events
    process = subprocess.Popen(
        radchat("--daemon", str(daemon.path), "ask", "hi", *args),
        env=clean_env(home, RADCHAT_MODEL="tiny"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    told = process.stdout if "stream-json" in args else process.stderr
    assert told is not None
    while "come so far" not in told.readline():
        pass
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    is_over.set()
    return (
        process.returncode,
        [json.loads(line) for line in out.splitlines()],
        " ".join(err.split()),
    )


BEGUN = {
    "session": long("e7f2"),
    "branch": "main",
    "user": long("c2aa"),
    "messages": [long("d9f1")],
}


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
def test_ctrl_c_under_json_is_one_document_and_says_what_is_kept(
    home: Path, daemon: FakeDaemon, heard: bool
) -> None:
    code, documents, err = interrupted(home, daemon, "--json", heard=heard)
    kept = (
        "cancelled: what came so far is kept in report-q3 · main@d9f1; `radchat continue` goes on"
    )
    if not heard:
        kept = "cancelled before an answer: the question is kept in report-q3 · main@c2aa; "
        kept += "`radchat retry` answers it"
    error = {"code": "interrupted", "message": kept, "exit_code": 130, "begun": BEGUN}
    assert (code, documents, err) == (130, [{"error": error}], kept)


def test_every_form_of_json_ends_as_a_failure_does_also_by_a_signal(
    home: Path, daemon: FakeDaemon
) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        form = ("--output-format", "stream-json")
        ended, lines, _ = interrupted(home, daemon, *form, heard=True, number=number)
        error, result = lines[-2:]
        assert (ended, error["type"], error["begun"]) == (code, "error", BEGUN)
        assert (result["type"], result["is_error"]) == ("result", True)
        assert result["error"]["exit_code"] == code
    ended, documents, _ = interrupted(home, daemon, "--json", heard=True, number=signal.SIGTERM)
    assert (ended, [each["error"]["code"] for each in documents]) == (143, ["terminated"])
