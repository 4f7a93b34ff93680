"""`radchat ask`: one question, one answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radchat.cli import common, stdin
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.grammar import grammar_argument
from radchat.cli.talk import check_format, end_lines, talk
from radchat.errors import RadchatError, UsageError


@generation_flags
def ask(
    ctx: typer.Context,
    generation: Generation,
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT...]", help="- reads stdin")
    ] = None,
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
    extract: Annotated[
        bool, typer.Option("-x", "--extract", help="only the answer's first code block")
    ] = False,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE|JSON", help="JSON that meets this schema, only"),
    ] = None,
    schema_lenient: Annotated[
        bool,
        typer.Option("--schema-lenient", help="what can't be enforced is only checked afterwards"),
    ] = False,
    regex: Annotated[
        str | None, typer.Option("--regex", metavar="R", help="only what matches, from end to end")
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option("--grammar", metavar="FILE", help="only what it derives: Lark, GBNF"),
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", metavar="TEXT", help="only one of them (repeat)")
    ] = None,
    show_forced: Annotated[
        bool, typer.Option("--show-forced", help="dim the text that the model had no choice in")
    ] = False,
    no_jump: Annotated[
        bool, typer.Option("--no-jump", help="draw that text too, token by token: the same, slower")
    ] = False,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--output-format",
            metavar="text|json|stream-json",
            help="json as --json; or a line an event",
        ),
    ] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="print it when whole")] = False,
    stdin_timeout: Annotated[
        float, typer.Option("--stdin-timeout", metavar="S", help="wait for silent stdin so long")
    ] = stdin.TIMEOUT_S,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="do not read stdin")] = False,
) -> None:
    """One question, one answer. Piped text comes before the words, a blank line between."""
    cli = common.of(ctx)
    form = check_format(cli, output_format)
    try:
        held = grammar_argument(
            schema=schema, lenient=schema_lenient, regex=regex, grammar=grammar, choice=choice
        )
        if held is None and (show_forced or no_jump):
            raise UsageError(
                "--show-forced and --no-jump are about what a grammar forces: they go with "
                "--schema, --regex, --grammar or --choice"
            )
        text = stdin.compose(
            prompt or [], note=cli.note, timeout_s=stdin_timeout, no_stdin=no_stdin
        )
        target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
        args = {"kind": "turn", "text": text, "n": 1, **generation.arguments(), **target}
        model = choose(cli, generation.model, is_new=bool(target.get("new_session")))
        args |= {"model": model} if model else {}
        args |= {"grammar": held, "jump": not no_jump} if held else {}
    except RadchatError as error:
        if form == "stream-json":
            end_lines(error)
        raise
    raw = generation.raw or held is not None  # what is held to a form is shown in it
    talk(
        cli,
        args,
        form=form,
        streams=not no_stream,
        extract=extract,
        raw=raw,
        show_forced=show_forced,
    )


def which_session(
    cli: common.Cli,
    *,
    continue_: bool,
    resume: str | None,
    at: str | None,
    new: str | None,
) -> dict[str, Any]:
    """The session arguments of a one-shot turn; without any of the flags it makes a session."""
    if resume == "":
        raise UsageError("-r wants a session here: radchat sessions ls shows them, -c is the last")
    going_on = continue_ or resume is not None or at is not None or cli.session is not None
    if new is not None and going_on:
        raise UsageError("--new-session makes a session: leave out -c, -r, --at and --session")
    if not going_on:
        return {"session": None, "new_session": new or True, "only_terminal": True}
    if resume is not None and ":" in resume and at is None:  # SESSION:REF
        resume, _, at = resume.partition(":")
    target: dict[str, Any] = {"session": resume or cli.session_named}
    return target | ({"at": at} if at else {})
