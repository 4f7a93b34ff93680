"""`radchat chat`, and bare `radchat`: talk. Without a terminal it is one turn, and ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from radchat.chat import keyboard
from radchat.chat.sessions_view import listing
from radchat.chat.text import join_surrogates
from radchat.cli import common, stdin
from radchat.cli.ask import which_session
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.talk import talk
from radchat.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

PICK = 10  # sessions offered by a bare -r


@generation_flags
def chat(
    ctx: typer.Context,
    generation: Generation,
    prompt: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT...]")] = None,
    continue_: Annotated[
        bool, typer.Option("-c", "--continue", help="go on with the current session")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("-r", "--resume", metavar="[ID]", help="go on with a session")
    ] = None,
    new_session: Annotated[
        str | None, typer.Option("--new-session", metavar="NAME", help="name the new session")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="a new branch at this message")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="fetch a first model unasked")] = False,
) -> int | None:
    """Talk. -c goes on with the current session, -r with another, else it is a new one."""
    cli = common.of(ctx)
    talks = common.is_terminal(sys.stdin) and common.is_terminal(sys.stdout) and not cli.json
    if resume == "":
        resume = pick(cli) if talks else resume
    if not talks:
        _one_turn(cli, prompt or [], generation, continue_, resume, at, new_session, yes=yes)
        return None
    target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
    is_new = bool(target.get("new_session"))
    arguments = generation.arguments()
    model = choose(cli, generation.model, is_new=is_new, yes=yes)
    if model:
        arguments["model"] = model
    marks = cli.env.get("TERM", "") not in ("dumb", "")
    # before the slow imports: what is typed meanwhile waits for the prompt
    with keyboard.quiet(marks_pastes=marks):
        from radchat.chat.opening import Start
        from radchat.chat.repl import Chat

        start = Start(
            session=target["session"],
            is_new=is_new,
            name=new_session,
            at=target.get("at"),
            prompt=join_surrogates(" ".join(prompt or [])),
            ephemeral=generation.ephemeral,
            raw=generation.raw,
            arguments=arguments,
        )
        return Chat(cli, start, more=PROGRAMS).run()


def _vote(chat: Chat, rest: str) -> None:
    from radchat.programs.vote_in_chat import vote

    vote(chat, rest)


def _tot(chat: Chat, rest: str) -> None:
    from radchat.cli.tot import tot

    tot(chat, rest)


PROGRAMS = {"vote": _vote, "tot": _tot}  # slash commands that are programs: a chat is below them


def _one_turn(
    cli: common.Cli,
    prompt: list[str],
    generation: Generation,
    continue_: bool,
    resume: str | None,
    at: str | None,
    new_session: str | None,
    *,
    yes: bool,
) -> None:
    text = stdin.compose(prompt, note=cli.note)
    target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
    args = {"kind": "turn", "text": text, "n": 1, **generation.arguments(), **target}
    model = choose(cli, generation.model, is_new=bool(target.get("new_session")), yes=yes)
    args |= {"model": model} if model else {}
    talk(cli, args, form="json" if cli.json else "text", raw=generation.raw)


def pick(cli: common.Cli) -> str:
    """A session chosen from the last few, on a terminal."""
    sessions = cli.call("sessions.list", begun=True, limit=PICK)["sessions"]
    if not sessions:
        raise UsageError("no session to go on with yet: radchat chat")
    head, *lines = listing(sessions, cli.columns)
    print(f"    {head}", file=sys.stderr)
    for number, line in enumerate(lines, 1):
        print(f"{number:>3} {line}", file=sys.stderr)
    sys.stderr.write("which? ")
    sys.stderr.flush()
    said = sys.stdin.readline().strip()
    if said.isdigit() and 0 < int(said) <= len(sessions):
        return str(sessions[int(said) - 1]["id"])
    if not said:
        raise InvalidInput("no session chosen")
    return said
