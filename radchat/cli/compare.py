"""`radchat compare` and `diff`: what branches say, beside each other, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from radchat.chat import compare_view, diff_view
from radchat.chat.paths import Beside, beside
from radchat.chat.view import shows_markdown
from radchat.cli import common
from radchat.cli.habits import to_say
from radchat.errors import NotFound, UsageError


def compare(
    ctx: typer.Context,
    refs: Annotated[list[str], typer.Argument(metavar="REF...", help="two or more")],
    columns: Annotated[
        bool | None,
        typer.Option(
            "--columns/--no-columns", help="side by side; where there is room, unless told"
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="the model's own text: no Markdown shown")] = (
        False
    ),
) -> None:
    """What each of several paths says after what they share."""
    cli = common.of(ctx)
    if len(refs) < 2:
        raise UsageError(f"compare {refs[0]} with what? Name two REFs or more: radchat branch -l")
    try:
        what = _beside(cli, refs)
    except NotFound as error:
        if any(_is_ref(cli, ref) for ref in refs):
            raise
        raise NotFound(f"{error.message}. {to_say(['compare', *refs])}", **error.data) from error
    if cli.json:
        cli.data(what.to_json())
        return
    if turns := what.turns():
        cli.note(turns)
    if columns and compare_view.room_for(len(refs), cli.columns) is None:
        cli.note(
            "one after the other: columns are for a terminal"
            if cli.columns is None
            else f"one after the other: {len(refs)} columns have no room on {cli.columns}"
        )
    for line in compare_view.lines(
        what,
        columns=cli.columns,
        side_by_side=columns is not False,
        renders=shows_markdown(cli, raw=raw),
        paint=cli.paint,
    ):
        cli.out(line)


def diff(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="REF", help="before")],
    other: Annotated[str, typer.Argument(metavar="[REF]", help="after")] = "HEAD",
    words: Annotated[bool, typer.Option("--words", help="by words: [-taken-]{+put+}")] = False,
    stat: Annotated[
        bool, typer.Option("--stat", help="numbers only: tokens, words, how it ended, cached")
    ] = False,
) -> None:
    """What differs between two paths, below what they share."""
    cli = common.of(ctx)
    if words and stat:
        raise UsageError("--words and --stat: one of them")
    what = _beside(cli, (ref, other))
    if cli.json:
        cli.data(diff_view.to_json(what, words=words))
        return
    if turns := what.turns():
        cli.note(turns)
    told = (
        diff_view.stat(what)
        if stat
        else diff_view.lines(what, words=words, columns=cli.columns, paint=cli.paint)
    )
    for line in told:
        cli.out(line)


def _beside(cli: common.Cli, refs: Sequence[str]) -> Beside:
    return beside(lambda ref: cli.call("log", ref=ref, pick=True), refs)


def _is_ref(cli: common.Cli, word: str) -> bool:
    try:
        cli.call("log", ref=word, n=1, pick=True)
    except NotFound as error:
        return "matches" in error.data  # of several
    return True
