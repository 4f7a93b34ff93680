"""`radchat cache top`: where each branch's KV is, what is locked, what goes next."""

from __future__ import annotations

from typing import Annotated

import typer

from radchat.cli import common
from radchat.errors import UsageError


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="one look, as lines")] = False,
    every: Annotated[
        float | None, typer.Option("-n", metavar="SECONDS", help="between two looks; else 1")
    ] = None,
) -> None:
    """What sits where, what is locked, what goes next: live, as top does.

    A row for each branch of every session; what several have in common is a row of its own. Without
    a terminal, and with --json, it looks once.
    """
    if every is not None and not every > 0:
        raise UsageError(f"-n {every:g}: want more than 0 seconds between two looks")
    from radchat.chat import top as view

    cli = common.of(ctx)
    if cli.json:
        cli.data(view.look_once(cli, lambda: cli.call("cache.top")))
    else:
        view.show(cli, lambda: cli.call("cache.top"), every_s=every or view.EVERY_S, once=once)
