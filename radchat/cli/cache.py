"""`radchat cache`: what the engine keeps of what it computed. Losing it costs time, never text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radchat.chat import cache_view, why_view
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


@cache_app.command("why")
def why(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
) -> None:
    """How an answer's prompt was made up: reused, computed, where reuse ended, and why."""
    cli = common.of(ctx)
    _print(cli, cli.call("cache.why", ref=ref), why_view.why)


@cache_app.command("pin")
def pin(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
    hold: Annotated[str, typer.Option("--for", metavar="24h", help="how long: 90m, 24h")] = "24h",
) -> None:
    """Keep the KV of the path to a message; at most a quarter of the KV pool is."""
    cli = common.of(ctx)
    result = cli.call("cache.pin", ref=ref, hold_s=duration(hold))
    if cli.json:
        cli.data(result)
    else:
        cli.note(cache_view.pinned(result))


@cache_app.command("unpin")
def unpin(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
) -> None:
    """End a pin: the KV stays until its turn to go comes."""
    cli = common.of(ctx)
    result = cli.call("cache.unpin", ref=ref)
    if cli.json:
        cli.data(result)
    else:
        cli.note(f"{result['message'][:4]} is not pinned any more")


@cache_app.command("evict")
def evict(
    ctx: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", metavar="N", help="so many")] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="device", help="all of a tier")
    ] = None,
) -> None:
    """Forget the KV of a message and what follows it, N tokens in eviction order, or a tier's."""
    cli = common.of(ctx)
    given = {"ref": ref, "tokens": tokens, "tier": tier}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise UsageError("want a REF, --tokens N, or --tier device")
    if tier not in (None, "device"):
        raise UsageError(f"--tier {tier}: this version keeps KV on the device alone")
    _freed(cli, cli.call("cache.evict", **given))


@cache_app.command("clear")
def clear(
    ctx: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="what is pinned too")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Forget all KV that no request is using and nothing is pinned."""
    cli = common.of(ctx)
    which = "all cached KV, and all pins" if everything else "all cached KV"
    cli.confirm(f"forget {which}? It will be computed again when needed.", yes=yes)
    _freed(cli, cli.client.call("cache.clear", pinned=everything))


def duration(text: str) -> float:
    """Seconds, in the grammar of the settings: `90m`, `24h`, `3600`."""
    from radchat.config import FOREVER, parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--for {text}: {error}") from error
    if seconds == FOREVER:
        raise UsageError(f"--for {text}: a pin ends; say for how long, like 24h")
    return seconds


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
        cli.note(cache_view.freed(result))
