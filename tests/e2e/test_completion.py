"""Tab, in a real bash and a real zsh, in a terminal, with a real daemon or none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.e2e.ptys import Window, env_of, need
from tests.waiting import PATIENCE

COMPINIT = "autoload -Uz compinit && compinit -u -D"
HOSTILE = ("cost$(touch${IFS}PWNED)", "back`touch${IFS}PWNED`", "it's", "ouch!x", "über;größe")


def window(home: Home, shell: str) -> Window:
    found = Window(home, shell)
    if shell == "zsh":
        found.run(COMPINIT)
    found.run(f"source <(radchat completion {shell})")
    return found


@pytest.fixture(scope="module", params=["bash", "zsh"])
def typing(request: pytest.FixtureRequest, shared: Home) -> Iterator[Window]:
    with window(shared, request.param) as found:
        found.run("radchat ask 'turn one' " + " ".join(EXACT))
        found.run("radchat ask -c 'turn two' " + " ".join(EXACT))
        found.run("radchat branch price HEAD~1; radchat branch --label 2 seen")
        yield found


def completed(window: Window, line: str, want: str) -> None:
    """Type the line and Tab; the line becomes ``want``; then leave it unrun."""
    window.type("\x15\x0c")  # an empty line on an empty screen
    window.wait_for(lambda t: t.text.strip() == "ready>", PATIENCE)
    window.type(line + "\t")
    window.wait_for(lambda t: t.lines[0].rstrip() == f"ready> {want}".rstrip(), PATIENCE)
    window.type("\x15")


def test_commands_options_and_their_values_are_completed(typing: Window) -> None:
    completed(typing, "radchat dem", "radchat demo")
    completed(typing, "radchat models sh", "radchat models show")
    completed(typing, "radchat tree --show-c", "radchat tree --show-cache")
    completed(typing, "radchat tree --filter us", "radchat tree --filter user-only")
    completed(typing, "radchat ask --dtype=fp", "radchat ask --dtype=fp32")
    completed(typing, "radchat config get kee", "radchat config get keep_alive")
    completed(typing, "radchat -q --color nev", "radchat -q --color never")


def test_branches_labels_turns_sessions_and_models_are_completed(typing: Window) -> None:
    tree = json.loads(typing.run("radchat tree --json").splitlines()[-1])
    head = str(tree["head"])
    completed(typing, "radchat switch pri", "radchat switch price")
    completed(typing, "radchat fork se", "radchat fork seen")
    completed(typing, "radchat branch -d pr", "radchat branch -d price")
    completed(typing, f"radchat log {head[:5]}", f"radchat log {head[:5]}")
    completed(typing, "radchat ask -m oth", "radchat ask -m other")
    completed(typing, f"radchat sessions show {tree['name'][:-1]}",
              f"radchat sessions show {tree['name']}")  # fmt: skip
    completed(typing, f"radchat switch {tree['name']}:pri", f"radchat switch {tree['name']}:price")


def test_zsh_shows_what_was_said_beside_each_ref(shared: Home) -> None:
    with window(shared, "zsh") as typing:
        typing.run("radchat ask 'what is a heron' " + " ".join(EXACT))
        typing.type("\x0cradchat edit \t")
        typing.wait_for("user: what is a heron", PATIENCE)


def test_zsh_takes_the_script_as_a_file_of_its_own(shared: Home) -> None:
    functions = shared.root / "functions"
    functions.mkdir()
    with Window(shared, "zsh") as typing:
        typing.run(f"radchat completion zsh > {functions}/_radchat; fpath+=({functions})")
        typing.run(COMPINIT)
        completed(typing, "radchat tree --show-c", "radchat tree --show-cache")
        completed(typing, "radchat config get kee", "radchat config get keep_alive")


def test_the_session_of_this_very_terminal_is_completed(shared: Home) -> None:
    """Also where the shell gives its widgets no terminal on stdin."""
    with window(shared, "bash") as one, window(shared, "zsh") as two:
        for number, terminal in enumerate((one, two)):
            terminal.run("radchat ask hello " + " ".join(EXACT))
            terminal.run(f"radchat branch mine-{number}")
        for number, terminal in enumerate((one, two)):
            completed(terminal, "radchat switch mine-", f"radchat switch mine-{number}")


def longer_than(line: str) -> Callable[[Terminal], bool]:
    return lambda terminal: len(terminal.lines[0]) > len(line)


@pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def test_no_name_is_ever_run_and_each_can_be_gone_to(shared: Home, shell: str) -> None:
    folder = shared.root / f"hostile-{shell}"
    with Window(shared, shell, folder) as typing:
        if shell == "zsh":
            typing.run(COMPINIT)
        typing.run(f"source <(radchat completion {shell})")
        typing.run("radchat ask hello " + " ".join(EXACT))
        session = json.loads(typing.run("radchat sessions show --json").splitlines()[-1])["id"]
        inside = Shell(shared, f"hostile-{shell}")
        for name in HOSTILE:
            inside.call("branch.create", name=name, session=session)
        for name in HOSTILE:
            typing.type("\x15\x0c")
            start = {"'": "\\'", "<": "\\<", "(": "\\("}.get(name[0], name[0])
            start += name[1] if name[1].isalnum() else ""
            typing.wait_for(lambda t: t.text.strip() == "ready>", PATIENCE)
            shown = f"ready> radchat switch {start}"
            typing.type(f"radchat switch {start}\t")
            typing.wait_for(longer_than(shown), PATIENCE)
            typing.run("")
            tree = inside.call("tree", session=session)
            assert tree["branch"] == name, typing.text
        assert list(folder.iterdir()) == []


def test_without_a_daemon_what_can_be_known_is_completed_and_none_is_started(homes: Homes) -> None:
    home = homes()
    with window(home, "bash") as typing:
        completed(typing, "radchat ask -m ti", "radchat ask -m tiny")
        completed(typing, "radchat switch ma", "radchat switch ma")
        completed(typing, "radchat sess", "radchat sessions")
    assert not home.is_up
    assert not home.places.data.exists()


def test_the_scripts_are_sound_and_quiet(home: Home, tmp_path: Path) -> None:
    for shell in ("bash", "zsh"):
        script = subprocess.run(
            ["radchat", "completion", shell], env=env_of(home), capture_output=True, check=True
        )
        assert script.stderr == b""
        file = tmp_path / shell
        file.write_bytes(script.stdout)
        checked = subprocess.run([need(shell), "-n", str(file)], capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")
