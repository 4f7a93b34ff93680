"""`radchat cache`: what the engine keeps of what it computed. Losing it costs time, never text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radchat.chat import cache_view, why_view
from radchat.cli import cache_disk, cache_top, common
from radchat.errors import UsageError

TIERS = ("device", "disk")
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


cache_app.command("top")(cache_top.top)


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
    cli.tell(result, cache_view.pinned(result))


@cache_app.command("unpin")
def unpin(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
) -> None:
    """End a pin: the KV stays until its turn to go comes."""
    cli = common.of(ctx)
    result = cli.call("cache.unpin", ref=ref)
    cli.tell(result, f"{result['message'][:4]} is not pinned any more")


@cache_app.command("evict")
def evict(
    ctx: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", metavar="N", help="so many")] = None,
    tier: Annotated[
        str | None,
        typer.Option("--tier", metavar="device|disk", help="all of a tier; with REF, its part"),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Forget the KV of a message and what follows it, of N tokens, or of a whole tier.

    On the device, where --tier disk does not say otherwise; N tokens go in eviction order. It asks
    before it empties the disk.
    """
    cli = common.of(ctx)
    if (ref is not None) + (tokens is not None) > 1 or (ref, tokens, tier) == (None, None, None):
        raise UsageError("want a REF, --tokens N, or --tier device|disk")
    if tier not in (None, *TIERS):
        raise UsageError(f"--tier {tier}: want device or disk")
    if tokens is not None and tier == "disk":
        raise UsageError("--tokens N is of the device: --tier disk takes a REF, or is all of it")
    alone = ref is None and tokens is None
    if alone and tier == "disk":
        cli.confirm(cache_view.sure(disk=True), yes=yes)
    given = {"ref": ref, "tokens": tokens, "tier": tier if alone or tier == "disk" else None}
    result = cli.call("cache.evict", **{k: v for k, v in given.items() if v is not None})
    cli.tell(result, cache_view.evicted(result, tier))


@cache_app.command("clear")
def clear(
    ctx: typer.Context,
    disk: Annotated[bool, typer.Option("--disk", help="that on disk, and no other")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="on the device and on disk, what is pinned too")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
) -> None:
    """Forget all KV on the device that no request is using and nothing is pinned."""
    cli = common.of(ctx)
    tiers = {"device": everything or not disk, "disk": everything or disk}
    cli.confirm(cache_view.sure(**tiers), yes=yes)
    result = cli.client.call("cache.clear", pinned=everything, **tiers)
    cli.tell(result, cache_view.cleared(result, **tiers))


for word in (cache_disk.save, cache_disk.load, cache_disk.warm, cache_disk.verify):
    cache_app.command(word.__name__)(word)


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
