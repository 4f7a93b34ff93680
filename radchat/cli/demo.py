"""`radchat demo`: a tour in a minute on a real model; every command is shown as one would type it.

Nothing here is made up: the answers are the model's, the numbers those of the footer. The session
stays, so that one can go on with it.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat.chat.footer import count, footer, seconds, share
from radchat.chat.text import clean, one_line
from radchat.chat.tree_view import render
from radchat.chat.view import end_of, progress
from radchat.cli import common, restart
from radchat.cli.choose_model import choose
from radchat.errors import RadchatError, from_json
from radchat.whereabouts import where

STORY = Path(__file__).with_name("demo_story.md")
SYSTEM = "You answer in one short sentence."
MAX_TOKENS = 32
FIRST = "What is the name of the ferry?"
SECOND = "Who is its captain?"
FORKS = (
    ("colour", "What colour is the ferry painted?"),
    ("engineer", "Who is the engineer?"),
    ("flood", "By how many metres did the water rise?"),
)
LAST = "How old is the captain?"


def demo(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="fetch a model if none is here")] = False,
) -> None:
    """A tour in a minute, on a real model."""
    cli = common.of(ctx)
    tour = _Tour(cli, choose(cli, None, is_new=True, yes=yes))
    tour.run()
    if cli.json:
        cli.data(tour.result())


class _Tour:
    def __init__(self, cli: common.Cli, model: str | None) -> None:
        self._cli, self._model = cli, model
        self._session = ""
        self._name = ""
        self._answers: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def run(self) -> None:
        self._title("Two turns. The second reuses what the first computed.")
        name = f"demo-{time.strftime('%H%M%S')}"
        self._ask(
            f"ask --new-session {name} -s {shlex.quote(SYSTEM)} -f {STORY.name}",
            FIRST,
            new_session=name,
            system=SYSTEM,
            files=[{"name": STORY.name, "text": STORY.read_text(encoding="utf-8")}],
        )
        self._ask("ask -c", SECOND)
        self._title("Three forks at the same point. Each computes only its own words.")
        for name, question in FORKS:
            self._ask(f"fork 2 -n {name}", question, at="2", branch=name)
            self._cli.client.call("switch", where=where(), session=self._session, ref="main")
        self._title("The tree, and where each message's KV is.")
        self._tree()
        self._restart()
        self._ask("ask -c", LAST)
        self._sum_up()

    # -- steps -----------------------------------------------------------------------------------

    def _ask(self, command: str, question: str, **args: Any) -> None:
        self._command(f"radchat {command} {shlex.quote(question)}")
        if self._session:
            args["session"] = self._session
        answer: dict[str, Any] = {}
        events = self._cli.client.stream(
            "generate",
            where=where(),
            kind="turn",
            text=question,
            model=self._model,
            options={"temperature": 0.0, "max_tokens": MAX_TOKENS},
            **args,
        )
        for event in events:
            if event.name == "delta":
                self._write(clean(event.data["text"]))
            elif event.name == "notice":
                self._say(f"({event.data['text']})")
            elif event.name == "progress":
                self._cli.status(progress(event.data))
            elif event.name == "error":
                raise from_json(event.data)
            elif event.name == "done":
                answer = event.data
        if not answer:
            raise RadchatError("the daemon ended in mid-answer: see radchat daemon logs")
        self._session, self._name = answer["session"], answer["name"]
        first = answer["branches"][0]
        told = {key: answer.get(key) for key in ("saved_s", "why")}
        self._answers.append({"question": question, **first, **told})
        self._write("\n")
        self._say(
            footer(
                first,
                context=answer["context"],
                **told,
                columns=self._cli.columns,
            )
        )

    def _tree(self) -> None:
        self._command("radchat tree --show-cache")
        tree = self._cli.client.call(
            "tree", where=where(), session=self._session, show_cache=True, lru=True
        )
        for line in render(tree, columns=self._cli.columns or 100, cache=True):
            self._say(line)

    def _restart(self) -> None:
        why_lost = restart.persist_off(self._cli)
        if why_lost is None:
            then = "The words and their KV are on disk: the next answer restores them."
        else:
            then = f"The words are on disk. {one_line(why_lost)}; it is computed again."
        self._title(f"A restart. {then}")
        self._command("radchat daemon restart")
        why_not = restart.why_not(self._cli)
        if why_not is not None:
            self._say(f"(skipped: {why_not})")
            return
        took = restart.restart(self._cli)
        self._say(f"stopped and started again in {seconds(took)}")
        self._tree()
        self._load()

    def _load(self) -> None:
        """So that the next answer's first token is about its prompt, not the weights."""
        self._command("radchat models load")
        began = time.monotonic()
        stream = self._cli.client.stream("models.load", where=where(), model=self._model)
        done = end_of(stream, self._say, self._cli.status)
        took = seconds(time.monotonic() - began)
        self._say(f"loaded {one_line(done['model'])} {done['dtype']} in {took}")

    def _sum_up(self) -> None:
        read = sum(answer["usage"]["input_tokens"] for answer in self._answers)
        cached = sum(answer["usage"]["cached_input_tokens"] for answer in self._answers)
        self._title("What it came to")
        disk = sum(answer["cache"]["disk"] for answer in self._answers)
        self._say(
            f"{len(self._answers)} answers from prompts of {count(read)} tokens in all, of which "
            f"{count(cached)} ({share(cached, read)}) were not computed again"
            f"{f', {count(disk)} of them from disk' if disk else ''}; "
            f"{seconds(time.monotonic() - self._began)} altogether"
        )
        self._say(f"go on: radchat chat -r {self._name}")

    def result(self) -> Mapping[str, Any]:
        return {"session": self._session, "name": self._name, "answers": self._answers}

    # -- showing ---------------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self._say("")
        self._say(self._cli.paint(text, "bold"))

    def _command(self, line: str) -> None:
        self._say(f"\n$ {line}")

    def _say(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        if not self._cli.json:
            self._cli.status("")
            sys.stdout.write(text)
            sys.stdout.flush()
