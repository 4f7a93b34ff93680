"""`radchat bench --verify-reuse`: is an answer from reused KV the same answer, id for id?

Each question is asked of one and the same prompt with its KV in four states: as a second turn,
which goes on in the half-filled page of the first; with nothing cached; with all of it cached; and
at a fork, beside three other questions in the same batch. In exact mode all must agree. In the
default dtype sums are rounded differently for different batches: how often that tells is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.chat.footer import count, share
from radchat.chat.text import one_line
from radchat.cli.bench_run import Bench, Said
from radchat.cli.common import Cli
from radchat.errors import RadchatError

PROMPTS, NUM_WORDS, ANSWER = 6, 120, 16
ENOUGH_S = 20.0  # of one dtype: another prompt begins only before
STATES = ("second turn", "all cached", "at a fork, in a batch")
ASK = "Tell a short story with some of these words."
NEXT = "And what happens then?"
OTHERS = ("Who is in it?", "Where is it set?", "Give it a title.")


@dataclass(slots=True)
class Tally:
    """How the answers of one dtype agree with those computed from nothing."""

    dtype: str
    answers: int = 0
    same: int = 0
    ids: int = 0
    cached_tokens: int = 0
    differ_at: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in STATES})

    def add(self, state: str, said: Said, cold: Said) -> None:
        self.answers += 1
        self.ids += len(said.ids)
        self.cached_tokens += said.cached_tokens
        if said.ids == cold.ids:
            self.same += 1
        else:
            self.differ_at[state].append(_first_difference(said.ids, cold.ids))

    def json(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "answers": self.answers,
            "same": self.same,
            "agreement": self.same / self.answers,
            "ids": self.ids,
            "cached_tokens": self.cached_tokens,
            "differ_at": self.differ_at,
        }


def check_reuse(cli: Cli, model: str | None) -> None:
    """Run it in the default dtype and in exact mode; the card, or JSON. Raises RadchatError (1)
    after it if exact mode gave two answers to one prompt.
    """
    had = _loaded(cli)
    tallies: list[Tally] = []
    name = ""
    with Bench(cli, model, max_tokens=ANSWER) as run:
        for exact in (False, True):
            run.exact = exact
            loaded = run.load()
            name = loaded["model"]
            if loaded["dtype"] not in [tally.dtype for tally in tallies]:
                num_words = min(NUM_WORDS, loaded["context"] // 12)
                tallies.append(_tally(cli, run, loaded["dtype"], num_words))
    result = {"model": name, "reuse": [tally.json() for tally in tallies]}
    exact_one = tallies[-1]
    if cli.json:
        cli.data(result)
    else:
        for line in card(result, sorted(_loaded(cli) - had)):
            cli.out(line)
    if exact_one.same < exact_one.answers:
        raise RadchatError("exact mode gave two answers to one prompt: please report this")


def _loaded(cli: Cli) -> set[str]:
    models = cli.client.call("status").get("models") or ()
    return {f"{each['name']} {each['dtype']}" for each in models}


def _tally(cli: Cli, run: Bench, dtype: str, num_words: int) -> Tally:
    tally = Tally(dtype)
    told: dict[str, Any] = {"options": {"logprobs": 0}}  # the ids come with them
    began = time.monotonic()
    for number in range(PROMPTS):
        if number and time.monotonic() - began > ENOUGH_S:
            break
        cli.status(f"{dtype}: prompt {number + 1} of {PROMPTS}")
        session = run.session()
        (first,) = run.ask(session, f"{ASK}\n{run.words(num_words)}", new=True)
        (second,) = run.ask(session, NEXT, **told)
        fork = {"at": first.message, **told}
        texts = enumerate((NEXT, *OTHERS))
        forked, *_ = run.together([(session, t, {"branch": f"b{n}", **fork}) for n, t in texts])
        (warm,) = run.ask(session, "", ref=second.message, **told)
        run.forget(session)
        (cold,) = run.ask(session, "", ref=second.message, **told)
        if cold.cached_tokens >= warm.cached_tokens:
            raise RadchatError("the KV of this check could not be evicted: another command uses it")
        for state, said in zip(STATES, (second, warm, forked), strict=True):
            tally.add(state, said, cold)
        run.remove_sessions()
    return tally


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The place of the first id that differs, counted from 1."""
    for place, (a, b) in enumerate(zip(one, other, strict=False), start=1):
        if a != b:
            return place
    return min(len(one), len(other)) + 1


def card(result: Mapping[str, Any], loaded: Sequence[str]) -> list[str]:
    """A line or two for each dtype; ``loaded``: models that are in memory only for this."""
    lines = [
        f"{one_line(result['model'])}: answers from reused KV, and computed from nothing",
        "",
        f"{'':22}{'answers':>8}{'ids':>7}{'reused':>9}   the same",
    ]
    for each in result["reuse"]:
        title = f"exact mode ({each['dtype']})" if each["dtype"] == "fp32" else each["dtype"]
        same = f"{each['same']} of {each['answers']} ({share(each['same'], each['answers'])})"
        numbers = f"{each['answers']:8}{count(each['ids']):>7}{count(each['cached_tokens']):>9}"
        lines.append(f"{title:22}{numbers}   {same}")
        for state, places in each["differ_at"].items():
            if places:
                where = ", ".join(map(str, sorted(places)))
                lines.append(f"{'':22}{state}: first other id at {where} of {ANSWER}")
    lines += ["", f"greedy; each prompt as a {STATES[0]}, {STATES[1]}, and {STATES[2]}"]
    if any(each["same"] < each["answers"] for each in result["reuse"]):
        lines.append(
            "other batches round sums otherwise, and a near tie may tip; with --exact never"
        )
    if loaded:
        lines.append(f"still loaded: {', '.join(loaded)} (radchat models stop)")
    return lines
