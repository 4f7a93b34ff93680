"""`radchat sessions export` and `import`: sessions as files, and files as sessions."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from radchat.chat.exporting import FORMATS, format_of, write
from radchat.chat.files import MAX_BYTES, decode
from radchat.chat.footer import count
from radchat.chat.sessions_view import messages
from radchat.chat.text import clean, one_line
from radchat.cli import common
from radchat.errors import InvalidInput, UsageError

STDIO: Final = "-"
_OWN: Final = ("/dev/fd/", "/dev/std", "/proc/self/")  # these name another thing in each process


def export(
    ctx: typer.Context,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="|".join(FORMATS), help="else by FILE's name")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="else stdout")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="REF", help="the path to REF")] = None,
    every: Annotated[bool, typer.Option("--all", help="all branches")] = False,
) -> None:
    """Write a session to stdout or a file.

    Markdown to read; json and jsonl are whole, with every id, and can be imported; openai is the
    messages of a request.
    """
    cli = common.of(ctx)
    if at is not None and every:
        raise UsageError("one path or all branches: give one of --at and --all")
    form = format_of(output, format_ or ("json" if cli.json and output is None else None))
    asked = cli.here() | ({"session": session} if session else {})
    result = dict(cli.client.call("sessions.export", **asked, format=form, at=at, every=every))
    text = str(result.pop("text"))
    if output not in (None, STDIO):
        path, was_there = write(str(output), text)
        told = {**result, "file": str(path)}
        if cli.json:
            cli.data(told)
        over = " (replaced)" if was_there else ""
        cli.note(f"{one_line(str(result['name']))}, {messages(result['messages'])}: {path}{over}")
    elif cli.json:
        cli.data(json.loads(text) if form == "json" else {**result, "text": text})
    else:
        sys.stdout.write(clean(text) if common.is_terminal(sys.stdout) else text)


def import_(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="- is stdin")],
) -> None:
    """Make sessions of files.

    Ours (json, jsonl), OpenAI messages, or the logs.db of llm: all of them, or none.
    """
    cli = common.of(ctx)
    if files.count(STDIO) > 1:
        raise UsageError("stdin can be read once: give one -")
    read = [given(file) for file in files]
    where = cli.here()["where"]
    result = cli.client.call("sessions.import", where=where, files=read)
    if cli.json:
        cli.data(result)
        return
    for session in result["sessions"]:
        renewed = " (new ids: its own are in use)" if session["renewed"] else ""
        name = one_line(str(session["name"]))
        cli.note(f"imported {name}, {messages(session['messages'])}{renewed}")
    for what, number in result["left_out"].items():
        cli.note(f"left out: {one_line(str(what))} ({count(number)})")
    if result["sessions"]:
        cli.note("go on: radchat chat -c")


def given(name: str) -> dict[str, Any]:
    """A regular file by its path, for the daemon to read; what only this process can read (a pipe,
    ``<(command)``, ``/dev/stdin``) by its text. A folder, or nothing, is the daemon's to refuse.
    """
    if name == STDIO:
        return {"name": "stdin", "text": _text(sys.stdin.buffer, "stdin")}
    path = Path(name).expanduser()
    if _is_here_only(path):
        try:
            with path.open("rb") as file:
                return {"name": path.name, "text": _text(file, name)}
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror or error}") from error
    return {"name": path.name, "path": os.path.abspath(path)}  # noqa: PTH100 - no link is followed


def _is_here_only(path: Path) -> bool:
    """Not a file or folder that has this name for every process."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if str(os.path.abspath(path)).startswith(_OWN):  # noqa: PTH100 - a link to what is open here
        return not stat.S_ISDIR(mode)
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _text(file: BinaryIO, name: str) -> str:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            f"{name} is longer than {MAX_BYTES // 2**20} MiB: write it to a file and import that"
        )
    return decode(data, name)
