"""``radchat serve``: the OpenAI-compatible API on TCP, as long as this command runs."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from radchat.chat.text import clean
from radchat.cli.common import of
from radchat.errors import Unreachable

PORT = 8765  # none of those that other local servers have (docs/cli.md)


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option("--host", help="the address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: a free one; it is printed")] = PORT,
    api_key: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="K", help="another key, apart from yours (repeat)"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="a name it is asked by (repeat)"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="URL", help="pages that may ask it (repeat)"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="load it first")
    ] = None,
) -> None:
    """An OpenAI-compatible API over the daemon's cache; ends with this command."""
    cli = of(ctx)
    if model is not None:
        with cli.client.stream("models.load", model=model) as loading:
            for event in loading:
                if event.name == "progress":
                    cli.status(f"loading {event.data.get('done', 0)}%")
                elif event.name == "notice":
                    cli.note(event.data["text"])
        cli.status("")
    asked: dict[str, Any] = {"host": host, "port": port}
    asked |= {"keys": api_key or [], "hosts": allow_host or [], "origins": allow_origin or []}
    with cli.client.stream("serve", **asked) as events:
        for event in events:
            if event.name == "listening":
                _tell(cli, event.data)
    raise Unreachable("the daemon has ended, and the API with it")


def _tell(cli: Any, told: dict[str, Any]) -> None:
    if cli.json:
        cli.data(told)
    else:
        print(clean(told["url"]), flush=True)
    if not told["is_local"]:
        cli.note("no TLS: others on the way can read along; put a proxy that has it before it")
    cli.note(f"key: in {told['key_file']}; Ctrl+C closes it")
    if not cli.quiet:  # whole, however narrow the terminal: a line that is broken can't be pasted
        url, file = clean(told["url"]), shlex.quote(clean(told["key_file"]))
        line = f"export OPENAI_BASE_URL={url} OPENAI_API_KEY=$(cat {file})"
        print(line, file=sys.stderr, flush=True)
