"""What a search is told: how thoughts are made, judged and chosen, and how much it may cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from radchat.errors import UsageError

Method = Literal["bfs", "dfs", "beam"]
Generate = Literal["sample", "propose"]
Evaluate = Literal["value", "vote", "logprob"]
Select = Literal["greedy", "sample"]

WORDS: Mapping[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "generate": get_args(Generate),
    "evaluate": get_args(Evaluate),
    "select": get_args(Select),
}
MOST = {"depth": 64, "branch": 128, "n_eval": 128}
GROWING = ("budget", "depth", "beam")  # what a resumed search may be given more of


@dataclass(frozen=True, slots=True)
class Search:
    """The settings of one search. Raises UsageError for what can't be, naming the flag."""

    method: Method = "bfs"
    generate: Generate = "sample"
    evaluate: Evaluate = "value"
    select: Select = "greedy"
    branch: int = 3  # thoughts after one thought
    depth: int = 3  # thoughts on a path
    beam: int = 2  # thoughts kept of a level (bfs, beam), or of one thought's (dfs)
    n_eval: int = 3  # samples of one judgement
    stop_score: float | None = None
    budget: int | None = None  # tokens the model may generate, the final answer's among them
    seed: int = 0
    thought_tokens: int = 96
    temperature: float = 0.8

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                known = f"{', '.join(words[:-1])} or {words[-1]}"
                raise UsageError(f"{flag(name)} is {known} (got {getattr(self, name)})")
        for name in ("branch", "depth", "beam", "n_eval", "thought_tokens", "budget"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{flag(name)} is at least 1")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise UsageError(f"{flag(name)} is at most {most}")
        if self.stop_score is not None and not math.isfinite(self.stop_score):
            raise UsageError(f"{flag('stop_score')} is a number")

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Search:
        """Of a stored search; what a later version wrote besides is not looked at."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in body.items() if name in known})

    def resumed(self, given: Mapping[str, Any]) -> Search:
        """As it goes on with what was given anew. More of everything, or another stop score, grows
        the same tree; what would make another tree is refused. A budget may also be lifted (None).
        """
        for name, value in given.items():
            was = getattr(self, name)
            if value == was or name == "stop_score" or (name == "budget" and value is None):
                continue
            if name not in GROWING:
                raise UsageError(
                    f"{flag(name)} can't change in a search that is resumed (it was {was}): "
                    "begin another one"
                )
            if was is None or value < was:
                had = "there was none" if was is None else f"it was {was:,}"
                raise UsageError(f"{flag(name)} can only grow in a search that is resumed ({had})")
        return dataclasses.replace(self, **given)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")
