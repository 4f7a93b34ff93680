"""What may come next on a command line, and how bash and zsh are told. Nothing here has a pty."""

from __future__ import annotations

import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radchat.cli.common import Cli
from radchat.cli.complete import Candidate, Wanted, subcommands, wanted
from radchat.cli.shells import for_bash, read_bash
from radchat.cli.table import BY_NAME
from radchat.cli.values import VALUES, candidates
from radchat.errors import RadchatError
from tests.chat.fake_server import FakeDaemon
from tests.e2e.harness import clean_env, radchat
from tests.e2e.ptys import need

BREAKS = " \t\n\"'@><=;|&(:"  # bash's own COMP_WORDBREAKS
KINDS = {
    "switch": "refs",
    "fork": "refs",
    "log": "refs",
    "compare one two": "refs",
    "diff one": "refs",
    "tree": "refs sessions",
    "edit": "refs",
    "edit 3": "",  # the new words
    "retry": "refs",
    "ask --at": "refs",
    "what-if --at": "refs",
    "whatif": "",
    "branch new": "refs",
    "branch": "",
    "branch -d": "branches",
    "branch -m": "branches",
    "branch -m old": "",
    "branch --label": "refs",
    "branch --label HEAD": "",
    "checkout": "refs",
    "sessions show": "sessions",
    "sessions rm one two": "sessions",
    "sessions rename": "sessions",
    "sessions rename one": "",
    "chat -r": "sessions",
    "-r": "sessions",
    "--session": "sessions",
    "tree --session": "sessions",
    "ask -m": "models",
    "models rm": "models",
    "stop": "models",
    "pull": "sources files",
    "ask -f": "files",
    "vote --extract": "",
    "vote --at": "refs",
    "think --at": "refs",
    "think --task": "tasks files",
    "think --resume": "",
    "think -r": "sessions",
    "ask -f a.md -f": "files",
    "--config": "files",
    "config get": "settings",
    "config set": "settings",
    "config set model": "",
    "ask -o": "options",
    "ask -c": "",
    "ask --": "",
    "redo": "",
    "cache evict": "refs",
    "cache load": "refs",
    "cache warm": "refs at_files",
    "cache warm HEAD": "refs at_files",
}


@pytest.mark.parametrize(("line", "kinds"), KINDS.items())
def test_what_a_place_wants_is_what_its_command_says(line: str, kinds: str) -> None:
    assert " ".join(wanted(line.split(), "").kinds) == kinds


def words(line: str, current: str = "") -> list[str]:
    return [each.value for each in wanted(line.split(), current).words]


def test_choices_are_offered_where_the_help_names_them() -> None:
    assert words("ask --dtype")[:3] == ["auto", "fp32", "bf16"]
    assert words("ask", "--dtype=")[:3] == ["auto", "fp32", "bf16"]
    assert wanted(["ask"], "--dtype=").before == "--dtype="
    assert words("ask --think") == ["off", "low", "medium", "high"]
    assert words("--color") == ["auto", "always", "never"]
    assert words("completion") == ["bash", "zsh"]
    assert words("vote --extract") == ["json:", "last-number", "last-line"]
    assert "ls" in words("sessions")
    assert words("sessions ls") == []
    assert {"chat", "tree", "checkout", "ps"} <= set(words(""))
    assert words("help") == words("")
    assert words("config set persist") == ["auto", "off", "always"]
    assert words("config set model") == words("config set persist off") == []
    assert words("say something long") == []  # a prompt


def test_options_are_those_of_the_command_and_the_global_ones() -> None:
    assert {"--show-cache", "--lru", "--json", "--session"} <= set(words("tree", "--"))
    assert "--temp" not in words("tree", "--")
    assert "--temp" in words("", "--")  # a bare radchat is a chat
    assert "--force" in words("daemon stop", "--")
    assert "--temp" in words("ask --think", "--t")  # a value that may be left out
    assert words("ask -s", "--") == []  # the value of -s


def every_parameter() -> list[Any]:
    found = []
    for name in BY_NAME:
        for whole, command in subcommands(name):
            found += [pytest.param(p, id=f"{whole} {p.name}") for p in command.params]
    return found


@pytest.mark.parametrize("parameter", every_parameter())
def test_a_parameter_that_names_a_thing_says_so_for_completion(parameter: Any) -> None:
    """REF, SESSION, MODEL: by these words Tab knows what is wanted, and the manual too."""
    metavar = str(parameter.metavar or parameter.name.upper())
    if parameter.name in ("ref", "at"):
        assert "REF" in metavar
    if parameter.name in ("session", "sessions", "resume"):
        assert "SESSION" in metavar or "ID" in metavar
    if parameter.name == "model":
        assert "MODEL" in metavar


# --- bash ---


@pytest.mark.parametrize(
    ("line", "words", "current", "kept", "quote"),
    [
        ("radchat tree ", ["tree"], "", "", ""),
        ("radchat  tree  --f", ["tree"], "--f", "", ""),
        ("radchat tree --filter=us", ["tree"], "--filter=us", "--filter=", ""),
        ("radchat switch one:pr", ["switch"], "one:pr", "one:", ""),
        ("radchat switch my\\ se", ["switch"], "my se", "", ""),
        ("radchat switch 'my se", ["switch"], "my se", "", "'"),
        ('radchat switch "a \\"b', ["switch"], 'a "b', "", '"'),
        ("radchat ask 'one two' -m ", ["ask", "one two", "-m"], "", "", ""),
        ("radchat ask '' ", ["ask", ""], "", "", ""),
        ("RADCHAT_SESSION='a b' radchat tree ", ["tree"], "", "", ""),
        ("radchat switch a'b'c", ["switch"], "abc", "ab", ""),
        ("radchat switch \\$(x", ["switch"], "$(x", "$(", ""),
    ],
)
def test_a_line_is_read_as_bash_reads_it(
    line: str, words: list[str], current: str, kept: str, quote: str
) -> None:
    read = read_bash(line, BREAKS)
    assert (read.words, read.current, read.kept, read.quote) == (words, current, kept, quote)


def test_what_is_inserted_means_the_value_to_bash_whatever_is_in_it(tmp_path: Path) -> None:
    """Every ASCII character and more, in each kind of quote, after any beginning; none is run."""
    draw = random.Random(0)
    letters = string.printable[:95] + "éß漢"
    values = [*letters, *("".join(draw.choices(letters, k=12)) for _ in range(300))]
    values += ["$(touch x)", "`touch x`", "a;touch x", "${IFS}", "~root", "-rf", "!!", "a\\"]
    checked, lines = [], []
    for value in values:
        for begun, quote in (("", ""), ("'", "'"), ('"', '"')):
            inserted = for_bash(
                read_bash(f"radchat switch {begun}", BREAKS), [Candidate(value)], files=False
            )[1:]
            if not inserted:
                assert quote == '"'
                assert "!" in value
                continue
            checked.append(value)
            lines.append(f"printf '%s\\0' {begun}{inserted[0]}{quote}\n")
    run = subprocess.run(
        [need("bash")], input="".join(lines).encode(), capture_output=True, cwd=tmp_path, check=True
    )
    assert run.stdout.decode().split("\0")[:-1] == checked
    assert run.stderr == b""
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_not_there_yet_is_inserted_after_a_break() -> None:
    line = read_bash("radchat switch one:pr", BREAKS)
    assert for_bash(line, [Candidate("one:price")], files=False) == ["words", "price"]
    line = read_bash("radchat ask -o temp", BREAKS)
    assert for_bash(line, [Candidate("temperature=", more=True)], files=False)[0] == "more"
    assert for_bash(line, [], files=True) == ["files"]


# --- what a daemon says ---


def complete(daemon: FakeDaemon, home: Path, *line: str) -> list[tuple[str, str]]:
    """The values offered for the last of these words, and the lines shown for them in zsh."""
    done = subprocess.run(
        radchat("__complete", "zsh", "--daemon", str(daemon.path), *line),
        env=clean_env(home, COLUMNS="40"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert not any(byte < 32 and byte not in b"\n\t" for byte in done.stdout)
    lines = done.stdout.decode().splitlines()[1:]
    return [(each[1:].split("\t")[0], each.split("\t")[1]) for each in lines]


def test_names_of_any_kind_are_offered_whole_and_control_characters_never(
    daemon: FakeDaemon, home: Path
) -> None:
    rows = [
        {"ref": "two words", "kind": "branch", "text": "user: a\x1b[31mb"},
        {"ref": "a:b", "kind": "branch", "text": "x" * 100},
        {"ref": "'quoted'", "kind": "label", "text": ""},
        {"ref": "bad\x1b[2J", "kind": "branch", "text": ""},
        {"ref": "bad\nline", "kind": "branch", "text": ""},
    ]
    daemon.script["refs"] = {"session": "s", "name": "n", "refs": rows}
    found = complete(daemon, home, "switch", "")
    assert [value for value, _ in found] == ["two words", "a:b", "'quoted'"]
    assert found[0][1] == "two words  user: a\\x1b[31mb"
    assert all(len(shown) < 40 for _, shown in found)
    assert daemon.asked("refs")[0]["prefix"] == ""
    session = {"id": "e7f2" * 8, "used": 1.0, "messages": 2}
    daemon.script["sessions.list"] = {
        "sessions": [
            {**session, "name": "with space"},
            {**session, "name": "bad\x07bell"},
        ]
    }
    found = complete(daemon, home, "sessions", "show", "")
    assert [value for value, _ in found] == ["with space", "e7f2e7f2"]
    assert daemon.asked("sessions.list")[0]["begun"] is True
    assert [v for v, _ in complete(daemon, home, "--session", "wi")] == ["with space"]
    complete(daemon, home, "--session", "with space", "switch", "")
    assert daemon.asked("refs")[-1]["session"] == "with space"
    assert [v for v, _ in complete(daemon, home, "switch", "with")] == ["with space:"]


def test_a_daemon_that_fails_or_is_gone_leaves_the_line_as_it_is(
    daemon: FakeDaemon, home: Path
) -> None:
    daemon.script["refs"] = RadchatError("it broke")
    assert complete(daemon, home, "switch", "") == []
    gone = home / "none.sock"
    done = subprocess.run(
        radchat("__complete", "zsh", "--daemon", str(gone), "switch", ""),
        env=clean_env(home),
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"words\n"
    assert not home.exists()


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_value_is_wanted_somewhere(kind: str) -> None:
    assert kind in " ".join(KINDS.values()).split()


def test_without_any_place_models_and_settings_are_still_known(home: Path) -> None:
    cli = Cli(env={"RADCHAT_HOME": str(home)})
    assert candidates(cli, Wanted(kinds=("models", "refs", "sessions"))) == ([], False)
    found, _ = candidates(cli, Wanted(kinds=("settings",), prefix="kee"))
    assert [each.value for each in found] == ["keep_alive"]
    assert not home.exists()


HEAVY = ("torch", "transformers", "numpy", "pydantic", "prompt_toolkit", "rich", "jinja2",
         "huggingface_hub", "asyncio", "radchat.engine", "radchat_sessions")  # fmt: skip


@pytest.mark.parametrize("line", [("ask", "-m", ""), ("switch", ""), ("tree", "--"), ("",)])
def test_a_tab_imports_nothing_heavy(home: Path, line: tuple[str, ...]) -> None:
    code = (
        "import sys; from radchat.cli.completion import complete; complete(sys.argv[1:]); "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "zsh", *line],
        env=clean_env(home),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "radchat.cli.complete" in loaded
    assert not loaded & set(HEAVY)
