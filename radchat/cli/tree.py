"""`radchat tree` and `log`: a session as a picture, and as the path to here."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from radchat.chat.code_block import first_block
from radchat.chat.text import clean
from radchat.chat.transcript import transcript
from radchat.chat.tree_view import render
from radchat.chat.view import shows_markdown
from radchat.cli import common
from radchat.errors import InvalidInput, UsageError

FILTERS = ("default", "user-only", "no-tools", "labeled", "all")


def tree(
    ctx: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF|SESSION]")] = None,
    show_cache: Annotated[
        bool, typer.Option("--show-cache", help="where each message's KV is")
    ] = False,
    lru: Annotated[bool, typer.Option("--lru", help="the order in which KV would go")] = False,
    filter_: Annotated[
        str, typer.Option("--filter", metavar="|".join(FILTERS), help="which messages")
    ] = "default",
    depth: Annotated[
        int | None, typer.Option("--depth", metavar="N", min=1, help="the first N levels")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="whole message ids")] = False,
) -> None:
    """The session as a tree of messages. Never loads a model."""
    cli = common.of(ctx)
    if filter_ not in FILTERS:
        raise UsageError(f"--filter {filter_}: want {', '.join(FILTERS)}")
    cache = show_cache or lru
    asks = cache or cli.json  # in JSON a 0 is a measured one
    result = cli.call("tree", ref=ref, show_cache=asks, lru=asks, filter=filter_, depth=depth)
    if cli.json:
        cli.data(result)
        return
    for line in render(
        result,
        columns=cli.columns,
        cache=cache,
        ids=ids,
        folds=filter_ != "all",
        paint=cli.paint,
    ):
        cli.out(line)


def log(
    ctx: typer.Context,
    ref: Annotated[str | None, typer.Argument(metavar="[REF]")] = None,
    number: Annotated[
        int | None, typer.Option("-n", metavar="N", min=1, help="the last N turns")
    ] = None,
    response: Annotated[
        bool, typer.Option("-r", "--response", help="only the last answer's text")
    ] = False,
    extract: Annotated[
        bool, typer.Option("-x", "--extract", help="only the last answer's first code block")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="the model's own text: no Markdown shown")] = (
        False
    ),
) -> None:
    """The conversation from the start to REF (HEAD when left out)."""
    cli = common.of(ctx)
    result = cli.call("log", ref=ref, n=number)
    messages = result["messages"]
    columns = cli.columns if shows_markdown(cli, raw=raw) else None
    if response or extract:
        text = last_answer(messages)
        if extract:
            block = first_block(text)
            if block is None:
                raise InvalidInput("the last answer has no code block")
            text = block
        if cli.json:
            cli.data({"text": text})
        elif columns is not None and not extract:
            from radchat.chat.markdown import rendered

            cli.out("\n".join(rendered(clean(text).strip("\n"), columns)))
        else:
            cli.out(clean(text).rstrip("\n"))
    elif cli.json:
        cli.data(result)
    else:
        markdown = not common.is_terminal(sys.stdout)
        for line in transcript(messages, markdown=markdown, columns=columns, paint=cli.paint):
            cli.out(line)


def last_answer(messages: list[dict[str, Any]]) -> str:
    answers = [m for m in messages if m["role"] == "assistant"]
    if not answers:
        raise InvalidInput("no answer here yet")
    return str(answers[-1]["text"])
