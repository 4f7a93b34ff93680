"""`radchat cache save`, `load`, `warm`, `verify`: KV between the tiers, when you say so.

By itself the daemon saves when it is idle and restores what an answer needs. All four can be ended
by Ctrl+C: what was saved or loaded by then stays. ``load``, ``warm`` and ``verify`` show on a
terminal how far they are.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radchat.chat import cache_view
from radchat.chat.files import load as load_file
from radchat.chat.view import end_of
from radchat.cli import common
from radchat.cli.generation import check_dtype
from radchat.errors import UsageError

BROKEN = 1  # exit code of a verify that found something, as of `sessions verify`


def save(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
) -> None:
    """Write the KV of the path to a message to disk now, not only when the daemon is idle."""
    cli = common.of(ctx)
    result = _stream(cli, "cache.save", ref=_no_file(ref, "save"))
    cli.tell(result, cache_view.saved(result))


def load(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="[REF]")] = "HEAD",
) -> None:
    """Restore what is on disk of the path to a message, so that the next answer need not."""
    cli = common.of(ctx)
    result = _stream(cli, "cache.load", ref=_no_file(ref, "load"))
    cli.tell(result, cache_view.loaded(result))


def warm(
    ctx: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REF|@FILE...]", help="@FILE: as it goes along with ask -f FILE"),
    ] = None,
    system: Annotated[
        str | None, typer.Option("-s", "--system", metavar="SYS", help="that goes before files")
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="which model reads it")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="auto|fp32|bf16|int4", help="of weights and KV")
    ] = None,
) -> None:
    """Have the KV of a path, or of files, ready: restored, and what is not on disk computed."""
    cli = common.of(ctx)
    words = what or []
    files = [load_file(word[1:]) for word in words if word.startswith("@")]
    refs = [word for word in words if not word.startswith("@")]
    if len(refs) > 1 or (refs and files):
        raise UsageError(f"cache warm takes one REF or files, @FILE (got {' '.join(words)})")
    if system is not None and not files:
        raise UsageError("-s/--system goes before files (@FILE): a message has its own")
    given: dict[str, Any] = {"system": system, "model": model}
    given["dtype"] = None if dtype is None else check_dtype(dtype)
    given["ref"] = refs[0] if refs else None if files else "HEAD"
    given["files"] = files or None
    given = {name: value for name, value in given.items() if value is not None}
    result = _stream(cli, "cache.warm", **given)
    cli.tell(result, cache_view.loaded(result))


def verify(ctx: typer.Context) -> int | None:
    """Read every block on disk and check it.

    A damaged one is deleted: its tokens are computed again when they are needed. Exit 1 with a list
    where one was.
    """
    cli = common.of(ctx)
    result = end_of(cli.client.stream("cache.verify"), cli.note, cli.status)
    if cli.json:
        cli.data(result)
    else:
        for line in cache_view.bad_blocks(result):
            cli.out(line)
        cli.note(cache_view.verified(result))
    return None if result["ok"] else BROKEN


def _stream(cli: common.Cli, method: str, **args: Any) -> dict[str, Any]:
    try:
        return end_of(cli.client.stream(method, **cli.here(), **args), cli.note, cli.status)
    except KeyboardInterrupt:
        cli.note("cancelled: what was done so far stays")
        raise


def _no_file(ref: str, word: str) -> str:
    if ref.startswith("@"):
        raise UsageError(f"cache {word} takes a REF (got {ref}): only cache warm reads files")
    return ref
