"""What a search may cost: tokens that the model generates, counted before they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

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

    def num_fitting(self, costs: Sequence[int | None]) -> int:
        """How many of the first may be asked at once. None: one that is paid, or costs nothing."""
        if self.most is None:
            return len(costs)
        room = self.most - min(ANSWER, self.most // 4) - self.spent
        for number, cost in enumerate(costs):
            if cost is not None and (room := room - cost) < 0:
                return number
        return len(costs)


def least(cost: int) -> int:
    """The smallest budget that an ask of this cost fits in, beside the answer."""
    return cost + min(ANSWER, (cost - 1) // 3)
