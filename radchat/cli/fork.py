"""`radchat fork`, `switch` and `branch`: names for messages, and where HEAD is."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from radchat.chat.text import join_surrogates, one_line
from radchat.chat.transcript import branches_listing
from radchat.cli import common
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.talk import talk
from radchat.errors import NotFound, UsageError


def ref_and_prompt(words: list[str]) -> tuple[str | None, str]:
    """`[REF] [PROMPT...]`: an argument with a space in it is the prompt; so is all after REF."""
    if not words:
        return None, ""
    if any(c.isspace() for c in words[0]):
        return None, join_surrogates(" ".join(words))
    return words[0], join_surrogates(" ".join(words[1:]))


@generation_flags
def fork(
    ctx: typer.Context,
    generation: Generation,
    words: Annotated[list[str] | None, typer.Argument(metavar="[REF] [PROMPT...]")] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="the branch's name")] = None,
    new_session: Annotated[
        str | None, typer.Option("--new-session", metavar="[NAME]", help="as a session of its own")
    ] = None,
) -> None:
    """A new branch at REF (HEAD when left out), and go there; with a prompt, ask it there."""
    cli = common.of(ctx)
    ref, prompt = ref_and_prompt(words or [])
    if not prompt:
        generation.refuse("fork without a prompt asks nothing")
    if prompt and new_session is None:
        args = {"kind": "turn", "text": prompt, "at": ref or "HEAD", "n": 1}
        _ask(cli, args | ({"branch": name} if name else {}), generation)
        return
    args = {"ref": ref, "name": name}
    if new_session is not None:
        args["new_session"] = new_session or True
    result = cli.call("fork", **args)
    if prompt:
        _ask(
            cli, {"kind": "turn", "text": prompt, "session": result["session"], "n": 1}, generation
        )
        return
    if cli.json:
        cli.data(result)
        return
    cli.moved(result)
    if result.get("text"):
        cli.note(f"its text, to say again or change: {one_line(result['text'])}")
    cli.note('go on: radchat chat -c, or: radchat ask -c "..."')


def _ask(cli: common.Cli, args: dict[str, Any], generation: Generation) -> None:
    model = choose(cli, generation.model, is_new=False)
    args = {**generation.arguments(), **args}
    args |= {"model": model} if model else {}
    talk(cli, args, form="json" if cli.json else "text", one=False, raw=generation.raw)


def switch(
    ctx: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="REF | -", help="- is the branch before")],
) -> None:
    """Go to a branch or a message."""
    cli = common.of(ctx)
    try:
        result = cli.call("switch", ref=ref)
    except NotFound as error:
        branch = _branch_of(cli, ref)
        if branch is None:
            raise
        typed = shlex.quote(f"{ref}:{branch}")
        raise NotFound(f"{ref} is a session: radchat switch {typed}") from error
    if cli.json:
        cli.data(result)
        return
    cli.moved(result)
    if result.get("text"):
        cli.note(f"its text, to say again or change: {one_line(result['text'])}")
    if result.get("recompute"):
        cli.note(str(result["recompute"]["text"]))


def _branch_of(cli: common.Cli, session: str) -> str | None:
    """The branch to go to in a session of this name; None where there is no such session."""
    asked = {**cli.here(), "session": session}
    try:
        return str(cli.client.call("sessions.show", **asked).get("branch") or "HEAD")
    except NotFound:
        return None


def branch(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME")] = None,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]]")] = None,
    list_: Annotated[bool, typer.Option("-l", "--list", help="list them")] = False,
    rename: Annotated[
        tuple[str, str] | None, typer.Option("-m", "--move", metavar="OLD NEW", help="rename")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option("-d", "--delete", metavar="NAME", help="delete the name")
    ] = None,
    label: Annotated[
        tuple[str, str] | None, typer.Option("--label", metavar="REF TEXT", help="note a message")
    ] = None,
) -> None:
    """List branches; with NAME, make one without going there."""
    cli = common.of(ctx)
    asked = [name is not None, list_, rename is not None, bool(delete), label is not None]
    if sum(asked) > 1:
        raise UsageError("one of NAME, -l, -m, -d and --label at a time")
    result: dict[str, Any]
    if name is not None:
        result = cli.call("branch.create", name=name, ref=ref or "HEAD")
    elif rename is not None:
        result = cli.call("branch.rename", old=rename[0], new=rename[1])
    elif delete:
        result = {"deleted": [cli.call("branch.delete", name=each) and each for each in delete]}
    elif label is not None:
        result = cli.call("branch.label", ref=label[0], text=label[1])
    else:
        result = cli.call("branch.list")
        if not cli.json:
            for line in branches_listing(result["branches"], cli.columns):
                cli.out(line)
    if cli.json:
        cli.data(result)
