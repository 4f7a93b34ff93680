"""`radchat config`: get, set, unset, list, path."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat.chat.footer import size
from radchat.chat.options import nearest
from radchat.chat.width import table
from radchat.cli import common
from radchat.config import SETTINGS, Setting, load, parse_bytes, parse_size, sets
from radchat.config import shown as shown  # noqa: PLC0414 - for the commands
from radchat.errors import ConfigInvalid, RadchatError, UsageError
from radchat.paths import private_folder

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
    rows = [[n, legible(n, v), cli.config.sources[n]] for n, v in values.items()]
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
    """Write one setting to config.toml, where the rest stays as it is, comments too."""
    cli = common.of(ctx)
    setting = find(name)
    try:
        setting.parse(value)
    except ValueError as error:
        raise ConfigInvalid(f"{setting.name} = {value!r}: {error}") from error
    path = _change(cli, setting.name, value)
    if cli.json:
        cli.data({"name": setting.name, "value": value, "file": str(path)})
        return
    cli.note(f"{setting.name} = {value} in {path}")
    _tell_when(cli, setting)


@config_app.command("unset")
def unset(ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Take one setting out of config.toml: its default is in force again."""
    cli = common.of(ctx)
    in_file = name in (sets(line) for line in _lines(cli.places.config_file))
    key = name if in_file else find(name).name  # also one that is known no more
    was_there = key in (sets(line) for line in _lines(cli.places.config_file))
    path = _change(cli, key, None) if was_there else cli.places.config_file
    if cli.json:
        cli.data({"name": key, "unset": was_there, "file": str(path)})
        return
    cli.note(f"{key} is {'no longer' if was_there else 'not'} in {path}")
    if was_there and key in BY_NAME:
        _tell_when(cli, BY_NAME[key])


@config_app.command("path")
def path(ctx: typer.Context) -> None:
    """Where config.toml is."""
    cli = common.of(ctx)
    if cli.json:
        cli.data({"path": str(cli.places.config_file)})
    else:
        cli.out(str(cli.places.config_file))


def _change(cli: common.Cli, name: str, value: str | None) -> Path:
    """Give ``name`` this value in the file, or none. Every other byte of a line stays; whatever
    this cannot do safely it refuses. Raises ConfigInvalid, also where another line is wrong.
    """
    path = cli.places.config_file
    before = _lines(path)
    at = next((i for i, line in enumerate(before) if sets(line) == name), None)
    new = [] if value is None else [f"{name} = {json.dumps(value, ensure_ascii=False)}"]
    if at is None:
        after = [*before, *new]
    else:
        after = [*before[:at], *(line + _comment(before[at]) for line in new), *before[at + 1 :]]
    text = "".join(f"{line}\n" for line in after)
    _check(path, before, text, name, value)
    _write(path.resolve(), text, is_ours=path != cli.places.config)
    cli.forget_config()
    try:
        load(cli.places, {})
    except ConfigInvalid as error:  # what else is wrong in the file is told now, with its line
        done = f"{name} is no longer in it" if value is None else f"{name} = {value} is written"
        raise ConfigInvalid(f"{done}, but {error.message}", **error.data) from error
    return path


def _write(path: Path, text: str, *, is_ours: bool) -> None:
    """Whole or not at all. A folder that the user named may be anything, and stays as it is."""
    if is_ours or not path.parent.exists():
        private_folder(path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RadchatError(f"cannot write {path}: {error.strerror}") from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error


def _check(path: Path, before: list[str], after: str, name: str, value: str | None) -> None:
    """Only this setting differs between the two, as TOML reads them."""
    try:
        was = tomllib.loads("".join(f"{line}\n" for line in before))
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid(f"{path}: {error}") from error
    wanted = {key: each for key, each in was.items() if key != name}
    if value is not None:
        wanted[name] = value
    try:
        same = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigInvalid(f"{path}: {name} is written there over several lines: edit it by hand")


def _comment(line: str) -> str:
    """What stands behind the value, from the space before its ``#``."""
    for at in (i for i, char in enumerate(line) if char == "#"):
        try:
            tomllib.loads(line[:at])
        except tomllib.TOMLDecodeError:
            continue  # a # inside the text
        kept = line[:at].rstrip()
        return line[len(kept) :]
    return ""


def _tell_when(cli: common.Cli, setting: Setting) -> None:
    """What goes before the file, and who has read the old one."""
    from radchat.daemon.lock import is_held

    if setting.variable and cli.env.get(setting.variable):
        cli.note(f"{setting.variable} is set, and goes before it")
    if is_held(cli.places.lock):
        cli.note("the running daemon goes on with what it has: radchat daemon restart")


def legible(name: str, value: Any) -> str:
    """For people: bytes as GiB."""
    if value is None:
        return "-"
    is_size = (
        name in BY_NAME
        and BY_NAME[name].parse in (parse_bytes, parse_size)
        and isinstance(value, int)
    )
    return size(value) if is_size else str(value)


def find(name: str) -> Setting:
    found = BY_NAME.get(name.replace("-", "_"))
    if found is None:
        near = nearest(name, tuple(BY_NAME))
        hint = f"did you mean {near}?" if near else f"known: {', '.join(BY_NAME)}"
        raise UsageError(f"unknown setting {name!r}: {hint}")
    return found
