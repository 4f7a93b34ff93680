"""`radchat what-if`: a branch for each of several texts, answered at once, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from radchat.chat.text import join_surrogates
from radchat.cli import common, stdin
from radchat.cli.choose_model import choose
from radchat.cli.generation import Generation, generation_flags
from radchat.cli.talk import talk
from radchat.errors import InvalidInput, UsageError


@generation_flags
def what_if(
    ctx: typer.Context,
    generation: Generation,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT...]", help="- or none: the lines of stdin")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="REF", help="at this message, not at HEAD")
    ] = None,
    number: Annotated[int, typer.Option("-N", metavar="K", help="K answers to one TEXT")] = 1,
    seed_base: Annotated[
        int | None, typer.Option("--seed-base", metavar="S", help="the first seed; S+1, S+2, ...")
    ] = None,
    stdin_timeout: Annotated[
        float, typer.Option("--stdin-timeout", metavar="S", help="wait for silent stdin so long")
    ] = stdin.TIMEOUT_S,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="do not read stdin")] = False,
) -> None:
    """Answers to several texts at once, a branch each. You stay where you are: switch 2 goes to
    the second. Piped text comes before each TEXT.
    """
    cli = common.of(ctx)
    if number < 1:
        raise UsageError(f"-N {number}: want 1 or more")
    if seed_base is not None and "seed" in generation.sampling():
        raise UsageError("--seed-base and --seed: the base is the first seed, take one of them")
    read = _reader(cli.note, stdin_timeout, no_stdin=no_stdin)
    before, said = compose(texts or [], number, read, note=cli.note, forbidden=no_stdin)
    args: dict[str, Any] = {"kind": "what-if", "texts": said, "n": number}
    args |= {"before": before} if before else {}
    args |= generation.arguments() | ({"at": at} if at else {})
    if seed_base is not None:
        args["options"]["seed"] = seed_base
    model = choose(cli, generation.model, is_new=False)
    args |= {"model": model} if model else {}
    talk(cli, args, form="json" if cli.json else "text", one=False, raw=generation.raw)


def _reader(
    note: Callable[[str], None], timeout_s: float, *, no_stdin: bool
) -> Callable[[bool], str | None]:
    def read(forced: bool) -> str | None:
        if not forced and (no_stdin or not stdin.is_given(0)):
            return None
        return stdin.read(0, note=note, timeout_s=timeout_s)

    return read


def compose(
    words: Sequence[str],
    number: int,
    read: Callable[[bool], str | None],
    *,
    note: Callable[[str], None],
    forbidden: bool = False,
) -> tuple[str, list[str]]:
    """What comes before each text, and the texts: piped text, and the words; else the lines of what
    is piped, or with ``number`` all of it. ``read`` is told whether stdin must be read.
    """
    texts = [join_surrogates(word).strip() for word in words if word != stdin.FORCE]
    forced = stdin.FORCE in words
    if forced and forbidden:
        raise UsageError("`-` reads stdin and --no-stdin forbids it: give one of them")
    if not all(texts):
        raise UsageError("an empty TEXT asks nothing: leave it out")
    piped = read(forced)
    whole = (piped or "").rstrip("\n")  # as `ask` has it: the same text is the same tokens
    before = whole if texts and whole.strip() else ""
    if texts and piped is not None and not before:
        note("stdin was empty: only the words of the command line are sent")
    if not texts:
        lines = [whole.strip("\n")] if number > 1 else whole.split("\n")
        texts = [line.strip() for line in lines if line.strip()]
    if not texts and piped is not None:
        raise InvalidInput("nothing to ask: stdin was empty")
    if not texts:
        raise UsageError('nothing to ask: radchat what-if "TEXT" "TEXT", or a line each by a pipe')
    if number > 1 and len(texts) > 1:
        raise UsageError(
            f"-N {number} is for one TEXT, and here are {len(texts)}: leave out -N, or all but one"
        )
    return before, texts
