"""radchat as it is typed: in a real bash and a real zsh, in terminals and in pipes.

What a shell does to `~`, `-`, `#`, `!`, `:` and quotes; whose current session is whose; and that
radchat leaves a shell's job control alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home
from tests.e2e.ptys import Window, env_of, need
from tests.waiting import PATIENCE, wait_until

FLAGS = " ".join(EXACT)
SAID = """it's $HOME, `id` and $(id) "so" \\ !! #1 ~ * ? ; | & > -n :x"""


SLOW_ZSH = ["bash", pytest.param("zsh", marks=pytest.mark.slow)]


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return str(request.param)


@pytest.fixture
def opened(shared: Home) -> Iterator[Callable[..., Window]]:
    """`opened("bash")`: a new terminal window; all are closed in the end."""
    windows: list[Window] = []

    def open_(*args: Any, **options: Any) -> Window:
        windows.append(Window(shared, *args, **options))
        return windows[-1]

    yield open_
    for window in windows:
        window.child.close(force=True)


def current(window: Window) -> dict[str, Any]:
    return dict(json.loads(window.run("radchat sessions show --json").splitlines()[-1]))


def piped(home: Home, shell: str, script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A script given to a shell as a file, without any terminal."""
    return subprocess.run(
        [need(shell), *(("--norc", "--noprofile") if shell == "bash" else ("-f",)), "-c", script],
        env=env_of(home),
        cwd=home.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


REFS = """
set -e
radchat ask 'turn one' FLAGS --new-session NAME >/dev/null 2>&1
for turn in two three; do radchat ask -c "turn $turn" FLAGS >/dev/null 2>&1; done
radchat branch side HEAD~1
for ref in HEAD~2 '~2' 3 '#3' \\#2 main NAME:side NAME:HEAD~1 NAME:#2; do
    printf '%s=' "$ref"; radchat log "$ref" --json | grep -o '"role"' | wc -l | tr -d ' '
done
radchat switch side; radchat switch -
radchat fork - -n again
"""
LENGTHS = {
    "HEAD~2": 2, "~2": 2, "3": 5, "#3": 5, "#2": 3, "main": 6, "NAME:side": 4, "NAME:HEAD~1": 4,
    "NAME:#2": 3,
}  # fmt: skip


def test_every_ref_survives_the_shell_as_the_manual_writes_it(shared: Home, shell: str) -> None:
    name = f"refs-{shell}"
    script = REFS.replace("FLAGS", FLAGS).replace("NAME", name)
    done = piped(shared, shell, script)
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=") for line in done.stdout.splitlines())
    assert found == {k.replace("NAME", name): str(v) for k, v in LENGTHS.items()}
    moved = [line for line in done.stderr.splitlines() if line.startswith(f"{name} · ")]
    assert [line.split(" · ")[1].split("@")[0] for line in moved] == ["side", "main", "again"]


@pytest.mark.parametrize("shell", SLOW_ZSH, indirect=True)
def test_unquoted_as_well_where_the_shell_leaves_it_alone(shared: Home, shell: str) -> None:
    """HEAD~1, NAME:REF and - need no quotes; zsh with extended globbing is told to quote."""
    name = f"bare-{shell}"
    script = f"""
        radchat ask one {FLAGS} --new-session {name} >/dev/null 2>&1
        radchat ask -c two {FLAGS} >/dev/null 2>&1
        radchat log HEAD~1 -r && radchat log {name}:HEAD~1 -r && radchat log {name}:1 -r
    """
    done = piped(shared, shell, script)
    assert done.returncode == 42, done.stderr  # of the last: a question has no answer yet
    one, again = done.stdout.splitlines()
    assert one == again
    if shell == "zsh":
        quoted = piped(shared, shell, f"setopt extendedglob; radchat log '{name}:HEAD~1' -r")
        assert quoted.stdout == f"{one}\n"


LISTS = (
    "tree", "tree --show-cache --lru", "log", "sessions ls", "sessions show", "branch -l",
    "cache stats", "cache ls", "cache tree", "cache top", "cache why", "models ls", "models ps",
    "daemon status", "daemon logs", "doctor", "config list", "completion bash", "--help",
)  # fmt: skip


def test_every_list_is_plain_in_a_pipe_and_ends_quietly_with_its_reader(shared: Home) -> None:
    """TM-05, TM-06: `radchat ... | head -1`, with a real daemon and words that would colour."""
    script = f"""
        radchat ask $'red \\e[31m and bell \\a' {FLAGS} </dev/null >/dev/null 2>&1
        while read -r list; do
            radchat $list </dev/null 2>err | head -n 1 >out
            code=${{PIPESTATUS[0]}}
            echo "$code|$(wc -c <err)|$(head -c 1 out | wc -c)|$list"
        done
    """
    done = subprocess.run(
        [need("bash"), "--norc", "--noprofile", "-c", script],
        env=env_of(shared),
        cwd=shared.root,
        input="\n".join(LISTS[::2]) + "\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert [row[3] for row in rows] == list(LISTS[::2])
    for code, noise, data, line in rows:
        assert (code, noise, data) == ("0", "0", "1"), line
    whole = piped(shared, "bash", "; ".join(f"radchat {line}" for line in LISTS))
    assert whole.returncode == 0, whole.stderr
    assert "red \\x1b[31m and bell \\x07" in whole.stdout
    assert not {c for c in whole.stdout if ord(c) < 32 and c not in "\n\t"}


def test_what_is_quoted_arrives_letter_for_letter(shared: Home, shell: str) -> None:
    """Also from a pipe, and in another session's name."""
    said = SAID.replace("'", "'\\''")
    script = f"""
        radchat ask -q '{said}' {FLAGS} >/dev/null
        printf '%s' '{said}' | radchat ask -c -q {FLAGS} >/dev/null
        printf 'a file' | radchat ask -c -q - 'and words' {FLAGS} >/dev/null
        radchat log --json
    """
    done = piped(shared, shell, script, start_new_session=True)
    assert done.returncode == 0, done.stderr
    asked = [m["text"] for m in json.loads(done.stdout)["messages"] if m["role"] == "user"]
    assert asked == [SAID, SAID, "a file\n\nand words"]


@pytest.mark.parametrize("shell", SLOW_ZSH, indirect=True)
def test_two_terminals_have_a_session_each_and_a_new_one_begins_with_the_folders(
    shared: Home, opened: Callable[..., Window], shell: str
) -> None:
    here, there = shared.root / f"here-{shell}", shared.root / f"there-{shell}"
    one, two = opened(shell, here), opened(shell, here)
    one.run(f"radchat ask 'in one' {FLAGS}")
    two.run(f"radchat ask 'in two' {FLAGS}")
    mine, yours = current(one)["id"], current(two)["id"]
    assert mine != yours
    one.run(f"radchat ask -c 'more in one' {FLAGS}")
    assert current(two)["id"] == yours
    # one went on in its session: that is the folder's now; a one-shot ask's never was
    fresh = opened(shell, here)
    assert current(fresh)["id"] == mine
    fresh.run(f"radchat ask 'one shot' {FLAGS}")
    assert current(fresh)["id"] not in (mine, yours)
    assert current(opened(shell, here))["id"] == mine
    # elsewhere: what was used last at all
    two.run(f"cd {here} && radchat switch HEAD >/dev/null")
    assert current(opened(shell, there))["id"] == yours
    # and what is named goes before all of it, the option first
    assert one.run(f"RADCHAT_SESSION={yours} radchat sessions show --json").count(yours)
    named = one.run(f"RADCHAT_SESSION={yours} radchat sessions show --json --session {mine}")
    assert json.loads(named.splitlines()[-1])["id"] == mine
    assert current(one)["id"] == mine


def test_panes_of_tmux_are_terminals_of_their_own(
    shared: Home, opened: Callable[..., Window]
) -> None:
    window = opened("bash")
    for pane in ("%11", "%12"):
        window.run(f"export TMUX_PANE={pane}; radchat ask 'in {pane}' {FLAGS}")
    sessions = []
    for pane in ("%11", "%12", "%11"):
        window.run(f"export TMUX_PANE={pane}")
        sessions.append(current(window)["id"])
    assert sessions[0] == sessions[2] != sessions[1]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_two_real_panes_keep_two_sessions(shared: Home) -> None:
    def tmux(*words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(shared.root / "t"), "-f", "/dev/null", *words],
            env=env_of(shared, PS1="> ", HOME=str(shared.root)),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    out = shared.root / "panes"
    out.mkdir()
    shell = f"{need('bash')} --noprofile --norc"
    panes = [tmux("new-session", "-d", "-P", "-F", "#{pane_id}", shell).strip()]
    try:
        panes.append(tmux("split-window", "-P", "-F", "#{pane_id}", shell).strip())
        for number, pane in enumerate(panes):
            line = f"radchat ask 'in pane {number}' {FLAGS}; touch {out}/{number}.asked"
            tmux("send-keys", "-t", pane, line, "Enter")
        wait_until(lambda: all((out / f"{n}.asked").exists() for n in (0, 1)))
        for number, pane in enumerate(panes):
            line = f"radchat log --json > {out}/{number}; touch {out}/{number}.shown"
            tmux("send-keys", "-t", pane, line, "Enter")
        wait_until(lambda: all((out / f"{n}.shown").exists() for n in (0, 1)))
    finally:
        tmux("kill-server")
    for number in (0, 1):
        log = json.loads((out / str(number)).read_text())
        assert log["messages"][0]["text"] == f"in pane {number}"


@pytest.mark.parametrize("shell", SLOW_ZSH, indirect=True)
def test_a_job_is_stopped_resumed_and_interrupted_as_any_other(
    shared: Home, opened: Callable[..., Window], shell: str
) -> None:
    window = opened(shell)
    window.run(f"radchat ask hello {FLAGS}")
    before = window.run("stty -a")
    long = f"radchat ask 'say much' {FLAGS} --max-tokens 3500"
    window.type(f"{long}\r")
    wait_until(lambda: shared.status()["running"] == 1)
    window.type("\x1a")  # Ctrl+Z
    window.wait_for(lambda t: "topped" in t.text or "suspended" in t.text, PATIENCE)
    assert "radchat ask" in window.run("jobs")
    shown = len(window.raw)
    window.type("fg\r")  # the shell names what it goes on with, and lets it
    window.wait_for(lambda t: b"radchat ask" in t.raw[shown:], PATIENCE)
    window.interrupt()
    assert "interrupted=130" in window.run("echo interrupted=$?")
    wait_until(lambda: shared.status()["running"] == 0)
    after = window.run("stty -a")
    assert after[after.index("speed") :] == before[before.index("speed") :]
    # in the background, with the shell waiting for it
    window.run(f"radchat ask 'more' {FLAGS} > out.txt 2> err.txt & wait $!")
    assert (shared.root / "out.txt").read_text().strip()


def test_the_daemon_is_no_job_of_the_shell_that_started_it(homes: Homes) -> None:
    """Ctrl+C at the prompt, and the window closed: it lives, and is not in the way."""
    home = homes()
    with Window(home) as window:
        window.run(f"radchat ask hello {FLAGS}")
        assert "radchat" not in window.run("jobs").replace("jobs", "", 1)
        pid = home.pid
        assert os.getsid(pid) == os.getpgid(pid) != os.getsid(window.child.pid)
        window.interrupt()
        window.run("true")
    window.child.close(force=True)
    time.sleep(0.2)  # a SIGHUP would have come
    os.kill(pid, 0)
    assert home.status()["pid"] == pid


def test_two_open_chats_and_a_shell_each_stand_where_they_went(
    shared: Home, opened: Callable[..., Window]
) -> None:
    """A `switch` from a shell moves the stored HEAD, never that of an open chat."""
    shell, one, two = opened(), opened(), opened()
    shell.run(f"radchat ask 'turn one' {FLAGS}")
    shell.run(f"radchat ask -c 'turn two' {FLAGS}")
    name = current(shell)["name"]
    shell.run("radchat branch early HEAD~1")
    for chat in (one, two):
        chat.type(f"radchat chat -r {name} {FLAGS}\r")
        chat.wait_for(at_prompt(">", "turn two"), PATIENCE)
    two.type("/switch early\r")
    two.wait_for(at_prompt("early>"), PATIENCE)
    moved = shell.run("radchat switch HEAD~1 && radchat switch main")
    assert f"{name} · main@" in moved
    one.type("/show\r")
    one.wait_for(at_prompt(">", "at          main@"), PATIENCE)
    two.type("/show\r")
    two.wait_for(at_prompt("early>", "at          early@"), PATIENCE)
    shell.run("radchat switch early")
    one.type("from one\r")
    one.wait_for(at_prompt(">", "main@", 2), PATIENCE)
    assert current(shell)["branch"] == "early"  # nor does a chat's turn move the shell's
    for chat in (one, two):
        chat.type("/bye\r")
        chat.wait_for("Continue: radchat chat -r", PATIENCE)


def at_prompt(prompt: str, text: str = "", times: int = 1) -> Callable[[Terminal], bool]:
    """The chat waits for words, and has shown this so often."""

    def is_there(terminal: Terminal) -> bool:
        shown = terminal.everything
        rows = [row for row in shown.split("\n") if row]
        if rows and " · " in rows[-1]:  # the status bar, once it is drawn
            rows.pop()
        return rows[-1:] == [prompt] and shown.count(text) >= times

    return is_there
