"""`radchat vote`: many answers to one question, and the one that most of them give."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radchat.chat.text import clean
from radchat.cli import common, stdin
from radchat.cli.ask import which_session
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.grammar import grammar_argument
from radchat.cli.talk import continues, follow, how_shown
from radchat.errors import UsageError

if TYPE_CHECKING:
    from radchat.programs.extracting import Extraction
    from radchat.programs.vote_view import VoteView


@generation_flags
def vote(
    ctx: typer.Context,
    generation: Generation,
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT...]", help="- reads stdin")
    ] = None,
    number: Annotated[int, typer.Option("-N", metavar="K", help="so many answers")] = 16,
    extract: Annotated[
        str | None,
        typer.Option(
            "--extract",
            metavar="REGEX|json:PATH|last-number|last-line",
            help="what of a text is its answer; else all of it",
        ),
    ] = None,
    early_stop: Annotated[
        bool, typer.Option("--early-stop", help="stop the rest when they can't change who wins")
    ] = False,
    show_all: Annotated[bool, typer.Option("--show-all", help="every text, on stderr")] = False,
    continue_: Annotated[
        bool, typer.Option("-c", "--continue", help="go on with the current session")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("-r", "--resume", metavar="ID", help="go on with this session")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="a new branch at this message")
    ] = None,
    new_session: Annotated[
        str | None, typer.Option("--new-session", metavar="[NAME]", help="name the new session")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE|JSON", help="each is JSON that meets this schema"),
    ] = None,
    schema_lenient: Annotated[
        bool,
        typer.Option("--schema-lenient", help="what can't be enforced is only checked afterwards"),
    ] = False,
    regex: Annotated[
        str | None, typer.Option("--regex", metavar="R", help="each matches, from end to end")
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option("--grammar", metavar="FILE", help="each is what it derives: Lark, GBNF"),
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", metavar="TEXT", help="only one of them (repeat)")
    ] = None,
    no_jump: Annotated[
        bool, typer.Option("--no-jump", help="draw also what the form decides: the same, slower")
    ] = False,
    stdin_timeout: Annotated[
        float, typer.Option("--stdin-timeout", metavar="S", help="wait for silent stdin so long")
    ] = stdin.TIMEOUT_S,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="do not read stdin")] = False,
) -> None:
    """Many answers to one question, from one reading of it, and the one that most of them give:
    that alone is stdout. You go on from the first that gave it; the others have no name.
    """
    from radchat.programs.extracting import extraction

    cli = common.of(ctx)
    if number < 1:
        raise UsageError(f"-N {number}: want 1 or more")
    found = extraction(extract)
    held = grammar_argument(
        schema=schema, lenient=schema_lenient, regex=regex, grammar=grammar, choice=choice
    )
    if held is None and no_jump:
        raise UsageError("--no-jump goes with --schema, --regex, --grammar or --choice")
    text = stdin.compose(prompt or [], note=cli.note, timeout_s=stdin_timeout, no_stdin=no_stdin)
    target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
    args: dict[str, Any] = {"kind": "turn", "text": text, "n": number, "named": False}
    args |= {**generation.arguments(), **target}
    if number > 1 and args["options"].get("temperature") == 0:
        cli.note(f"at temperature 0 all {number} answers are the same")
    model = choose(cli, generation.model, is_new=bool(target.get("new_session")))
    args |= {"model": model} if model else {}
    args |= {"grammar": held, "jump": not no_jump} if held else {}
    view = _view(cli, args, found, early_stop=early_stop, show_all=show_all, raw=generation.raw)
    form = "json" if cli.json else "text"
    answer = follow(cli, {**cli.here(), **args}, view, form)
    winner = view.winner()
    try:
        moved = _advance(cli, view)
    finally:  # an answer that was found is told, whatever became of HEAD
        if form == "text":
            print(clean(winner.answer), flush=True)
    _tell(cli, moved, is_elsewhere=at is not None)
    if form == "json":
        cli.data({**view.document(moved), "warnings": answer.warnings})


def _view(
    cli: common.Cli,
    args: Mapping[str, Any],
    found: Extraction,
    *,
    early_stop: bool,
    show_all: bool,
    raw: bool,
) -> VoteView:
    from radchat.chat.many import shows_columns
    from radchat.chat.view import Answer
    from radchat.programs.vote_view import VoteView

    form = "json" if cli.json else "text"
    is_shown = form == "text" and not cli.quiet
    on_terminal = common.is_terminal(sys.stderr)
    shown = how_shown(cli, form, raw=raw)
    shown |= {"out": sys.stderr, "shows_text": form == "text" and show_all}
    shown["renders"] = shown["renders"] and on_terminal
    return VoteView(
        **shown,
        answer=Answer(stays=True),
        continues=continues(args),
        extraction=found,
        stops_early=early_stop,
        shows_table=is_shown,
        shows_screen=is_shown and shows_columns(cli),
        cancel=lambda **which: cli.client.call("cancel", **which),
        width=lambda: cli.error_columns() if on_terminal else None,
        paints_out=cli.paints(sys.stdout),
    )


def _advance(cli: common.Cli, view: VoteView) -> dict[str, Any] | None:
    """HEAD goes on to the message that won; None where nothing of it could be saved."""
    init, message = view.answer.init, view.first(view.winner()).message
    if message is None:
        return None
    return cli.client.call(
        "branch.advance",
        where=cli.here()["where"],
        session=init["session"],
        message=message,
        expected=init["head"]["message"],
    )


def _tell(cli: common.Cli, moved: dict[str, Any] | None, *, is_elsewhere: bool) -> None:
    """Where one is now. ``is_elsewhere``: asked for at another place, so that it is a branch of
    its own.
    """
    if moved is None:
        cli.note("the answer that won is not saved: HEAD stays where it was")
        return
    if moved["made"] and not is_elsewhere:
        cli.note(f"HEAD has moved on: this answer is on a branch of its own, {moved['made']}")
    if not cli.json:
        cli.moved(moved)
