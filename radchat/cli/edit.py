"""`radchat undo`, `redo`, `retry`, `edit`, `continue`: siblings and steps; nothing is deleted."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from radchat.chat.editor import in_editor
from radchat.chat.text import one_line
from radchat.cli import common, stdin
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.talk import talk
from radchat.errors import InvalidInput, UsageError


def undo(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(metavar="[N]", min=1, help="how many turns")] = 1,
) -> None:
    """Go back N turns. They stay in the tree."""
    _step(common.of(ctx), "undo", n=number)


def redo(ctx: typer.Context) -> None:
    """Take back the last undo."""
    _step(common.of(ctx), "redo")


def _step(cli: common.Cli, method: str, **args: Any) -> None:
    result = cli.call(method, **args)
    if cli.json:
        cli.data(result)
        return
    cli.moved(result)
    if result.get("text"):
        cli.note(f"taken back: {one_line(result['text'])}")


@generation_flags
def retry(
    ctx: typer.Context,
    generation: Generation,
    ref: Annotated[
        str | None, typer.Argument(metavar="[REF]", help="the turn to answer again")
    ] = None,
    number: Annotated[int, typer.Option("-N", metavar="K", help="K new answers")] = 1,
) -> None:
    """Another answer to the last turn, beside the first."""
    if number < 1:
        raise UsageError(f"-N {number}: want 1 or more")
    args: dict[str, Any] = {"kind": "retry", "n": number}
    generation.refuse("retry says the same again", "system", "file")
    _again(common.of(ctx), args | ({"ref": ref} if ref else {}), generation, one=False)


@generation_flags
def edit(
    ctx: typer.Context,
    generation: Generation,
    ref: Annotated[str, typer.Argument(metavar="REF", help="a turn: its number or message")],
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT...]", help="else your editor opens")
    ] = None,
) -> None:
    """Say an earlier turn differently: a sibling of it, answered anew."""
    cli = common.of(ctx)
    if text or stdin.is_given(0):
        said = stdin.compose(text or [], note=cli.note)
    else:
        said = _edited(cli, ref)
    _again(cli, {"kind": "edit", "ref": ref, "text": said, "n": 1}, generation, one=True)


@generation_flags
def continue_(
    ctx: typer.Context,
    generation: Generation,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]")] = None,
) -> None:
    """Go on with an answer that was cut off, exactly where it ended."""
    generation.refuse("continue goes on with what is said", "system", "file", "think")
    args: dict[str, Any] = {"kind": "continue", "n": 1}
    _again(common.of(ctx), args | ({"ref": ref} if ref else {}), generation, one=True)


def _again(cli: common.Cli, args: dict[str, Any], generation: Generation, *, one: bool) -> None:
    model = choose(cli, generation.model, is_new=False)
    was = None
    if args["kind"] in ("retry", "edit") and not (cli.json or cli.quiet):
        log = cli.call("log", n=1, **({"ref": args["ref"]} if "ref" in args else {}))
        was = {"branch": log["branch"], "message": log["head"]}
    args = {**generation.arguments(), **args} | ({"model": model} if model else {})
    form = "json" if cli.json else "text"
    talk(cli, args, form=form, one=one, was=was, raw=generation.raw)


def _edited(cli: common.Cli, ref: str) -> str:
    """The turn's text, out of the user's editor."""
    if not (common.is_terminal(sys.stdin) and common.is_terminal(sys.stdout)):
        raise UsageError("no terminal for an editor: give the new text after REF, or pipe it in")
    turns = [m for m in cli.call("log", ref=ref)["messages"] if m["role"] == "user"]
    if not turns:
        raise InvalidInput(f"{ref} is no turn of yours")
    before = str(turns[-1]["text"])
    after = in_editor(before, cli.env)
    if not after.strip() or after == before:
        raise InvalidInput("nothing was changed: no turn was made")
    return after
