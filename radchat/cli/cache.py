"""`radchat cache`: what the engine keeps of what it computed. Losing it costs time, never text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radchat.chat import cache_view
from radchat.chat.footer import count
from radchat.cli import common
from radchat.errors import UsageError

cache_app = typer.Typer(rich_markup_mode=None, add_completion=False)


@cache_app.callback(invoke_without_command=True)
def _cache(ctx: typer.Context) -> None:
    """KV kept in the tiers G device, H host, D disk."""
    if ctx.invoked_subcommand is None:
        stats(ctx)


@cache_app.command("stats")
def stats(ctx: typer.Context) -> None:
    """How much is kept, free, locked, and how often it was used."""
    cli = common.of(ctx)
    _print(cli, cli.call("cache.stats"), cache_view.stats)


@cache_app.command("ls")
def ls(
    ctx: typer.Context,
    lru: Annotated[bool, typer.Option("--lru", help="in the order in which they would go")] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="lru|size", help="in which order")
    ] = None,
) -> None:
    """What is kept, as a flat list in eviction order."""
    cli = common.of(ctx)
    order = by or "lru"
    if order not in ("lru", "size") or (lru and order != "lru"):
        raise UsageError(f"--by {order}: want lru or size, one of them")
    _print(cli, cli.call("cache.ls", by=order), cache_view.entries)


@cache_app.command("tree")
def tree(ctx: typer.Context) -> None:
    """The radix tree itself: node, run of tokens, pages, locks, last use, whom it serves."""
    cli = common.of(ctx)
    _print(cli, cli.call("cache.tree"), cache_view.nodes)


@cache_app.command("evict")
def evict(
    ctx: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", metavar="N", help="so many")] = None,
) -> None:
    """Forget the KV of a message and what follows it, or N tokens in eviction order."""
    cli = common.of(ctx)
    if (ref is None) == (tokens is None):
        raise UsageError("want a REF, or --tokens N")
    given: dict[str, Any] = {"ref": ref} if ref is not None else {"tokens": tokens}
    _freed(cli, cli.call("cache.evict", **given))


@cache_app.command("clear")
def clear(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Forget all KV that no request is using."""
    cli = common.of(ctx)
    cli.confirm("forget all cached KV? It will be computed again when needed.", yes=yes)
    _freed(cli, cli.client.call("cache.clear"))


def _print(cli: common.Cli, result: dict[str, Any], view: Any) -> None:
    if cli.json:
        cli.data(result)
        return
    for line in view(result, cli.columns):
        cli.out(line)


def _freed(cli: common.Cli, result: dict[str, Any]) -> None:
    if cli.json:
        cli.data(result)
    else:
        cli.note(f"freed {count(result['freed_tokens'])} tokens")
