"""A tree of thoughts while it grows: what stands where, and which of it to show in little room.

One thread tells what happens while another looks: texts are replaced whole, and what the search has
of its own, the thoughts, only grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from radchat.chat.footer import count
from radchat.chat.text import one_line
from radchat.chat.width import ELLIPSIS

PROBLEM, GROWING, JUDGING, FRONTIER = "problem", "growing", "judging", "frontier"
COMING = "coming"  # is being said
# what stays where there is little room, first to last
ORDER = (
    *(PROBLEM, "best", "solved", GROWING, JUDGING, FRONTIER),
    *(COMING, "live", "new", "dead", "pruned"),
)


class Seen(Protocol):
    """What is read of a thought; the root is the problem."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def status(self) -> str: ...
    @property
    def children(self) -> Sequence[Seen]: ...


@dataclass(frozen=True, slots=True)
class Said:
    """A thought of which not all is said; it has no name yet."""

    name: str
    text: str
    score: float | None = None
    status: str = COMING
    children: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thought stands."""

    thought: Seen
    depth: int
    state: str

    @property
    def row(self) -> Row:
        told = self.thought
        score = score_cell(told.score) if self.depth else ""
        return Row(self.depth, one_line(told.name), score, self.state, one_line(told.text))


@dataclass(frozen=True, slots=True)
class Row:
    depth: int
    name: str
    score: str
    state: str
    text: str


def score_cell(score: float | None) -> str:
    """7.5, 20, 0.001; - where nobody judged"""
    return "-" if score is None else f"{score:.3g}"


@dataclass(slots=True)
class Tree:
    """``depth``: where thoughts are no longer grown."""

    root: Seen
    depth: int
    _doing: Mapping[str, str] = field(default_factory=dict)  # by name
    _said: dict[tuple[str, int], str] = field(default_factory=dict)  # after whom, which

    def begin(self, doing: Mapping[str, str]) -> None:
        """GROWING or JUDGING, by the thought's name; what was done before has ended."""
        self._doing, self._said = doing, {}

    def hear(self, name: str, choice: int, text: str) -> None:
        if self._doing.get(name) == GROWING:
            self._said[name, choice] = self._said.get((name, choice), "") + text

    def places(self) -> list[Place]:
        """Each thought after its parent, in the order they came; what is being said is the last."""
        found: list[Place] = []
        said: dict[str, list[Said]] = {}
        for (name, _), text in sorted(self._said.copy().items()):
            said.setdefault(name, []).append(Said(f"{name}.+", text))
        stack: list[tuple[Seen, int]] = [(self.root, 0)]
        while stack:
            thought, level = stack.pop()
            children = [*thought.children, *said.get(thought.name, ())]
            found.append(Place(thought, level, self._state(thought, level, bool(children))))
            stack += [(child, level + 1) for child in reversed(children)]
        return found

    def _state(self, thought: Seen, level: int, has_more: bool) -> str:
        if thought.name in self._doing:
            return self._doing[thought.name]
        if level == 0:
            return PROBLEM
        is_frontier = thought.status == "live" and not has_more and level < self.depth
        return FRONTIER if is_frontier else thought.status

    def states(self) -> Counter[str]:
        """How many thoughts there are of each; none of what is still being said."""
        told = [place for place in self.places() if place.depth]
        return Counter(place.state for place in told if not isinstance(place.thought, Said))


def picked(places: Sequence[Place], room: int) -> list[Row]:
    """A row a thought, or as many as there is room for, those that matter most; a run of the others
    is one row, that counts them.
    """
    if len(places) <= room:
        return [place.row for place in places]
    by_worth = sorted(range(len(places)), key=lambda i: (*_worth(places[i]), i))
    least, most = 1, len(places)  # thoughts that are shown: the more, the more rows
    while least < most:
        middle = (least + most + 1) // 2
        if sum(1 for _ in _folded(places, set(by_worth[:middle]))) <= room:
            least = middle
        else:
            most = middle - 1
    return list(_folded(places, set(by_worth[:least])))


def _worth(place: Place) -> tuple[int, float]:
    if place.depth == 0:
        return (-1, 0.0)
    rank = ORDER.index(place.state) if place.state in ORDER else len(ORDER)
    return (rank, -(place.thought.score or 0.0))


def _folded(places: Sequence[Place], shown: set[int]) -> Iterator[Row]:
    run: list[Place] = []
    for number, place in enumerate(places):
        if number not in shown:
            run.append(place)
            continue
        if run:
            yield _fold(run)
            run = []
        yield place.row
    if run:
        yield _fold(run)


def _fold(run: Sequence[Place]) -> Row:
    states = Counter(place.state for place in run)
    told = ", ".join(f"{count(states[state])} {state}" for state in ORDER if states[state])
    return Row(min(place.depth for place in run), ELLIPSIS, "", "", told)
