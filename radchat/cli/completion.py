"""`radchat completion`, and the `__complete` that its scripts call at every Tab."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from radchat.cli import common, shells
from radchat.cli.complete import wanted
from radchat.cli.values import candidates
from radchat.errors import UsageError


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh")],
) -> None:
    """Print a script for your shell: source <(radchat completion bash)"""
    cli = common.of(ctx)
    if shell not in shells.SHELLS:
        raise UsageError(f"completion {shell}: want {' or '.join(shells.SHELLS)}")
    script = shells.script(shell, own_command())
    if cli.json:
        cli.data({"shell": shell, "script": script})
    else:
        cli.out(script.rstrip("\n"))


def own_command() -> list[str]:
    """How this program is started: by its name where the shell finds it so, else by its place."""
    started = Path(sys.argv[0]).absolute()
    if started.name == "__main__.py":
        return [sys.executable, "-P", "-m", "radchat"]
    found = shutil.which("radchat")
    is_found = found is not None and Path(found).exists() and Path(found).samefile(started)
    return ["radchat"] if is_found else [str(started)]


def complete(argv: Sequence[str]) -> int:
    """``bash LINE BREAKS`` or ``zsh WORD... CURRENT``: what may stand there, on stdout."""
    if argv[:1] == ["bash"] and len(argv) == 3:
        line = shells.read_bash(argv[1], argv[2])
        asked = wanted(line.words, line.current)
    elif argv[:1] == ["zsh"] and len(argv) > 1:
        asked = wanted(argv[1:-1], argv[-1])
    else:
        raise UsageError("__complete is for the scripts of `radchat completion`")
    given = asked.given
    cli = common.Cli(
        quiet=True,
        session=given.get("--session"),
        daemon=given.get("--daemon"),
        config_file=given.get("--config"),
    )
    found, files = candidates(cli, asked)
    if argv[0] == "bash":
        lines = shells.for_bash(line, found, files=files)
    else:
        lines = shells.for_zsh(found, files=files, columns=common.columns(sys.stdout))
    sys.stdout.write("".join(f"{each}\n" for each in lines))
    return 0
