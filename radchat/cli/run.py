"""`radchat run`: a language-model program from a Python file, its result as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from radchat.chat.files import decode, load
from radchat.cli import common, program_file, run_view
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.printed import Printed
from radchat.errors import UsageError
from radchat.programs.python_file import failure, is_ours

if TYPE_CHECKING:
    from radchat.programs import Program, State

STDIN = "-"


@generation_flags
def run(
    ctx: typer.Context,
    generation: Generation,
    words: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Python, with an @program in it")
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="an argument of the program (repeat)"),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="JSONL: run it on each line; - is stdin"),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", help="of those lines, so many at a time")
    ] = 16,
    trace: Annotated[
        bool, typer.Option("--trace", help="what each call computed and reused, as a tree")
    ] = False,
    save: Annotated[
        str | None, typer.Option("--save", metavar="NAME", help="keep it as a session to talk on")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="reuse nothing: what the cache is worth")
    ] = False,
    no_jump: Annotated[
        bool, typer.Option("--no-jump", help="draw also what a grammar decides already")
    ] = False,
    no_parallel: Annotated[
        bool, typer.Option("--no-parallel", help="one call after the other, forks too")
    ] = False,
) -> None:
    """A program that talks to the model (docs/programs.md); its result is JSON on stdout."""
    cli = common.of(ctx)
    generation.refuse("a program says it itself", "system", "file")
    generation.refuse("a program's result is JSON", "raw")
    if save is not None and (input_ is not None or generation.ephemeral):
        raise UsageError("--save keeps one run: leave out --input and --ephemeral")
    if at_once < 1:
        raise UsageError(f"--at-once {at_once}: want 1 or more")
    path, out = words[0], sys.stdout
    try:
        with Printed(cli.above) as printed, contextlib.redirect_stdout(printed):
            program = program_file.find(words, cli.note)
            given = program_file.arguments(program, arg or [])
            rows = None
            if input_ is None:
                program_file.check(program, given)
            else:
                rows = program_file.rows(program, *_input(cli, input_), given)
            settings = _settings(cli, generation)
            settings |= {"cache": not no_cache, "jump": not no_jump, "parallel": not no_parallel}
            if rows is None:
                _one(cli, program, given, out, trace=trace, save=save, **settings)
                return
            failed = _many(cli, path, program, rows, out, trace=trace, at_once=at_once, **settings)
    except (Exception, SystemExit) as error:
        if is_ours(path, error):
            raise
        told = failure(path, error)
        if cli.verbose and told is not error:
            traceback.print_exception(error)
        raise told from error
    if failed:
        raise typer.Exit(1)


def _input(cli: common.Cli, name: str) -> tuple[str, str]:
    """The text of the rows, and what to call it."""
    if name != STDIN:
        return load(name)["text"], name
    if common.is_terminal(sys.stdin):
        cli.note("a JSON object a line; Ctrl+D ends")
    return decode(sys.stdin.buffer.read(), "stdin"), "stdin"


def _settings(cli: common.Cli, generation: Generation) -> dict[str, Any]:
    """How the program's calls are made where they don't say it themselves, and by which daemon."""
    settings = generation.arguments()
    del settings["ephemeral"]  # nothing is kept without --save
    settings["model"] = choose(cli, generation.model, is_new=True)
    cli.status("connecting")
    return settings | {"client": cli.client, "on_notice": cli.note, "on_wait": cli.status}


def _one(
    cli: common.Cli,
    program: Program,
    given: Mapping[str, Any],
    out: TextIO,
    *,
    trace: bool,
    **settings: Any,
) -> None:
    try:
        state = program.run(**given, **settings)
    finally:
        cli.status("")
    document = run_view.document(program, state, cli.note)
    spread = common.is_terminal(out) and not cli.json
    cli.has_data = True
    print(run_view.text(document, spread=spread), file=out, flush=True)
    _tell(cli, state, trace=trace)


def _tell(cli: common.Cli, state: State, *, trace: bool) -> None:
    """On stderr: the tree, the line under it, and where it was kept."""
    if trace:
        run_view.draw(state, cli)
    if common.is_terminal(sys.stderr):
        cli.note(run_view.footer(state))
    if state.saved:
        cli.moved({**state.saved, "head": state.saved["message"]})


def _many(
    cli: common.Cli,
    path: str,
    program: Program,
    given: list[dict[str, Any]],
    out: TextIO,
    *,
    trace: bool,
    **settings: Any,
) -> int:
    """A line for each; how many failed."""
    rows = run_view.Rows(cli, len(given), None if cli.json else out)
    settings["on_wait"] = lambda text: cli.status(text) if text else rows.show()

    def on_done(number: int, state: State) -> None:
        tell = functools.partial(_draw_row, cli, state, number) if trace else None
        rows.add(number, _row(cli, path, program, state), tell)

    try:
        rows.show()
        program.run_batch(given, on_done=on_done, **settings)
    finally:
        cli.status("")
    if cli.json:
        print(json.dumps({"rows": rows.documents}), file=out, flush=True)
    if rows.failed:
        cli.note(f"{rows.failed} of {len(given)} rows failed")
    return rows.failed


def _draw_row(cli: common.Cli, state: State, number: int) -> None:
    cli.note(f"row {number + 1}")
    run_view.draw(state, cli)


def _row(cli: common.Cli, path: str, program: Program, state: State) -> dict[str, Any]:
    if state.error is None:
        return run_view.document(program, state, cli.note)
    return {"error": failure(path, state.error).to_json()}
