"""`radchat think`: a search over thoughts, and the answer written from the best path."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radchat.chat.view import shows_markdown
from radchat.cli import common, stdin
from radchat.cli.ask import which_session
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.searching import (
    FREE,
    Asked,
    Searching,
    check_answer,
    document,
    of_thoughts,
    search_view,
    searching,
    show_answer,
    with_files,
)
from radchat.cli.talk import talk
from radchat.errors import Interrupted, RadchatError, UsageError

if TYPE_CHECKING:
    from radchat.programs.search.think import Outcome

UNSOLVED = 53  # a limit was reached (docs/cli.md, "Exit codes")
FREELY = ("raw", "ephemeral", "max_tokens")  # what may be said of a search that is gone on with


@generation_flags
def think(
    ctx: typer.Context,
    generation: Generation,
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT...]", help="- reads stdin")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="bfs|dfs|beam", help="how the tree is searched (bfs)"),
    ] = None,
    generate: Annotated[
        str | None,
        typer.Option(
            "--generate", metavar="sample|propose", help="k answers, or one that lists k (sample)"
        ),
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option(
            "--evaluate", metavar="value|vote|logprob", help="how thoughts are judged (value)"
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--select", metavar="greedy|sample", help="the best, or drawn by score (greedy)"
        ),
    ] = None,
    branch: Annotated[
        int | None, typer.Option("-k", "--branch", help="next thoughts after a thought (3)")
    ] = None,
    depth: Annotated[
        int | None, typer.Option("-d", "--depth", help="thoughts on a path (3)")
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option("-b", "--beam", help="thoughts kept of a level; dfs: of one's next (2)"),
    ] = None,
    n_eval: Annotated[
        int | None, typer.Option("--n-eval", help="samples of a judgement (3)")
    ] = None,
    stop_score: Annotated[
        float | None, typer.Option("--stop-score", help="a thought with this score ends it")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", help="tokens the model may generate for it, at most")
    ] = None,
    thought_tokens: Annotated[
        int | None, typer.Option("--thought-tokens", help="at most so long a thought (96)")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="game24|FILE", help="its prompts, forms and checker"),
    ] = None,
    resume_search: Annotated[
        str | None,
        typer.Option("--resume", metavar="[s1]", help="go on with the last search, or this one"),
    ] = None,
    continue_: Annotated[
        bool, typer.Option("-c", "--continue", help="in the current session")
    ] = False,
    resume: Annotated[str | None, typer.Option("-r", metavar="ID", help="in this session")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="REF", help="from this message")] = None,
    new_session: Annotated[
        str | None, typer.Option("--new-session", metavar="[NAME]", help="name the new session")
    ] = None,
    stdin_timeout: Annotated[
        float, typer.Option("--stdin-timeout", metavar="S", help="wait for silent stdin so long")
    ] = stdin.TIMEOUT_S,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="do not read stdin")] = False,
) -> int:
    """Search for an answer: thoughts are grown as a tree, judged, and the best gone on from. The
    answer alone is stdout. All of it is kept: switch s1.2 goes to a thought.
    """
    cli = common.of(ctx)
    given = {
        "method": method,
        "generate": generate,
        "evaluate": evaluate,
        "select": select,
        "branch": branch,
        "depth": depth,
        "beam": beam,
        "n_eval": n_eval,
        "stop_score": stop_score,
        "budget": budget,
        "thought_tokens": thought_tokens,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    sampling = generation.sampling()
    settings |= {name: sampling[name] for name in ("temperature", "seed") if name in sampling}
    if resume_search is None:
        words = stdin.compose(
            prompt or [], note=cli.note, timeout_s=stdin_timeout, no_stdin=no_stdin
        )
        target = which_session(cli, continue_=continue_, resume=resume, at=at, new=new_session)
        args = generation.arguments()
        problem = with_files(words, args.pop("files", ()))
        asked = Asked(problem, task or FREE, settings)
        model = choose(cli, generation.model, is_new=bool(target.get("new_session")))
        place = {**args, **target, **({"model": model} if model else {})}
        place["options"] = of_thoughts(sampling)
    else:
        if prompt or task or at or new_session is not None:
            raise UsageError(
                "--resume goes on with a search as it began: leave out PROMPT, --task, --at and "
                "--new-session"
            )
        generation.refuse("a search goes on as it began", *_but(FREELY))
        target = {"session": resume or cli.session_named}
        asked = Asked(settings=settings, resume=resume_search or True)
        place = {"resume": asked.resume, "ephemeral": generation.ephemeral} | target
    return _search(cli, asked, {**cli.here(), **place}, target, generation)


def _but(names: tuple[str, ...]) -> list[str]:
    return [name for name in Generation.__dataclass_fields__ if name not in names]


def _search(
    cli: common.Cli,
    asked: Asked,
    place: Mapping[str, Any],
    target: Mapping[str, Any],
    generation: Generation,
) -> int:
    """The exit code: of a task's search that found what its checker wants, or has none, 0."""
    check_answer(generation.sampling())
    view = search_view(cli)
    with contextlib.ExitStack() as opened:
        try:
            search = opened.enter_context(
                searching(lambda: cli.client, asked, place, view, cli.status)
            )
        except KeyboardInterrupt:  # while the model is loaded
            cli.note("cancelled")
            raise
        try:
            outcome = search.run()
        except KeyboardInterrupt as error:
            line = search.stopped(_again(cli, generation))
            cli.note(line)
            raise _interrupted(cli, search, line) from error
        except RadchatError:
            if search.view.num_thoughts:
                cli.note(search.stopped(_again(cli, generation)))
            raise
        try:
            answer = _answer(cli, search, outcome, target, generation)
        except KeyboardInterrupt as error:  # what is kept of the answer is told
            raise _interrupted(cli, search, "ended by Ctrl+C") from error
    if cli.json:
        cli.data(document(search, outcome, answer))
    return UNSOLVED if search.is_unsolved(outcome) else 0


def _interrupted(cli: common.Cli, search: Searching, line: str) -> BaseException:
    begun = {"session": search.opened["session"], "search": search.name}
    begun["thoughts"] = search.view.num_thoughts
    return Interrupted(line, begun=begun) if cli.json else KeyboardInterrupt()


def _again(cli: common.Cli, generation: Generation) -> str:
    """What goes on with a search that was stopped."""
    where = f" --session {cli.session_named}" if cli.session_named else ""
    return f"radchat think --resume{' --ephemeral' if generation.ephemeral else ''}{where}"


def _answer(
    cli: common.Cli,
    search: Searching,
    outcome: Outcome,
    target: Mapping[str, Any],
    generation: Generation,
) -> Mapping[str, Any]:
    """The answer's body, as `ask --json` has it; written, unless JSON has it."""
    if (known := outcome.answered) is not None:
        if not cli.json:
            renders = shows_markdown(cli, raw=generation.raw)
            show_answer(cli, search, known, renders=renders)
        return {"text": known.text, "message": known.message}
    moved = search.advance(outcome)
    args = {**generation.arguments(), **search.turn(outcome, generation.sampling())}
    args |= {"session": search.opened["session"], "model": search.opened["model"]}
    args |= {key: target[key] for key in ("only_terminal",) if key in target}
    if moved is None and args["kind"] == "turn" and target.get("at"):
        args["at"] = target["at"]
    for name in ("system", "files"):
        args.pop(name, None)  # said above
    raw = generation.raw or "grammar" in args
    return talk(cli, args, form="none" if cli.json else "text", raw=raw).branches[0]
