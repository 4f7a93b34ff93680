"""Promise 8: what was said in private is nowhere, neither as text nor as ids.

Every byte of every file of the home is read, with the daemon's log at its most talkative. Each test
first asserts that the same search does find words that are kept.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radchat.engine.tokenizer import Tokenizer
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.waiting import PATIENCE, wait_until

SECRET = "quincemarmalade"
OPEN = "walnutbread"
Type = Callable[..., None]


@pytest.fixture
def home(homes: Homes) -> Home:
    return homes(RADCHAT_LOG_LEVEL="debug")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.child.close(force=True)


def forms(home: Home, word: str) -> dict[str, bytes]:
    """A word as it might lie on a disk."""
    ids = list(Tokenizer(next(home.places.models.glob("tiny-*"))).encode_text(word))
    assert len(ids) > 5
    return {
        "text": word.encode(),
        "capitals": word.upper().encode(),
        "utf-16": word.encode("utf-16-le"),
        "ids of 4 bytes": b"".join(number.to_bytes(4, "little") for number in ids),
        "ids of 2 bytes": b"".join(number.to_bytes(2, "little") for number in ids),
        "ids in JSON": ", ".join(map(str, ids)).encode(),
        "ids in short JSON": ",".join(map(str, ids)).encode(),
    }


def traces(home: Home, word: str) -> set[tuple[str, str]]:
    """Where in the home a word is, and as what; names of files count."""
    found = set()
    root = home.root / "h"
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if word in name:
            found.add((name, "its name"))
        if path.is_file():
            data = path.read_bytes()
            found |= {(name, form) for form, needle in forms(home, word).items() if needle in data}
    return found


def modes(home: Home) -> dict[str, str]:
    """Files and folders of the home that others could see into."""
    root = home.root / "h"
    return {
        str(path.relative_to(root)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in [root, *root.rglob("*")]
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and "models" not in path.parts
    }


def open_chat(shell: Shell, made: list[Terminal], *args: str, umask: str = "022") -> Terminal:
    env = {**shell.env, "TERM": "xterm-256color"}
    command = [sys.executable, "-P", "-m", "radchat", "chat", *EXACT, *args]
    under = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", *command]
    terminal = Terminal(under, env, cwd=shell.folder, rows=50)
    made.append(terminal)
    terminal.wait_for("> ", PATIENCE)
    return terminal


def talk(terminal: Terminal, word: str) -> None:
    """A chat in which the word is said in every way there is, also in ways that fail."""
    shown = 0

    def say(text: str) -> None:
        nonlocal shown
        terminal.type(text + "\r")
        shown += 1
        terminal.wait_for(lambda t: t.everything.count("first token") >= shown, PATIENCE)
        terminal.settle()

    def command(text: str, seen: str) -> None:
        terminal.type(text + "\r")
        terminal.wait_for(seen, PATIENCE)
        terminal.settle()

    say(f"it is {word} and {word.upper()}")
    command(f"/system you know {word}", "with the next message")
    say(f"again {word}")
    command(f"/rename {word}", f"renamed to {word}")
    command(f"/fork HEAD {word}-branch", f"{word}-branch@")
    say("on the branch")
    command(f"/switch no{word}", "error: no branch")
    command(f"/model {word}", "error:")
    command(f"/file /nowhere/{word}", "error: cannot read")
    command(f"!echo {word} to the shell", "to the shell")
    terminal.type("/retry\r")
    shown += 1
    terminal.wait_for(lambda t: t.everything.count("first token") >= shown, PATIENCE)
    terminal.settle()


def leave(terminal: Terminal) -> None:
    terminal.type("/bye\r")
    assert terminal.wait_end(PATIENCE) == 0


def test_an_ephemeral_chat_is_nowhere_while_it_runs_nor_after_a_stop_or_a_kill(
    shell: Shell, home: Home, terminals: list[Terminal]
) -> None:
    kept = open_chat(shell, terminals)
    kept.type(f"an open word: {OPEN}\r")
    kept.wait_for("first token", PATIENCE)
    leave(kept)
    seen = {form for _, form in traces(home, OPEN)}
    assert {"text", "ids of 4 bytes"} <= seen  # this search would find it
    assert ("state/history", "text") in traces(home, OPEN)

    chat = open_chat(shell, terminals, "--ephemeral")
    talk(chat, SECRET)
    shell.ask(f"asked {SECRET}", "--ephemeral", "-s", f"you are {SECRET}")
    shell.ask("more", "--ephemeral", stdin=f"piped {SECRET}")
    private = shell.folder / f"{SECRET}.txt"
    private.write_text(f"in a file: {SECRET}")
    shell.ask("read it", "--ephemeral", "-f", str(private))
    shell("retry", "--session", SECRET, *EXACT)
    shell("edit", "1", f"edited {SECRET}", "--session", SECRET, *EXACT)
    shell("ask", f"{SECRET} " * 2000, "--ephemeral", *EXACT, code=56)  # does not fit
    shell("ask", SECRET, "--ephemeral", "-o", "top_p=7", *EXACT, code=42)
    shell("ask", SECRET, "--ephemeral", "-m", f"no-{SECRET}", *EXACT, code=66)
    shell("fork", "--session", f"no{SECRET}", code=66)
    assert SECRET in shell("sessions", "search", SECRET).out  # it is there, for now
    shell("sessions", "export", SECRET, "-o", str(shell.folder / "taken-out.md"))
    assert traces(home, SECRET) == set()
    leave(chat)
    assert traces(home, SECRET) == set()
    home.kill()
    assert traces(home, SECRET) == set()
    shell("daemon", "start")
    assert shell.num_sessions() == 1
    home.stop()
    assert traces(home, SECRET) == set()
    assert traces(home, OPEN)


def test_a_stopped_ephemeral_daemon_has_put_nothing_away(shell: Shell, home: Home) -> None:
    """Stopped in mid-answer: what could be written down then is what a kept chat would keep."""
    with shell.stream(text=f"long {SECRET}", ephemeral=True, dtype="fp32") as events:
        assert next(e for e in events if e.name == "delta")
        assert traces(home, SECRET) == set()
        shell("daemon", "stop", "--force")
    assert traces(home, SECRET) == set()
    assert not list(home.places.running.iterdir())


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_removed_session_is_nowhere(
    shell: Shell, home: Home, terminals: list[Terminal], end: str
) -> None:
    other = shell.ask(f"stays: {OPEN}")
    chat = open_chat(shell, terminals)
    talk(chat, SECRET)
    leave(chat)
    shell("branch", "--label", "1", f"{SECRET}-label", "--session", SECRET)
    found = traces(home, SECRET)
    assert {"text", "ids of 4 bytes"} <= {form for _, form in found}
    assert {"state/history", "data/radchat.db-wal"} <= {name for name, _ in found}
    shell("sessions", "rm", SECRET, "-y")
    assert traces(home, SECRET) == set()  # at once
    if end == "kill":
        home.kill()
        shell("daemon", "start")
    home.stop()
    assert traces(home, SECRET) == set()
    assert traces(home, OPEN)
    shell("daemon", "start")
    assert shell.texts(session=other["session"])[0] == ("user", f"stays: {OPEN}")
    assert shell.json("sessions", "verify")["ok"]


@pytest.mark.slow
def test_pruned_messages_are_nowhere_but_in_the_history_of_the_prompt(
    shell: Shell, home: Home
) -> None:
    shell.ask("to be gone back from")
    shell.say(f"never mind: {SECRET}")
    shell("undo")
    assert traces(home, SECRET)
    shell("prune", "-y")
    assert traces(home, SECRET) == set()
    home.stop()
    assert traces(home, SECRET) == set()


@pytest.mark.parametrize(
    "umask",
    [0o000, *(pytest.param(umask, marks=pytest.mark.slow) for umask in (0o022, 0o277))],
    ids=oct,
)
def test_files_are_0600_and_folders_0700_whatever_the_umask(
    shell: Shell, home: Home, terminals: list[Terminal], umask: int
) -> None:
    for made_by_the_test in (home.root / "h", home.places.cache):
        made_by_the_test.chmod(0o700)
    assert shell.start("config", "set", "keep_alive", "10m", umask=umask).wait(PATIENCE) == 0
    chat = open_chat(shell, terminals, umask=f"{umask:03o}")
    chat.type("hello\r")
    chat.wait_for("first token", PATIENCE)
    with shell.stream(text="and on", new_session=False, dtype="fp32") as events:
        assert next(e for e in events if e.name == "delta")
        wait_until(lambda: list(home.places.running.iterdir()))
        assert modes(home) == {}
    taken = shell.folder / "talk.json"
    done = shell.start("sessions", "export", "-o", str(taken), umask=umask)
    assert done.wait(PATIENCE) == 0
    assert not stat.S_IMODE(taken.stat().st_mode) & 0o077
    leave(chat)
    home.stop()
    assert modes(home) == {}
    names = {path.name for path in (home.root / "h").rglob("*")}
    assert {"config.toml", "radchat.db", "daemon.lock", "history", "daemon.log"} <= names


def test_the_log_at_its_most_talkative_has_something_to_say_and_nobodys_words(
    shell: Shell, home: Home
) -> None:
    """Kept sessions too: their words are in the database, and their ids with their KV, and nowhere
    else.
    """
    shell.ask(f"it is {SECRET}", "-s", f"you know {SECRET}", "--new-session", SECRET)
    shell.say(f"again {SECRET}")
    shell("ask", f"{SECRET} " * 2000, "-c", *EXACT, code=56)
    shell("switch", f"no{SECRET}", code=66)
    shell("sessions", "search", SECRET)
    bad = shell.folder / "bad.jsonl"
    bad.write_text(f'{{"role": "user", "content": "{SECRET}"}}\n{{{SECRET}')
    shell("sessions", "import", str(bad), code=42)
    shell("sessions", "export", "-o", str(Path(shell.folder) / "out.md"))
    home.stop()
    assert "listening at" in home.log()
    found = {name for name, _ in traces(home, SECRET)}
    assert {name for name in found if not name.startswith("cache/kv/")} == {"data/radchat.db"}
