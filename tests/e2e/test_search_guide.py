"""docs/search.md: every command of it runs, on the real model, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.homes import Home, Shell

pytestmark = pytest.mark.model
UNSOLVED = 53  # a task that is searched so shortly
ROOT = Path(__file__).parents[2]
# before what the guide says itself, which counts: all as short as may be
SHORT = {
    "radchat think --task": "-k 2 -b 2 --n-eval 1 --max-tokens 48 --seed 1",
    "radchat think ": "-k 2 -d 2 --n-eval 1 --thought-tokens 8 --max-tokens 8 --seed 1",
    "radchat ask ": "--max-tokens 4",
    "radchat vote ": "--max-tokens 24 --seed 1",
}


def commands() -> list[str]:
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"sh", "python"}  # tests/programs/test_tasks.py
    return [line for kind, block in blocks if kind == "sh" for line in block.splitlines()]


def short(line: str) -> str:
    for begins, flags in SHORT.items():
        if line.startswith(begins) and "--resume" not in line:
            radchat, command, rest = line.split(" ", 2)
            return f"{radchat} {command} {flags} {rest}"
    return line


@pytest.fixture(scope="module")
def shell(sources: str, smollm2: Path) -> Iterator[Shell]:
    kept = {"RADCHAT_KV_DEVICE": "4096tok", "RADCHAT_PERSIST": "off"}
    home = Home(sources, {"smollm2-135m": smollm2}, **kept)
    shell = Shell(home, "guide")
    (shell.folder / "examples").symlink_to(ROOT / "examples")
    script = shell.folder / "radchat"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m radchat "$@"\n')
    script.chmod(0o755)
    shell.env["PATH"] = f"{shell.folder}:{shell.env['PATH']}"
    yield shell
    home.close()


def run(shell: Shell, line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env=shell.env,
        cwd=shell.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, UNSOLVED), f"{line}\n{done.stdout}\n{done.stderr}"
    return done


def test_the_guides_own_commands_run(shell: Shell) -> None:
    said = {line: run(shell, short(line)) for line in commands()}
    shell.home.assert_balanced()
    for line, done in said.items():
        if line.startswith("radchat think"):
            assert done.stdout.strip(), line
    (tree,) = (done.stdout for line, done in said.items() if "labeled" in line)
    assert re.search(r"\bs1\.1 [1-9]", tree)
    assert re.search(r" -  .* s1\.", tree), "what was pruned has no KV"
