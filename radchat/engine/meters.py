"""What the engine counts about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_FIRST_GUESS = 1000.0  # tokens of prompt a second, until it has been measured
_MIN_TOKENS = 16  # a shorter extend says more about a step's fixed cost than about speed
_WEIGHT = 0.2  # of the newest step in the moving average


@dataclass(slots=True)
class Meters:
    clock: Callable[[], float]
    steps: int = 0
    requests: int = 0
    input_tokens: int = 0  # of requests that were started
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"schedule": 0.0, "model": 0.0, "sample": 0.0}
    )
    _speed: float | None = None

    @property
    def prefill_tokens_per_s(self) -> float:
        return _FIRST_GUESS if self._speed is None else self._speed

    @property
    def has_measured(self) -> bool:
        return self._speed is not None

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
        """A step has run. Only steps that are mostly extend tell the speed of prompts."""
        if seconds <= 0 or extend_tokens < max(_MIN_TOKENS, other_rows):
            return
        speed = (extend_tokens + other_rows) / seconds
        self._speed = (
            speed if self._speed is None else self._speed + _WEIGHT * (speed - self._speed)
        )
