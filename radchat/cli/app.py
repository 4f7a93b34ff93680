"""The Typer app, made of only as much as a command line needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from radchat.chat.options import nearest
from radchat.cli.argv import Line
from radchat.cli.common import Cli
from radchat.cli.table import BY_NAME, COMMANDS, Entry
from radchat.errors import UsageError

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
ALSO = "Also --json, -q, --session ID|NAME and more, before or after any command: radchat --help"


def assemble(entries: Iterable[Entry] = COMMANDS) -> typer.Typer:
    """The app with these commands; importing a command's module is most of its cost."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings=SETTINGS,
        no_args_is_help=False,
    )
    app.callback()(_global_options)
    for entry in entries:
        module, _, attribute = entry.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=entry.name, help=entry.help, epilog=ALSO)
        else:
            settings = {"help": target.__doc__, "epilog": ALSO, "context_settings": SETTINGS}
            app.command(entry.name, **settings)(target)
    return app


def _global_options(
    ctx: typer.Context,
    quiet: Annotated[bool, typer.Option("-q", "--quiet")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose")] = False,
    color: Annotated[str, typer.Option(metavar="auto|always|never")] = "auto",
    plain: Annotated[bool, typer.Option("--plain")] = False,
    json: Annotated[bool, typer.Option("--json")] = False,
    session: Annotated[str | None, typer.Option(metavar="ID|NAME")] = None,
    daemon: Annotated[str | None, typer.Option(metavar="SOCK")] = None,
    engine: Annotated[str | None, typer.Option(metavar="URL")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE")] = None,
) -> None:
    """A terminal chat that keeps its thinking."""
    if color not in ("auto", "always", "never"):
        raise UsageError(f"--color {color}: want auto, always or never")
    cli = ctx.obj
    assert isinstance(cli, Cli)
    cli.quiet, cli.verbose, cli.color, cli.plain = quiet, verbose, color, plain
    cli.json, cli.session, cli.daemon, cli.config_file = json or cli.json, session, daemon, config
    cli.engine = engine


def run(line: Line, cli: Cli) -> int:
    """Run a parsed command line; the exit code. Typer's own errors become ours."""
    from typer.exceptions import Exit, TyperException

    app = typer.main.get_command(assemble([BY_NAME[line.command]]))
    try:
        with app.make_context("radchat", line.argv, obj=cli) as ctx:
            result = app.invoke(ctx)
            return result if isinstance(result, int) else 0
    except Exit as end:
        return end.exit_code
    except TyperException as error:
        where = getattr(error, "ctx", None)
        path = where.command_path if where is not None else f"radchat {line.command}"
        raise UsageError(f"{_told(error)} (see: {path} --help)") from error


def _told(error: Any) -> str:
    """Typer's error in words; of its guesses at a mistyped option, the one that is near."""
    guesses = [str(guess).lstrip("-") for guess in getattr(error, "possibilities", None) or ()]
    if not guesses:
        return str(error.format_message())
    near = nearest(error.option_name.lstrip("-"), guesses)
    return f"{error.message}: did you mean --{near}?" if near else str(error.message)
