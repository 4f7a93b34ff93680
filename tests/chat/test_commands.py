"""Every command: its streams, exit codes, JSON, and what it asks of the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radchat import errors
from tests.chat.conftest import SESSION, Run, Unread
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.chat.trees import long
from tests.e2e.harness import clean_env, radchat

READING = (
    ("tree",),
    ("tree", "--show-cache"),
    ("log",),
    ("sessions",),
    ("sessions", "show"),
    ("sessions", "search", "words"),
    ("branch",),
    ("cache", "stats"),
    ("cache", "ls", "--lru"),
    ("cache", "tree"),
    ("cache", "top"),
    ("cache", "why", "d9f1"),
    ("config", "list"),
)
MOVING = (("undo",), ("redo",), ("switch", "main"), ("fork", "d9f1"), ("fork",))
CHANGING = (
    ("branch", "idea"),
    ("branch", "-m", "a", "b"),
    ("branch", "-d", "a"),
    ("branch", "--label", "d9f1", "good"),
    ("sessions", "rename", "other"),
    ("sessions", "rm", "x", "-y"),
    ("prune", "-y"),
    ("sessions", "import", "a.json"),
    ("sessions", "verify"),
    ("cache", "evict", "d9f1"),
    ("cache", "clear", "-y"),
    ("cache", "clear", "--all", "-y"),
    ("cache", "save"),
    ("cache", "load", "d9f1"),
    ("cache", "warm"),
    ("cache", "verify"),
    ("cache", "pin", "d9f1", "--for", "2h"),
    ("cache", "unpin", "d9f1"),
    ("retry",),
    ("edit", "1", "new words"),
    ("continue",),
)
QUIET_COLOUR: tuple[dict[str, str], ...] = (
    {},
    {"NO_COLOR": "1"},
    {"TERM": "dumb"},
    {"NO_COLOR": ""},
)


@pytest.mark.parametrize("command", [*READING, *MOVING, *CHANGING], ids=" ".join)
def test_piped_output_holds_no_escape_and_json_is_one_document(
    run: Run, command: tuple[str, ...]
) -> None:
    done = run(*command)
    assert done.code == 0, done.err
    assert not any(byte < 32 and byte not in b"\n\t" for byte in done.raw)
    assert b"\xc2\x9b" not in done.raw
    assert "\x1b" not in done.err
    if command in READING:
        assert done.out
    document = run(*command, "--json")
    assert document.code == 0, document.err
    json.loads(document.out)
    assert document.out.count("\n") == 1


@pytest.mark.parametrize("env", QUIET_COLOUR, ids=str)
def test_a_pipe_is_never_coloured_unless_told_to(run: Run, env: dict[str, str]) -> None:
    assert "\x1b" not in run("tree", "--show-cache", **env).out


def test_colour_can_be_forced_and_the_flag_wins(run: Run) -> None:
    assert "\x1b[" in run("tree", FORCE_COLOR="1").out
    assert "\x1b[" in run("tree", CLICOLOR_FORCE="1").out
    assert "\x1b[" in run("tree", "--color", "always", NO_COLOR="1").out
    assert "\x1b[" not in run("tree", "--color", "never", FORCE_COLOR="1").out
    assert "\x1b[" not in run("tree", FORCE_COLOR="1", NO_COLOR="1").out


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_head_minus_one_ends_it_quietly(unread: Unread, command: tuple[str, ...]) -> None:
    assert unread(*command) == (0, b"")


def test_a_full_disk_behind_stdout_is_an_error_in_one_line(home: Path, daemon: FakeDaemon) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            radchat("--daemon", str(daemon.path), "tree"),
            env=clean_env(home),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"cannot write the output" in done.stderr


CODES = [
    (errors.RadchatError("it broke"), 1),
    (errors.UsageError("say it so"), 2),
    (errors.InvalidInput("bad text"), 42),
    (errors.ConfigInvalid("bad setting"), 52),
    (errors.ContextOverflow("too long"), 56),
    (errors.NotFound("no session x"), 66),
    (errors.Unreachable("no daemon"), 69),
    (errors.Busy("try again"), 75),
    (errors.ModelBroken("weights"), 1),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=[e.code for e, _ in CODES])
def test_every_error_has_its_exit_code_one_line_and_one_document(
    run: Run, daemon: FakeDaemon, error: errors.RadchatError, code: int
) -> None:
    daemon.script["log"] = error
    done = run("log")
    assert (done.code, done.out, done.err) == (code, "", f"error: {error.message}\n")
    done = run("log", "--json")
    assert (done.code, done.err) == (code, "")
    assert json.loads(done.out)["error"]["code"] == error.code


def test_an_error_text_cannot_drive_the_terminal(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["log"] = errors.NotFound("no branch 'x\x1b[2J'")
    assert run("log").err == "error: no branch 'x\\x1b[2J'\n"


def test_usage_errors_of_every_kind_are_two_and_json_when_asked(run: Run) -> None:
    for line in (
        ("tree", "--bogus"),
        ("tree", "--filter", "x"),
        ("tree", "--depth", "x"),
        ("switch",),
        ("nonsense",),
        ("--color", "pink", "tree"),
        ("branch", "a", "-l"),
        ("cache", "evict"),
        ("cache", "bogus"),
        ("sessions", "rm", "x"),  # nobody to ask
        ("undo", "0"),
        ("log", "-n", "0"),
        ("tree", "--depth", "0"),
    ):
        done = run(*line)
        assert (done.code, done.out) == (2, ""), line
        assert done.err.startswith("error: "), line
        assert done.err.count("\n") == 1, line
        document = run(*line, "--json")
        assert document.code == 2, line
        assert json.loads(document.out)["error"]["exit_code"] == 2, line


def test_a_bad_setting_is_fifty_two_and_named(run: Run) -> None:
    done = run("ask", "hi there", RADCHAT_KEEP_ALIVE="soon")
    assert done.code == 52
    assert "keep_alive" in done.err


def test_no_daemon_at_the_given_socket_is_sixty_nine(home: Path) -> None:
    done = subprocess.run(
        radchat("--daemon", str(home / "none.sock"), "tree", "--json"),
        env=clean_env(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 69
    assert json.loads(done.stdout)["error"]["code"] == "unreachable"


def test_no_model_and_nobody_to_ask_is_sixty_six_with_the_command(home: Path) -> None:
    done = subprocess.run(
        radchat("ask", "hi there"),
        env=clean_env(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 66
    assert b"radchat models pull " in done.stderr
    assert not (home / "data" / "daemon.lock").exists()  # no daemon was started for it


# --- what is asked, what is said ---


def test_a_command_that_moves_says_where_one_is(run: Run) -> None:
    for command in (("undo", "2"), ("redo",), ("switch", "-"), ("fork", "4", "-n", "price")):
        done = run(*command)
        assert "report-q3 · price@d9f1\n" in done.err, command
        assert done.out == "", command


@pytest.mark.parametrize(
    ("line", "method", "args"),
    [
        ("undo 2", "undo", {"n": 2}),
        ("switch -", "switch", {"ref": "-"}),
        ("checkout main", "switch", {"ref": "main"}),
        ("fork 4 -n price", "fork", {"ref": "4", "name": "price"}),
        ("fork --new-session", "fork", {"ref": None, "new_session": True}),
        ("fork --new-session side 4", "fork", {"ref": "4", "new_session": "side"}),
        ("tree", "tree", {"ref": None, "show_cache": False}),
        ("tree main --lru", "tree", {"ref": "main", "show_cache": True, "lru": True}),
        ("tree --session x", "tree", {"session": "x"}),
        ("log -n 3 HEAD~2", "log", {"ref": "HEAD~2", "n": 3}),
        ("branch idea d9f1", "branch.create", {"name": "idea", "ref": "d9f1"}),
        ("branch -m a b", "branch.rename", {"old": "a", "new": "b"}),
        ("sessions rename x y", "sessions.rename", {"session": "x", "name": "y"}),
        ("cache evict --tokens 64", "cache.evict", {"tokens": 64}),
        ("retry -N 3", "generate", {"kind": "retry", "n": 3}),
        ("edit 2 other words", "generate", {"kind": "edit", "ref": "2", "text": "other words"}),
        ("continue", "generate", {"kind": "continue"}),
    ],
)
def test_what_a_command_asks_of_the_daemon(
    run: Run, daemon: FakeDaemon, line: str, method: str, args: dict[str, Any]
) -> None:
    done = run(*line.split())
    assert done.code == 0, done.err
    sent = daemon.asked(method)[-1]
    assert {key: sent[key] for key in args} == args
    assert "folder" in sent["where"]


@pytest.mark.parametrize(
    "line", ["retry", "retry -N 2", "edit 1 other", "continue", "fork d9f1 and-this-one?"]
)
def test_every_answer_says_where_one_is_now_once(run: Run, line: str) -> None:
    assert run(*line.split()).err.count("report-q3 · main@d9f1\n") == 1
    assert run("-q", *line.split()).err == ""


@pytest.mark.parametrize("line", ["retry", "edit 1 other"])
def test_what_moves_a_branch_off_its_tip_says_where_that_was(
    run: Run, daemon: FakeDaemon, line: str
) -> None:
    daemon.script["generate"] = lambda args: answer_events(["x"], message=long("3935"))
    assert run(*line.split()).err == "report-q3 · main@3935 (was d9f1)\n"
    daemon.script["generate"] = lambda args: answer_events(["x"], branch="main-2")
    assert run(*line.split()).err == "report-q3 · main-2@d9f1\n"


STATUS = {"state", "pid", "build", "model", "device", "executor", "executor_why", "kv", "running",
          "waiting"}  # fmt: skip


def test_the_status_of_a_daemon_that_does_not_run_has_all_its_keys(home: Path) -> None:
    done = subprocess.run(
        radchat("daemon", "status", "--json"),
        env=clean_env(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {**dict.fromkeys(STATUS), "state": "stopped"}


def test_the_status_of_a_daemon_that_starts_has_all_its_keys(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["status"] = {"state": "starting", "pid": 7, "build": "b"}
    found = json.loads(run("daemon", "status", "--json").out)
    assert found == {**dict.fromkeys(STATUS), "state": "starting", "pid": 7, "build": "b"}


def test_stats_without_a_model_say_so(run: Run, daemon: FakeDaemon) -> None:
    counts = {"total_tokens": None, "free_tokens": None, "evictable_tokens": 0, "locked_tokens": 0}
    daemon.script["cache.stats"] = {"tiers": {}, **counts, "requests": 0, "hit_rate": None}
    assert run("cache", "stats").out == "nothing is cached: no model is loaded\n"


def test_an_argument_with_a_space_in_it_is_the_prompt_of_a_fork(
    run: Run, daemon: FakeDaemon
) -> None:
    done = run("fork", "d9f1", "what about cost", "-n", "costs")
    assert done.out == "Hello world\n"
    sent = daemon.asked("generate")[-1]
    assert (sent["at"], sent["branch"], sent["text"]) == ("d9f1", "costs", "what about cost")
    run("fork", "what about cost")
    assert daemon.asked("generate")[-1]["at"] == "HEAD"
    assert daemon.asked("fork") == []


def test_fork_with_a_prompt_lists_its_branches_in_json(run: Run) -> None:
    document = json.loads(run("fork", "what about cost", "--json").out)
    assert {"session", "parent", "branches", "usage", "cache"} <= set(document)


def test_a_user_message_as_fork_point_offers_its_text_and_how_to_go_on(run: Run) -> None:
    done = run("fork", "c2aa")
    assert "x\\x1b[31my\\x9bz" in done.err
    assert "go on: radchat chat -c" in done.err


def test_the_log_is_markdown_in_a_pipe_and_its_parts_can_be_taken_out(run: Run) -> None:
    text = run("log").out
    assert text.startswith("## user\n\nsay [bold]\\x1b[1m\n\n## assistant\n\nHere:\n```python")
    assert "(length: the answer was cut off)" in text
    assert run("log", "-r").out == "Here:\n```python\nprint(1)\n```\nand on\n"
    assert run("log", "-x").out == "print(1)\n"


def test_the_tree_in_json_is_the_daemons_answer_unchanged(run: Run, daemon: FakeDaemon) -> None:
    assert json.loads(run("tree", "--json", "--show-cache").out) == daemon.script["tree"]


def test_a_setting_can_be_written_read_and_found_in_its_file(run: Run, home: Path) -> None:
    assert run("config", "set", "keep_alive", "10m").code == 0
    assert run("config", "get", "keep-alive").out == "600\n"
    path = home / "config" / "config.toml"
    assert run("config", "path").out == f"{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert run("config", "set", "keep_alive", "soon").code == 52
    assert run("config", "get", "keep_alife").code == 2
    assert path.read_text() == 'keep_alive = "10m"\n'


# --- without a terminal, chat is one turn ---


@pytest.mark.parametrize("words", [(), ("chat",), ("chat", "-c")])
def test_piped_input_is_the_message_of_a_chat_and_it_ends(
    run: Run, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    done = run(*words, text=b"hi\n", timeout=60)
    assert (done.code, done.out) == (0, "Hello world\n")
    assert done.err == "report-q3 · main@d9f1\n"
    assert daemon.asked("generate")[-1]["text"] == "hi"


@pytest.mark.parametrize(("text", "code"), [(None, 2), (b"", 42)])
def test_no_input_at_all_ends_with_one_line(run: Run, text: bytes | None, code: int) -> None:
    done = run(text=text, timeout=60)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: nothing to ask")


# --- light ---

HEAVY = (
    "torch", "transformers", "triton", "numpy", "pydantic", "fastapi", "starlette", "httpx2", "mcp",
    "rich", "markdown_it", "pygments", "prompt_toolkit", "asyncio", "http.client",
    "llguidance", "jsonschema", "radchat_sessions", "radchat_kernels", "radchat.engine",
)  # fmt: skip
PROBE = (
    "import sys; from radchat.__main__ import main\n"
    "try: main()\n"
    "except SystemExit: pass\n"
    f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
)


@pytest.mark.parametrize(
    "command",
    [("--help",), ("tree",), ("log",), ("sessions", "ls"), ("ask", "hi there"), ("doctor",)],
    ids=" ".join,
)
def test_a_command_imports_nothing_heavy(
    home: Path, daemon: FakeDaemon, command: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "--daemon", str(daemon.path), *command],
        env=clean_env(home, RADCHAT_MODEL="tiny"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.decode().splitlines()[-1] == "[]"


def test_a_short_message_id_in_a_note_is_four_letters(run: Run) -> None:
    assert f"price@{long('d9f1')[:4]}\n" in run("redo").err


# --- what a new user ran into ---


def test_a_node_that_serves_many_messages_names_three(run: Run, daemon: FakeDaemon) -> None:
    node = daemon.script["cache.tree"]["nodes"][0]  # type: ignore[index]
    node["messages"] = [long(f"{i:04x}") for i in range(27)]
    assert "[0000, 0001, 0002, +24]" in run("cache", "tree").out
    node["messages"] = node["messages"][:3]
    assert "[0000, 0001, 0002]" in run("cache", "tree").out


def test_a_session_named_to_switch_is_answered_with_its_branch(
    run: Run, daemon: FakeDaemon
) -> None:
    daemon.script["switch"] = errors.NotFound("no branch report-q3")
    done = run("switch", "report-q3")
    assert done.code == 66
    assert "report-q3 is a session: radchat switch report-q3:main" in done.err
    daemon.script["sessions.show"] = errors.NotFound("no session nope")
    assert "no branch report-q3" in run("switch", "nope").err


def test_a_session_and_a_ref_in_it_are_gone_on_from(run: Run, daemon: FakeDaemon) -> None:
    assert run("ask", "-r", "report-q3:c2aa", "hi").code == 0
    asked = daemon.asked("generate")[-1]
    assert (asked["session"], asked["at"]) == ("report-q3", "c2aa")


def test_a_session_that_is_not_there_is_said_before_anything_is_asked(
    run: Run, daemon: FakeDaemon
) -> None:
    daemon.script["sessions.show"] = errors.NotFound("no session nope")
    done = run("sessions", "rm", "nope")
    assert (done.code, done.err) == (66, "error: no session nope\n")


def test_exact_and_another_dtype_are_refused_with_both_names(run: Run) -> None:
    for dtype in ("int4", "bf16", "auto"):
        done = run("ask", "hi", "--dtype", dtype, "--exact")
        assert done.code == 2
        assert f"--dtype {dtype} and --exact" in done.err
    assert run("ask", "hi", "--dtype", "fp32", "--exact").code == 0


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    done = run("ask", "-f", "/nonexist", "hi")
    assert done.code == 42
    assert "/nonexist" in done.err


def test_verify_that_finds_something_lists_it_and_exits_1(run: Run, daemon: FakeDaemon) -> None:
    problem = {"kind": "digest", "id": long("d9f1"), "session": long("e7f2"), "text": "changed"}
    broken = {"ok": False, "messages": 14, "problems": [problem, {**problem, "id": None}]}
    daemon.script["sessions.verify"] = broken
    done = run("sessions", "verify")
    assert done.code == 1
    assert "digest    e7f20000  d9f10000  changed" in done.out
    assert "2 of this is not as it was" in done.err
    as_json = run("sessions", "verify", "--json")
    assert (as_json.code, json.loads(as_json.out)) == (1, broken)


def test_an_export_goes_to_stdout_or_to_a_file_in_the_format_it_is_named_by(
    run: Run, daemon: FakeDaemon, tmp_path: Path
) -> None:
    daemon.script["sessions.export"] = lambda args: {
        "session": long("e7f2"),
        "name": "report-q3",
        "format": args["format"],
        "messages": 2,
        "text": json.dumps({"form": args["format"]}) + "\n",
    }
    assert json.loads(run("sessions", "export").out) == {"form": "md"}
    assert json.loads(run("sessions", "export", "--json").out) == {"form": "json"}
    whole = json.loads(run("sessions", "export", "--format", "openai", "--json").out)
    assert whole["text"] == '{"form": "openai"}\n'
    target = tmp_path / "out.jsonl"
    done = run("sessions", "export", "report-q3", "-o", str(target), "--at", "d9f1")
    assert (done.out, json.loads(target.read_text())) == ("", {"form": "jsonl"})
    assert "report-q3, 2 messages" in done.err
    assert target.stat().st_mode & 0o777 == 0o600
    told = json.loads(run("sessions", "export", "-o", str(target), "--json").out)
    assert told["file"] == str(target)
    assert run("sessions", "export", "--format", "pdf").code == 2
    assert run("sessions", "export", "--at", "x", "--all").code == 2
    assert run("sessions", "export", "-o", "/nonexist/x.md").code == 42
    last = [args for method, args in daemon.calls if method == "sessions.export"][3]
    assert (last["session"], last["at"]) == ("report-q3", "d9f1")


def test_an_import_sends_paths_and_the_text_of_a_pipe(run: Run, daemon: FakeDaemon) -> None:
    done = run("sessions", "import", "~/a.json", "-", text=b"[]")
    assert done.code == 0
    assert "new ids" in done.err
    assert "left out: " in done.err
    assert "(2)" in done.err
    (call,) = (args for method, args in daemon.calls if method == "sessions.import")
    assert call["files"][1] == {"name": "stdin", "text": "[]"}
    assert Path(call["files"][0]["path"]).is_absolute()
    assert run("sessions", "import").code == 2


def test_prune_asks_about_what_it_then_deletes(run: Run, daemon: FakeDaemon) -> None:
    told = run("prune", "--dry-run")
    assert told.code == 0
    assert told.err.startswith("would delete 2 messages (1 thought), 30 tokens, KV of 20 (4.0 KiB)")
    assert run("prune").code == 2  # nobody to ask
    assert run("prune", "--unlabeled", "-y").code == 0
    calls = [args for method, args in daemon.calls if method == "sessions.prune"]
    assert [args["dry_run"] for args in calls] == [True, True, True, False]
    assert calls[-1]["unlabeled"]
    assert calls[-1]["session"] == long("e7f2")
    assert calls[-1].get("digest") is None


def test_the_names_of_sessions_alone_are_searched_for_with_l(run: Run, daemon: FakeDaemon) -> None:
    daemon.script["sessions.search"] = {
        "sessions": [{"id": long("e7f2"), "name": "report-q3", "matches": 2}],
        "more": True,
    }
    done = run("sessions", "search", "two", "words", "-l", "-n", "1")
    assert done.out == "report-q3\n"
    assert "more than 1" in done.err
    (call,) = (args for method, args in daemon.calls if method == "sessions.search")
    assert call == {"query": "two words", "limit": 1, "only_sessions": True, "session": None}


def test_a_list_of_sessions_is_of_those_begun_and_whole_where_nobody_looks(
    run: Run, daemon: FakeDaemon
) -> None:
    daemon.script["sessions.list"] = {"sessions": [dict(SESSION)], "total": 41}
    run("sessions", "ls")
    assert run("sessions", "ls", "-n", "1", "--folder", ".").err == ""
    first, second = (args for method, args in daemon.calls if method == "sessions.list")
    assert (first["begun"], first["limit"], first["folder"]) == (True, None, None)
    assert second["limit"] == 1
    assert Path(second["folder"]).is_absolute()
    assert run("sessions", "ls", "-n", "1", "--all").code == 2


@pytest.mark.parametrize("command", [("ask",), ("sessions",), ("tree",)])
def test_the_help_of_a_command_names_the_options_of_all(run: Run, command: tuple[str, ...]) -> None:
    assert "Also --json" in run(*command, "--help").out


def test_a_cut_off_answer_is_gone_on_with_by_a_command_one_can_type(
    run: Run, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = lambda args: answer_events(["x"], finish_reason="length")
    assert "cut off after 62 tokens: radchat continue goes on with it" in run("ask", "hi").err


def test_no_command_is_named_that_would_go_on_elsewhere_than_in_an_ephemeral_session(
    run: Run, daemon: FakeDaemon
) -> None:
    daemon.script["generate"] = lambda args: answer_events(["x"], finish_reason="length")
    told = run("ask", "--ephemeral", "hi").err
    assert "cut off after 62 tokens\n" in told
    assert "continue" not in told


@pytest.mark.parametrize(
    "line",
    ["continue -s x", "continue -f FILE", "continue --think high", "retry -s x", "retry -f FILE",
     "fork -m tiny", "fork d9f1 --temp 0", "fork --seed 0", "fork --ephemeral", "fork -o top_k=3"],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused_by_name(
    run: Run, daemon: FakeDaemon, line: str
) -> None:
    words = line.split()
    done = run(*words)
    assert done.code == 2
    option = next(word for word in words if word.startswith("-"))
    assert option in done.err
    assert "has no meaning here" in done.err
    assert daemon.asked("generate") == daemon.asked("fork") == []
