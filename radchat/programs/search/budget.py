"""What a search may cost: tokens that the model generates, counted before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
ANSWER = 256  # tokens set aside for the final answer, where a quarter of the budget is not less


class Budget:
    """``most`` is never exceeded: an ask is made where the most it can take is left."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.spent = 0

    @property
    def left(self) -> int | None:
        """For the final answer, when nothing else is asked for. None: as many as it likes."""
        return None if self.most is None else max(self.most - self.spent, 0)

    def fitting(self, things: Sequence[T], cost: Callable[[T], int | None]) -> Sequence[T]:
        """As many of the first as may be asked at once. A cost of None: it is paid already."""
        if self.most is None:
            return things
        room = self.most - min(ANSWER, self.most // 4) - self.spent
        for number, thing in enumerate(things):
            price = cost(thing)
            if price is not None and (room := room - price) < 0:
                return things[:number]
        return things


def least(cost: int) -> int:
    """The smallest budget that an ask of this cost fits in, beside the answer."""
    return cost + min(ANSWER, (cost - 1) // 3)
