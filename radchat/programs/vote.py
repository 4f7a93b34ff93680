"""Self-consistency: many answers to one question, of which the one that is given most often counts
(Wang et al. 2023, arXiv 2203.11171). Here is the count alone; nothing is asked or shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EACH = 3  # answers that a line names


@dataclass(frozen=True, slots=True)
class Row:
    """An answer, and which samples gave it, by number from 0, in order."""

    answer: str  # as most of them spell it
    choices: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.choices)


@dataclass(slots=True)
class Tally:
    """The votes of ``num`` samples. The order in which they end makes no difference."""

    num: int
    key: Callable[[str], str]
    _given: dict[int, str | None] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)  # of those that have an answer
    _lost: set[int] = field(default_factory=set)

    def add(self, choice: int, answer: str | None) -> None:
        """A sample is whole; None: no answer could be taken out of it."""
        self._given[choice] = answer
        if answer is not None:
            self._keys[choice] = self.key(answer)

    def lose(self, choice: int) -> None:
        """A sample was stopped or has failed: it has no vote."""
        self._lost.add(choice)

    @property
    def answers(self) -> dict[int, str | None]:
        """By sample, of those that are whole."""
        return dict(sorted(self._given.items()))

    @property
    def num_whole(self) -> int:
        return len(self._given)

    @property
    def running(self) -> int:
        return self.num - len(self._given) - len(self._lost)

    @property
    def without(self) -> list[int]:
        """Samples that are whole and have no answer."""
        return sorted(self._given.keys() - self._keys.keys())

    @property
    def rows(self) -> list[Row]:
        """The most votes first; of as many, the one that the lowest sample gave."""
        groups: dict[str, list[int]] = {}
        for choice, key in sorted(self._keys.items()):
            groups.setdefault(key, []).append(choice)
        rows = [Row(self._spelled(choices), tuple(choices)) for choices in groups.values()]
        return sorted(rows, key=lambda row: (-row.count, row.choices))

    def _spelled(self, choices: Sequence[int]) -> str:
        spellings = Counter(self._given[choice] for choice in choices)
        return str(spellings.most_common(1)[0][0])  # of as many, the first

    @property
    def tied(self) -> list[Row]:
        """The answers that have the most votes, where they are several."""
        rows = self.rows
        first = [row for row in rows if row.count == rows[0].count]
        return first if len(first) > 1 else []

    @property
    def is_decided(self) -> bool:
        """No vote that is still to come can change which answer wins."""
        return is_decided([row.count for row in self.rows], self.running)

    def share(self, count: int) -> float:
        """Of all that are whole, those without an answer too."""
        return count / self.num_whole

    @property
    def line(self) -> str:
        """`7 of 16: 4 for 42, 2 for 41, 1 without an answer`"""
        rows = self.rows
        told = [f"{row.count} for {row.answer}" for row in rows[:EACH]]
        told += [f"{sum(row.count for row in rows[EACH:])} for others"] if rows[EACH:] else []
        told += [f"{len(self.without)} without an answer"] if self.without else []
        done = f"{self.num_whole} of {self.num}"
        return f"{done}: {', '.join(told)}" if told else done


def is_decided(counts: Sequence[int], running: int) -> bool:
    """The lead over the second is more than all who have not voted: were it as many, they could
    make it a tie, and that may go to either.
    """
    first, second = (*sorted(counts, reverse=True), 0, 0)[:2]
    return first - second > running
