"""A search and a vote as a client of a private daemon runs them, with cache and sharing or without.

All told: the algorithm, the socket, the daemon, the engine, and what is stored. *Off* is
``search.open(cache=False)``: every request has a namespace of its own, and n answers are n
requests. Thoughts and answers are as long as they may be (their grammar lets none end before), so
both sides make the same number of tokens; a rating is one token and the end of its turn.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, Self

from benchmarks.cli import Home
from benchmarks.program_language import Texts
from benchmarks.search_counts import Tree, tree_of
from radchat.client import Client
from radchat.engine.request import Ids
from radchat.engine.tokenizer import Tokenizer
from radchat.models import registry
from radchat.paths import Places
from radchat.programs.search.asks import Ask, DaemonAsks, Failed
from radchat.programs.search.grammars import regex
from radchat.programs.search.listener import Silent
from radchat.programs.search.settings import Search
from radchat.programs.search.task import Task
from radchat.programs.search.think import think
from radchat.whereabouts import where
from radchat_sessions.store import Store

DEPTH, BRANCH, BEAM, JUDGES = 3, 5, 5, 3
PROBLEM, THOUGHT = 600, 40  # tokens
SAMPLES, QUESTION, ANSWER = 16, 1000, 48
ENDLESS = regex("[a-z ,.]{2000}")  # cut off where the tokens end
COUNTED = ("steps", "requests", "input_tokens", "cached_tokens", "output_tokens")
MOST_AGAIN = 1.05  # computed, less one a request / what differs


class Run(NamedTuple):
    """``computed``: tokens of prompts."""

    wall_s: float
    steps: int
    requests: int
    input: int
    computed: int
    output: int
    session: str
    is_on: bool


class Ours:
    """A daemon of its own, warm."""

    def __init__(self, model: str, scale: int) -> None:
        self.folder = registry.resolve(Places.from_env(), model).folder
        self._texts, self._scale = Texts(self.folder, scale), scale
        self._home = Home(model)
        self._home.env["RADCHAT_KV_DEVICE"] = "120000tok"
        os.environ.update(self._home.env)
        self._places = Places.from_env()
        self._home.run("daemon", "start")
        self._client = Client.connect(self._places)
        self.runs: list[Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.close()

    # -- two workloads -----------------------------------------------------------------------------

    def think(self, number: int, *, cache: bool) -> Run:
        """Number 0 warms up, one step deep."""
        problem = self._texts.made(PROBLEM, random.Random(f"think {number}")).strip()
        settings = Search(
            branch=BRANCH,
            depth=DEPTH if number else 1,
            beam=BEAM,
            n_eval=JUDGES,
            thought_tokens=self.tokens(THOUGHT),
            seed=number + 2,
        )
        numbers = itertools.count()
        task = Task("fixed", thought=ENDLESS, key=lambda *_: str(next(numbers)))  # none are equal

        def run(asks: DaemonAsks) -> None:
            think(problem, settings, task, asks, listener=Silent())

        return self._timed(run, cache=cache)

    def vote(self, number: int, *, cache: bool) -> Run:
        """What `radchat vote` asks for, before anything is extracted."""
        text = self.question(number)
        extra = {"search": {"number": 1, "problem": text}}
        options = {"temperature": 0.8, "seed": number + 2}
        ask = Ask(None, text, SAMPLES, self.tokens(ANSWER), options, ENDLESS, extra=extra)

        def run(asks: DaemonAsks) -> None:
            (found,) = asks.ask([ask], lambda *_: None)
            if isinstance(found, Failed):
                raise found.error

        return self._timed(run, cache=cache)

    def tokens(self, count: int) -> int:
        return max(2, count // self._scale)

    def question(self, number: int) -> str:
        return self._texts.made(QUESTION, random.Random(f"vote {number}")).strip()

    def question_ids(self, number: int) -> Ids:
        """For those who are asked for ids."""
        return Tokenizer(self.folder).encode_text(self.question(number))

    # -- one run -----------------------------------------------------------------------------------

    def _timed(self, run: Callable[[DaemonAsks], None], *, cache: bool) -> Run:
        self._client.call("cache.clear")
        asked = {"where": where(), "new_session": True, "cache": cache, "dtype": "bf16"}
        before, began = self._counts(), time.perf_counter()
        asks = DaemonAsks.open(self._client, asked, on_notice=_noted, on_wait=lambda _: None)
        try:
            run(asks)
            wall = time.perf_counter() - began
        finally:
            asks.close()
        after = self._counts()
        steps, requests, read, cached, output = (b - a for a, b in zip(before, after, strict=True))
        session = str(asks.opened["session"])
        made = Run(wall, steps, requests, read, read - cached, output, session, cache)
        self.runs.append(made)
        return made

    def _counts(self) -> list[int]:
        stats = self._client.call("cache.stats")
        return [stats.get(name) or 0 for name in COUNTED]

    # -- after all of them -------------------------------------------------------------------------

    def check(self) -> dict[str, Tree]:
        """By session, what its tree holds; the daemon ends. Raises AssertionError where a run
        computed other than it must: everything, or nothing twice; or made other than its pair.
        """
        self._home.run("daemon", "stop")
        store = Store.open(self._places.database)
        try:
            trees = {run.session: tree_of(store, run.session) for run in self.runs}
        finally:
            store.close()
        for on, off in zip(self.runs[::2], self.runs[1::2], strict=True):
            assert on.output == off.output, (on, off)
        for run in self.runs:
            tree = trees[run.session]
            if run.is_on:
                again = (run.computed - run.requests) / tree.asked
                assert again <= MOST_AGAIN, f"{run}: {again:.3f} of {tree}"
            else:
                assert run.computed == run.input, run
        return trees


def _noted(text: str) -> None:
    print(text, file=sys.stderr)
