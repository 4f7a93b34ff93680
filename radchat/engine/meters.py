"""What the engine counts about itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

_FIRST_GUESS = 1000.0  # tokens of prompt a second, until it has been measured
_TOKENS_PER_ROW = 16  # a row of an answer costs as much as some tokens: it must be few beside them
_KEPT = 5  # steps of about one length
_LONGEST, _SPREAD = 128, 4  # tokens; steps of nearly one length do not tell the two costs apart
_OFF = 0.5  # of its time: a step that far from the others was stopped, or the machine was busy


class PromptCost(NamedTuple):
    """What a prompt takes where nothing else runs: each of its steps, and each token in them."""

    step_s: float
    token_s: float
    chunk_tokens: int  # at most, in a step

    def of(self, num_tokens: int) -> float:
        """Seconds."""
        return self.step_s * -(-num_tokens // self.chunk_tokens) + self.token_s * num_tokens

    def saved(self, prompt: int, cached: int) -> float:
        """Seconds by which a prompt is sooner with so many of its tokens cached."""
        return self.of(prompt) - self.of(prompt - cached)


Point = tuple[int, float]  # tokens of a step, its seconds


@dataclass(slots=True)
class Meters:
    clock: Callable[[], float]
    chunk_tokens: int
    compiles: bool = False  # a step may: the first of about its length is not believed
    steps: int = 0
    requests: int = 0
    input_tokens: int = 0  # of requests that were started
    cached_tokens: int = 0
    restored_tokens: int = 0  # of them, from disk: once a row has read them
    output_tokens: int = 0
    forced_tokens: int = 0  # of them
    seconds: dict[str, float] = field(
        default_factory=lambda: {"schedule": 0.0, "model": 0.0, "sample": 0.0}
    )
    _seen: dict[int, deque[Point]] = field(default_factory=dict)  # by the bits of their length
    _cost: PromptCost | None = None
    _is_fitted: bool = True

    @property
    def prompt_cost(self) -> PromptCost | None:
        """From the steps seen; None while they do not tell."""
        if not self._is_fitted:
            points = [_middle(each) for each in self._seen.values() if each]
            line = _line(points)
            self._cost = None if line is None else PromptCost(*line, self.chunk_tokens)
            self._is_fitted = True
        return self._cost

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Of a whole chunk; None as for ``prompt_cost``."""
        cost = self.prompt_cost
        return None if cost is None else self.chunk_tokens / cost.of(self.chunk_tokens)

    @property
    def guessed_tokens_per_s(self) -> float:
        """For the order of the queue, which needs some number."""
        return self.prefill_tokens_per_s or _FIRST_GUESS

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        begin = self.clock()
        try:
            yield
        finally:
            self.seconds[part] += self.clock() - begin

    def ran(self, extend_tokens: int, other_rows: int, seconds: float) -> None:
        """A step has run. It tells something where it was nearly all prompt, or one row alone."""
        tokens = extend_tokens + other_rows
        if seconds <= 0 or (tokens > 1 and extend_tokens < _TOKENS_PER_ROW * other_rows):
            return
        length = tokens.bit_length()
        if length not in self._seen:
            self._seen[length] = deque(maxlen=_KEPT)
            if self.compiles:
                return
        self._seen[length].append((tokens, seconds))
        self._is_fitted = False


def _middle(alike: deque[Point]) -> Point:
    """The step in the middle by the time a token took, the faster of two: one that was stopped
    for a while is forgotten with the next of its length.
    """
    middle = median_low(seconds / tokens for tokens, seconds in alike)
    return next(each for each in alike if each[1] / each[0] == middle)


def _line(points: list[Point]) -> tuple[float, float] | None:
    """Seconds (a step, a token) that come nearest to all points in relation to their times.

    Points that lie far off are left out; None where what remains tells nothing.
    """
    points = sorted(points)
    while len(points) > 1:
        shortest, longest = points[0][0], points[-1][0]
        if longest < max(_LONGEST, _SPREAD * shortest):
            return None
        step_s, token_s = _least_squares(points)
        off = {(n, s): abs(step_s + token_s * n - s) / s for n, s in points}
        worst = max(points, key=off.__getitem__)
        if off[worst] <= _OFF:
            return (step_s, token_s) if token_s > 0 else None
        points.remove(worst)
    return None


def _least_squares(points: list[Point]) -> tuple[float, float]:
    """Weights 1/s²; a step costs no less than nothing."""
    weights = [1 / s**2 for _, s in points]
    whole = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / whole
    mean_s = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / whole
    both = sum(w * (n - mean_n) * (s - mean_s) for w, (n, s) in zip(weights, points, strict=True))
    token_s = both / sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    if mean_s < token_s * mean_n:
        squares = sum(w * n * n for w, (n, _) in zip(weights, points, strict=True))
        products = sum(w * n * s for w, (n, s) in zip(weights, points, strict=True))
        return 0.0, products / squares
    return mean_s - token_s * mean_n, token_s
