"""`radchat sessions export` and `import`: sessions as files, and files as sessions."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat.chat.exporting import FORMATS, format_of, write
from radchat.chat.files import decode
from radchat.chat.footer import count
from radchat.chat.sessions_view import messages
from radchat.chat.text import clean, one_line
from radchat.cli import common
from radchat.errors import UsageError

STDIO = "-"


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
        path = write(str(output), text)
        told = {**result, "file": str(path)}
        if cli.json:
            cli.data(told)
        cli.note(f"{one_line(str(result['name']))}, {messages(result['messages'])}: {path}")
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
    given = [_stdin() if file == STDIO else _file(file) for file in files]
    if files.count(STDIO) > 1:
        raise UsageError("stdin can be read once: give one -")
    where = cli.here()["where"]
    result = cli.client.call("sessions.import", where=where, files=given)
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


def _file(name: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    return {"name": path.name, "path": os.path.abspath(path)}  # noqa: PTH100 - no link is followed


def _stdin() -> dict[str, Any]:
    return {"name": "stdin", "text": decode(sys.stdin.buffer.read(), "stdin")}
