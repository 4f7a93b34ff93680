"""`radchat sessions`: ls, show, rename, rm; the others are in files of their own."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat.chat.footer import count, counted, place
from radchat.chat.history_file import forget
from radchat.chat.sessions_view import LISTED, listing
from radchat.chat.text import one_line
from radchat.cli import common, sessions_exchange, sessions_kept
from radchat.errors import UsageError

sessions_app = typer.Typer(rich_markup_mode=None, add_completion=False)


@sessions_app.callback(invoke_without_command=True)
def _sessions(ctx: typer.Context) -> None:
    """The trees of messages kept here."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(ls, ctx=ctx)


@sessions_app.command("ls")
def ls(
    ctx: typer.Context,
    number: Annotated[
        int | None, typer.Option("-n", metavar="N", min=1, help="only the last N")
    ] = None,
    every: Annotated[
        bool, typer.Option("-a", "--all", help=f"not only the last {LISTED} on a terminal")
    ] = False,
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="DIR", help="only those begun in DIR")
    ] = None,
) -> None:
    """List them, the last used first."""
    cli = common.of(ctx)
    if every and number is not None:
        raise UsageError("-n N or --all: give one of them")
    looks = common.is_terminal(sys.stdout) and not cli.json and not every
    limit = number or (LISTED if looks else None)
    where = None if folder is None else os.path.abspath(Path(folder).expanduser())  # noqa: PTH100
    result = cli.call("sessions.list", begun=True, limit=limit, folder=where)
    if cli.json:
        cli.data(result)
        return
    for line in listing(result["sessions"], cli.columns):
        cli.out(line)
    if number is None and (more := result["total"] - len(result["sessions"])):
        cli.note(f"{count(more)} more: --all, or -n N")


@sessions_app.command("show")
def show(
    ctx: typer.Context, session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None
) -> None:
    """What is known of one."""
    cli = common.of(ctx)
    result = _ask(cli, "sessions.show", session)
    if cli.json:
        cli.data(result)
        return
    for key in ("id", "name", "model", "folder", "created", "used", "messages", "tokens", "branch"):
        if result.get(key) is not None:
            cli.out(f"{key:<9} {_value(key, result[key])}")
    branches = result.get("branches") or {}
    if isinstance(branches, dict):
        for name, message in branches.items():
            cli.out(f"{'at':<9} {place(name, message)}")


def _value(key: str, value: Any) -> str:
    if key in ("created", "used") and isinstance(value, int | float):
        return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M")
    return count(value) if isinstance(value, int) else one_line(str(value))


@sessions_app.command("rename")
def rename(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="[SESSION] NAME")],
) -> None:
    """Give the current session, or SESSION, another name."""
    cli = common.of(ctx)
    if len(names) > 2:
        raise UsageError("want [SESSION] NAME: quote a name with spaces")
    result = _ask(cli, "sessions.rename", names[0] if len(names) > 1 else None, name=names[-1])
    if cli.json:
        cli.data(result)
    else:
        cli.note(f"renamed to {one_line(names[-1])}")


@sessions_app.command("rm")
def rm(
    ctx: typer.Context,
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Delete sessions: text, and what only they used."""
    cli = common.of(ctx)
    named = ", ".join(one_line(s) for s in sessions)
    for session in sessions if not yes else ():
        _ask(cli, "sessions.show", session)  # not found is said before anything is asked
    cli.confirm(f"delete {named} for good?", yes=yes)
    result = cli.client.call("sessions.rm", where=cli.here()["where"], sessions=sessions)
    _forget_typed(cli, [str(gone["id"]) for gone in result["removed"]])
    if cli.json:
        cli.data(result)
        return
    for gone in result["removed"]:
        name = one_line(str(gone.get("name") or gone["id"]))
        cli.note(f"deleted {name}, {counted(gone['messages'], 'message')}")
        if gone.get("kv_left"):
            cli.note(one_line(str(gone["kv_left"])))


sessions_app.command("search")(sessions_kept.search)
sessions_app.command("prune")(sessions_kept.prune)
sessions_app.command("verify")(sessions_kept.verify)
sessions_app.command("export")(sessions_exchange.export)
sessions_app.command("import")(sessions_exchange.import_)


def _forget_typed(cli: common.Cli, ids: list[str]) -> None:
    """What was typed in these sessions leaves the history file of the prompt."""
    try:
        forget(cli.places.history, ids)
    except OSError as error:
        cli.note(f"what was typed in them is still in {cli.places.history}: {error.strerror}")


def _ask(cli: common.Cli, method: str, session: str | None, **args: Any) -> dict[str, Any]:
    here = cli.here()
    if session:
        here["session"] = session
    return dict(cli.client.call(method, **here, **args))
