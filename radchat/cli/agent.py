"""`radchat agent`: a model with tools, in this folder, under your permission."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radchat.chat import keyboard
from radchat.chat.text import clean
from radchat.cli import common, stdin
from radchat.cli.ask import which_session
from radchat.cli.chat import pick
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.talk import check_format, end_lines
from radchat.cli.tries import TriesAsked, check_flags, tried
from radchat.errors import (
    ApprovalNeeded,
    Interrupted,
    InvalidInput,
    LimitReached,
    RadchatError,
    ToolFailed,
)

if TYPE_CHECKING:
    from radchat.agent.lines import JsonLines, LogLines
    from radchat.agent.loop import Ended
    from radchat.agent.steps import DaemonSteps

MAX_TURNS = 50
ERRORS: dict[str, type[RadchatError]] = {
    "turns": LimitReached,
    "tokens": LimitReached,
    "repeated": LimitReached,
    "unreadable": ToolFailed,
    "tool": ToolFailed,
    "approval": ApprovalNeeded,
}


@generation_flags
def agent(
    ctx: typer.Context,
    generation: Generation,
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT...]", help="- reads stdin")
    ] = None,
    print_: Annotated[
        bool, typer.Option("-p", "--print", help="one task, and only its last words on stdout")
    ] = False,
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="A,B", help="only these tools")
    ] = None,
    allowed_tools: Annotated[
        list[str] | None,
        typer.Option("--allowed-tools", metavar="RULE", help='e.g. "shell(git status:*)" (repeat)'),
    ] = None,
    permission_mode: Annotated[
        str | None,
        typer.Option(
            "--permission-mode",
            metavar="MODE",
            help="default, acceptEdits, plan, dontAsk, bypassPermissions",
        ),
    ] = None,
    yolo: Annotated[
        bool, typer.Option("-y", "--yolo", help="ask for nothing (bypassPermissions)")
    ] = False,
    mcp_config: Annotated[
        Path | None,
        typer.Option("--mcp-config", metavar="FILE", help="more MCP servers, as in mcp.json"),
    ] = None,
    no_sandbox: Annotated[
        bool, typer.Option("--no-sandbox", help="commands run with all your rights")
    ] = False,
    max_turns: Annotated[
        int, typer.Option("--max-turns", metavar="N", help="steps of the model, at most")
    ] = MAX_TURNS,
    tries: Annotated[
        int | None,
        typer.Option("--tries", metavar="K", help="K tries side by side, each in a copy"),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="CMD", help="the first try where CMD exits 0 is kept"),
    ] = None,
    continue_: Annotated[
        bool, typer.Option("-c", "--continue", help="go on with the current session")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("-r", "--resume", metavar="[ID]", help="go on with a session")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="a new branch at this message")
    ] = None,
    new_session: Annotated[
        str | None, typer.Option("--new-session", metavar="[NAME]", help="name the new session")
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option("--output-format", metavar="text|json|stream-json", help="with -p"),
    ] = None,
    stdin_timeout: Annotated[
        float, typer.Option("--stdin-timeout", metavar="S", help="wait for silent stdin so long")
    ] = stdin.TIMEOUT_S,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="do not read stdin")] = False,
) -> int:
    """A model that works in this folder: it reads, searches, edits and runs commands, in a sandbox
    and under your permission. Each step is a message: one can go back to any.
    """
    from radchat.agent.setting_up import Asked, mode_of

    cli = common.of(ctx)
    form = check_format(cli, output_format)
    talks = common.is_terminal(sys.stdin) and common.is_terminal(sys.stdout) and not cli.json
    is_open = talks and not print_ and form == "text"
    if resume == "" and is_open:
        resume = pick(cli)
    try:
        asked = Asked(
            mode=mode_of(permission_mode, yolo=yolo),
            allowed=allowed_tools or (),
            no_sandbox=no_sandbox,
            is_ephemeral=generation.ephemeral,
            mcp_config=mcp_config,
        )
        check_flags(tries, check, can_ask=is_open)
        if max_turns < 1:
            raise InvalidInput(f"--max-turns: want 1 or more (got {max_turns})", field="max_turns")
        names = (
            None if tools is None else [name.strip() for name in tools.split(",") if name.strip()]
        )
        target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
        is_new = bool(target.get("new_session"))
        text = stdin.compose(
            prompt or [],
            note=cli.note,
            timeout_s=stdin_timeout,
            no_stdin=no_stdin,
            is_optional=is_open or not is_new or tries is not None,
        )
        args = {**generation.arguments(), **target}
        model = choose(cli, generation.model, is_new=is_new)
        args |= {"model": model} if model else {}
    except RadchatError as error:
        if form == "stream-json":
            end_lines(error)
        raise
    assert print_ in (True, False)
    if tries is not None:
        wanted = TriesAsked(tries, check, max_turns, form, is_open, yolo)
        return tried(cli, text, args, asked, names, wanted)
    if is_open:
        return _talked(cli, text, target, generation, model, asked, names, max_turns)
    return _printed(cli, text, args, asked, names, max_turns, form)


def _talked(
    cli: common.Cli,
    text: str,
    target: dict[str, Any],
    generation: Generation,
    model: str | None,
    asked: Any,
    names: Sequence[str] | None,
    max_turns: int,
) -> int:
    """At a terminal: as a chat."""
    marks = cli.env.get("TERM", "") not in ("dumb", "")
    with keyboard.quiet(marks_pastes=marks):
        from radchat.agent.setting_up import Place
        from radchat.agent.terminal.agent_chat import AgentChat
        from radchat.agent.tools.registry import choose as choose_tools
        from radchat.chat.opening import Start

        arguments = generation.arguments() | ({"model": model} if model else {})
        new = target.get("new_session")
        start = Start(
            session=target["session"],
            is_new=bool(new),
            name=new if isinstance(new, str) else None,
            at=target.get("at"),
            prompt=text,
            ephemeral=generation.ephemeral,
            raw=generation.raw,
            arguments=arguments,
        )
        place = Place.open(asked, cli.places, cli.env, cli.note)
        try:
            more = place.start_servers(asked, cli.places, cli.env)
            tools = choose_tools(names, more, can_ask=True)
            return AgentChat(cli, start, place, tools, max_turns).run()
        finally:
            place.close()


def _printed(
    cli: common.Cli,
    text: str,
    args: dict[str, Any],
    asked: Any,
    names: Sequence[str] | None,
    max_turns: int,
    form: str,
) -> int:
    """One task without anybody to ask; its last words on stdout."""
    from radchat.agent.lines import JsonLines, LogLines
    from radchat.agent.loop import Agent, Bounds
    from radchat.agent.prompt import SYSTEM, facts
    from radchat.agent.setting_up import Place
    from radchat.agent.steps import DaemonSteps
    from radchat.agent.tools.registry import choose as choose_tools

    lines = JsonLines(sys.stdout) if form == "stream-json" else None
    listener: JsonLines | LogLines = lines or LogLines(cli.note, cli.status, cli.quiet)
    place = Place.open(asked, cli.places, cli.env, cli.note)
    try:
        more = place.start_servers(asked, cli.places, cli.env)
        tools = choose_tools(names, more, can_ask=False)
        if args.get("new_session"):
            args.setdefault("system", SYSTEM)
        steps = DaemonSteps(cli.client, {**cli.here(), **args}, list(tools.values()))
        steps.session = args.get("session") if not args.get("new_session") else None
        agent_ = Agent(
            steps, tools, place.judge, listener, place.open_kept, bounds=Bounds(max_turns)
        )
        try:
            ended = agent_.turn(text, facts(place.workspace.root) if text else "")
        finally:
            agent_.close()
    except BaseException as error:
        if lines is not None and isinstance(error, RadchatError):
            end_lines(error)
        raise
    finally:
        place.close()
    return _told(cli, ended, steps, form, lines)


def _told(
    cli: common.Cli, ended: Ended, steps: DaemonSteps, form: str, lines: JsonLines | None
) -> int:
    """The answer, or the one document; the exit code."""
    kind = ERRORS.get(ended.reason)
    error = None if kind is None else kind(ended.why)
    if ended.reason == "interrupted":
        error = Interrupted("ended by Ctrl+C")
    if form == "text":
        if error is not None:
            cli.note(f"{steps.name}: radchat agent -p -c goes on")
            raise KeyboardInterrupt if isinstance(error, Interrupted) else error
        print(clean(ended.text) if common.is_terminal(sys.stdout) else ended.text)
        return 0
    body = document(ended, steps, error)
    if lines is not None:
        if error is not None:
            lines.line("error", error.to_json())
        lines.line("result", {"is_error": error is not None, **body})
    else:
        cli.data(body)
    return 0 if error is None else error.exit_code


def document(ended: Ended, steps: DaemonSteps, error: RadchatError | None) -> dict[str, Any]:
    """The shape of `agent -p --output-format json`."""
    return {
        "result": ended.text,
        "session": steps.session,
        "name": steps.name,
        "message": ended.message,
        "branch": ended.branch,
        "turns": ended.turns,
        "ended": ended.reason,
        "usage": ended.usage,
        "cache": ended.cache,
        "permission_denials": ended.denials,
        **({} if error is None else {"error": error.to_json()}),
    }
