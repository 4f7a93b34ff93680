"""`radchat sessions search`, `prune`, `verify`: what is kept is found, thinned out and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from radchat.chat.footer import count, counted, size
from radchat.chat.sessions_view import hits_listing, messages
from radchat.chat.text import join_surrogates, one_line
from radchat.cli import common

BROKEN = 1  # exit code of a verify that found something


def search(
    ctx: typer.Context,
    query: Annotated[
        list[str],
        typer.Argument(metavar="QUERY...", help="words; a beginning*; a phrase: '\"two words\"'"),
    ],
    only_names: Annotated[
        bool, typer.Option("-l", "--names", help="only the names of the sessions")
    ] = False,
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, help="at most N")] = 20,
) -> None:
    """Find messages by their words.

    Every word must be there; the best come first. --session looks in one session only.
    """
    cli = common.of(ctx)
    result = cli.client.call(
        "sessions.search",
        query=join_surrogates(" ".join(query)),
        limit=number,
        only_sessions=only_names,
        session=cli.session,
    )
    if cli.json:
        cli.data(result)
        return
    if only_names:
        lines = [one_line(str(session["name"])) for session in result["sessions"]]
    else:
        lines = hits_listing(result["hits"], cli.columns)
    for line in lines:
        cli.out(line)
    if not lines:
        cli.note("nothing found")
    elif result.get("more"):
        cli.note(f"there are more than {count(number)}: -n N")


def prune(
    ctx: typer.Context,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None,
    unlabeled: Annotated[
        bool,
        typer.Option("--unlabeled", help="also the side branches on which no label stands"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Delete messages that no name reaches.

    What was retried, undone or not chosen: no branch, label or HEAD leads there.
    """
    cli = common.of(ctx)
    asked = cli.here() | ({"session": session} if session else {})

    def call(*, dry_run: bool) -> dict[str, Any]:
        return dict(
            cli.client.call("sessions.prune", **asked, unlabeled=unlabeled, dry_run=dry_run)
        )

    result = call(dry_run=True)
    asked["session"] = result["session"]  # what is deleted is what was asked about
    if not yes:
        asked["digest"] = result["digest"]
    if not dry_run and (result["messages"] or result["branches"] or result["shared"]):
        cli.confirm(f"delete {_what(result)} for good?", yes=yes)
        result = call(dry_run=False)
    if cli.json:
        cli.data(result)
        return
    if not (result["messages"] or result["branches"] or result["shared"]):
        cli.note(f"{one_line(str(result['name']))}: nothing to prune")
        return
    cli.note(f"{'would delete' if dry_run else 'deleted'} {_what(result)}")
    if result["shared"]:
        cli.note(f"{messages(result['shared'])} that another session shows stay there")
    if result.get("kv_left"):
        cli.note(one_line(str(result["kv_left"])))


def _what(result: Mapping[str, Any]) -> str:
    """`12 messages (5 thoughts), 340 tokens, KV of 1,200 (14.1 MiB), branches a b of report-q3`"""
    parts = [messages(result["messages"]), f"{count(result['tokens'])} tokens"]
    if result["thoughts"]:
        parts[0] += f" ({counted(result['thoughts'], 'thought')})"
    if result["kv_tokens"]:
        parts.append(f"KV of {count(result['kv_tokens'])} ({size(result['kv_bytes'])})")
    if result["branches"]:
        parts.append("branches " + " ".join(one_line(str(name)) for name in result["branches"]))
    if result.get("labels"):
        parts.append(counted(result["labels"], "label"))
    return f"{', '.join(parts)} of {one_line(str(result['name']))}"


def verify(
    ctx: typer.Context, session: Annotated[str | None, typer.Argument(metavar="[SESSION]")] = None
) -> int | None:
    """Check that all is as it was said.

    Every word and id; exit 1 with a list where one is not what it was.
    """
    cli = common.of(ctx)
    where = cli.here()["where"]
    result = cli.client.call("sessions.verify", where=where, session=session or cli.session)
    if cli.json:
        cli.data(result)
    else:
        for problem in result["problems"]:
            place = f"{problem['session'] or '-':.8}  {problem['id'] or '-':.8}"
            cli.out(f"{problem['kind']:<8}  {place:<18}  {one_line(str(problem['text']))}")
    if result["ok"]:
        cli.note(f"{messages(result['messages'])}: all as they were")
        return None
    cli.note(f"{count(len(result['problems']))} of this is not as it was")
    return BROKEN
