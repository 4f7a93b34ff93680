"""`radchat config`: get, set, list, path."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from radchat.chat.options import nearest
from radchat.chat.width import table
from radchat.cli import common
from radchat.config import SETTINGS, Setting, Size
from radchat.errors import ConfigInvalid, UsageError
from radchat.paths import private_file

config_app = typer.Typer(rich_markup_mode=None, add_completion=False)
BY_NAME = {setting.name: setting for setting in SETTINGS}


@config_app.callback(invoke_without_command=True)
def _config(ctx: typer.Context) -> None:
    """Settings: flag, environment, config.toml, default, in this order."""
    if ctx.invoked_subcommand is None:
        list_(ctx)


@config_app.command("list")
def list_(ctx: typer.Context) -> None:
    """Every setting, its value and where it comes from."""
    cli = common.of(ctx)
    values = {name: shown(getattr(cli.config, name)) for name in BY_NAME}
    if cli.json:
        cli.data({n: {"value": v, "source": cli.config.sources[n]} for n, v in values.items()})
        return
    rows = [[n, "-" if v is None else str(v), cli.config.sources[n]] for n, v in values.items()]
    for line in table(rows, ["setting", "value", "from"]):
        cli.out(line)


@config_app.command("get")
def get(ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """One setting's value."""
    cli = common.of(ctx)
    setting = find(name)
    value = shown(getattr(cli.config, setting.name))
    if cli.json:
        cli.data({"name": setting.name, "value": value, "source": cli.config.sources[setting.name]})
    else:
        cli.out("" if value is None else str(value))


@config_app.command("set")
def set_(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    value: Annotated[str, typer.Argument(metavar="VALUE")],
) -> None:
    """Write one setting to config.toml; a running daemon reads it at its next start."""
    cli = common.of(ctx)
    setting = find(name)
    try:
        setting.parse(value)
    except ValueError as error:
        raise ConfigInvalid(f"{setting.name} = {value!r}: {error}") from error
    assert cli.config  # what is there must be sound before a line is added
    path = private_file(cli.places.config_file)
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split("=", 1)[0].strip() != setting.name]
    part = path.with_name(path.name + ".part")
    private_file(part)
    part.write_text("\n".join([*kept, f"{setting.name} = {json.dumps(value)}"]) + "\n", "utf-8")
    os.replace(part, path)  # noqa: PTH105 - the atomic one, said plainly
    if cli.json:
        cli.data({"name": setting.name, "value": value, "file": str(path)})
    else:
        cli.note(f"{setting.name} = {value} in {path}")


@config_app.command("path")
def path(ctx: typer.Context) -> None:
    """Where config.toml is."""
    cli = common.of(ctx)
    if cli.json:
        cli.data({"path": str(cli.places.config_file)})
    else:
        cli.out(str(cli.places.config_file))


def find(name: str) -> Setting:
    found = BY_NAME.get(name.replace("-", "_"))
    if found is None:
        near = nearest(name, tuple(BY_NAME))
        hint = f"did you mean {near}?" if near else f"known: {', '.join(BY_NAME)}"
        raise UsageError(f"unknown setting {name!r}: {hint}")
    return found


def shown(value: Any) -> Any:
    """A setting as JSON and people can read it."""
    if isinstance(value, Size):
        return f"{value.tokens}tok" if value.bytes is None else value.bytes
    if isinstance(value, float):  # seconds
        if value == float("inf"):
            return -1
        return int(value) if value.is_integer() else value
    return value
