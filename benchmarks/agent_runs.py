"""A trace of an agent's steps as its command runs them, through a private daemon and its socket.

The task and the results are given, of lengths that tools' results have; calls are the model's own,
one a step, in the real tools' schemas with every text bounded, so that they end. No tool is run.
After the steps comes what other agents pay for: back to an early step, two steps from there, and on
at the end as if nothing had been.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from benchmarks.cli import Home
from benchmarks.program_language import Texts
from radchat.agent.lines import LogLines
from radchat.agent.prompt import SYSTEM
from radchat.agent.steps import DaemonSteps
from radchat.agent.tools.registry import choose
from radchat.agent.types import Ask, Result, Step
from radchat.client import Client
from radchat.engine.request import Ids
from radchat.models import registry
from radchat.paths import Places
from radchat.whereabouts import where
from radchat_sessions.store import Store

RESULTS = (60, 150, 400, 40, 250, 300)  # tokens: list, grep, read_file, edit, shell, read_file …
STEPS, BACK_TO, BRANCH_STEPS = 20, 8, 2
CHARACTERS, MOST = 32, 96  # of a text in a call; tokens of an answer
PARTS = ("first", "steps", "back", "end")


class Took(NamedTuple):
    """A step. ``computed``: tokens of its prompt."""

    part: str
    input: int
    computed: int
    output: int
    wall_s: float
    calls: int


@dataclass(frozen=True)
class Asked:
    """A step as ids: what follows the end of ``base``, and how much was said to it."""

    part: str
    base: int | None  # an earlier step; None: nothing
    tail: Ids
    output: int


@dataclass
class Trace:
    session: str
    took: list[Took] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    bases: list[int | None] = field(default_factory=list)


@dataclass(frozen=True)
class Bounded:
    """A tool whose texts are short; it is never run."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def bounded() -> list[Any]:
    return [
        Bounded(tool.name, tool.description, _short(tool.parameters))
        for tool in choose(None, can_ask=False).values()
    ]


def _short(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_short(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    least = {"maxLength": CHARACTERS} if schema.get("type") == "string" else {}
    return {**{key: _short(value) for key, value in schema.items()}, **least}


class Ours:
    """A daemon of its own, warm."""

    def __init__(self, model: str, num_steps: int) -> None:
        self.folder = registry.resolve(Places.from_env(), model).folder
        self.num_steps = num_steps
        self._texts = Texts(self.folder, 1)
        self._home = Home(model)
        self._home.env["RADCHAT_KV_DEVICE"] = "40000tok"
        self._home.env["RADCHAT_KV_DISK"] = "0"  # what is cleared is gone
        os.environ.update(self._home.env)
        self._places = Places.from_env()
        self._home.run("daemon", "start")
        self._client = Client.connect(self._places)
        self._silent = LogLines(_nothing, is_quiet=True)
        self.traces: list[Trace] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.close()

    def run(self, number: int, *, cache: bool) -> Trace:
        """Off: nothing is left of the cache when a step begins. On: an earlier trace is there."""
        self._dice = random.Random(f"agent {number}")
        steps = self._steps({"new_session": True, "system": SYSTEM})
        ask = Ask(self._texts.made(60, self._dice), facts="Today is Monday.")
        trace = Trace("")
        lengths = itertools.cycle(RESULTS)
        last = self._step(trace, steps, ask, "first", None, cache=cache)
        kept = [last]
        for _ in range(self.num_steps - 1):
            ask = self._results(last, next(lengths))
            last = self._step(trace, steps, ask, "steps", len(kept) - 1, cache=cache)
            kept.append(last)
        trace.session = str(steps.session)
        back = min(BACK_TO, self.num_steps) - 1
        base, other = back, kept[back]
        steps = self._at(trace, other)
        for _ in range(BRANCH_STEPS):
            ask = self._results(other, next(lengths))
            other = self._step(trace, steps, ask, "back", base, cache=cache)
            base = len(trace.took) - 1
        steps = self._at(trace, last)
        ask = self._results(last, next(lengths))
        self._step(trace, steps, ask, "end", len(kept) - 1, cache=cache)
        self.traces.append(trace)
        return trace

    def _steps(self, place: Mapping[str, Any]) -> DaemonSteps:
        options = {"temperature": 0, "max_tokens": MOST, "stop": ["\n<tool_call>"]}  # one call
        asked = {"where": where(), "dtype": "bf16", "tool_choice": "required", "options": options}
        return DaemonSteps(self._client, {**asked, **place}, bounded())

    def _at(self, trace: Trace, step: Step) -> DaemonSteps:
        return self._steps({"session": trace.session, "at": step.message})

    def _results(self, step: Step, length: int) -> Ask:
        """So many tokens for all of its calls."""
        if not step.calls:  # it was cut off in its first
            return Ask(self._texts.made(length, self._dice))
        each = max(1, length // len(step.calls))
        return Ask(
            results=tuple(
                Result(call.id, call.name, self._texts.made(each, self._dice))
                for call in step.calls
            )
        )

    def _step(
        self,
        trace: Trace,
        steps: DaemonSteps,
        ask: Ask,
        part: str,
        base: int | None,
        *,
        cache: bool,
    ) -> Step:
        if not cache:
            self._client.call("cache.clear")
        began = time.perf_counter()
        step = steps.step(ask, self._silent)
        wall = time.perf_counter() - began
        usage, found = step.usage, step.cache
        row = (usage["input_tokens"], found["computed"], usage["output_tokens"])
        trace.took.append(Took(part, *row, wall, len(step.calls)))
        trace.messages.append(str(step.message))
        trace.bases.append(base)
        return step

    # -- after all of them -------------------------------------------------------------------------

    def asked(self) -> list[list[Asked]]:
        """By trace, from the ids that were stored; the daemon ends. Raises AssertionError where a
        prompt did not begin with all of its base but the last id, which no step had computed.
        """
        self._home.run("daemon", "stop")
        store = Store.open(self._places.database)
        try:
            return [_asked(store, trace) for trace in self.traces]
        finally:
            store.close()


def _asked(store: Store, trace: Trace) -> list[Asked]:
    of = {message.id: message for message in store.messages(trace.session)}
    found: list[Asked] = []
    paths: list[Ids] = []
    for took, name, base in zip(trace.took, trace.messages, trace.bases, strict=True):
        message = of[name]
        assert message.prompt is not None
        prompt = store.prompt_ids(message.prompt)
        out = store.out(name)
        assert out is not None
        start = 0 if base is None else len(paths[base]) - 1
        assert base is None or prompt[:start] == paths[base][:start], f"{name}: another path"
        found.append(Asked(took.part, base, prompt[start:], len(out)))
        paths.append(prompt + out)
    return found


def totals(took: Sequence[Took]) -> dict[str, dict[str, float]]:
    return {
        part: {
            "steps": len(rows),
            "input": sum(row.input for row in rows),
            "computed": sum(row.computed for row in rows),
            "output": sum(row.output for row in rows),
            "wall_s": sum(row.wall_s for row in rows),
        }
        for part in PARTS
        if (rows := [row for row in took if row.part == part])
    }


def _nothing(*_: object) -> None:
    pass
