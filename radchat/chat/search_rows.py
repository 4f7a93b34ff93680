"""The picture of a search: its tree of thoughts as rows, from texts to lines alone.

A row a thought: its name, its score, in a word how it stands, its first words. Letters carry all of
it; no colour does. Where there is less room than thoughts, the best and the frontier stay, and what
lies between them is a row that says how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from radchat.chat.footer import count
from radchat.chat.text import one_line
from radchat.chat.width import ELLIPSIS, cut, pad

HEAD = ("name", "score", "state", "thought")
GAP = "  "
LEAST_TEXT = 12  # columns in which first words still say something
PLAIN_TEXT = 60  # of them where nothing limits a line
GROWING, JUDGING, FRONTIER = "growing", "judging", "frontier"
ORDER = ("best", "solved", GROWING, JUDGING, FRONTIER, "live", "new", "dead", "pruned")


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
class Row:
    depth: int
    name: str
    score: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A thought where the tree is walked."""

    thought: Seen
    depth: int
    state: str

    @property
    def row(self) -> Row:
        told = self.thought
        score = score_cell(told.score) if self.depth else ""
        return Row(self.depth, told.name, score, self.state, one_line(told.text))


def walk(root: Seen, doing: Mapping[str, str], depth: int) -> list[_Place]:
    """Each thought after its parent, in the order they came. ``doing``: what is done to one now, by
    its name; ``depth``: where thoughts are no longer grown.
    """
    found: list[_Place] = []
    stack: list[tuple[Seen, int]] = [(root, 0)]
    while stack:
        thought, level = stack.pop()
        children = list(thought.children)  # the search may be adding to them
        state = doing.get(thought.name) or _standing(thought, level, depth, has_more=bool(children))
        found.append(_Place(thought, level, state))
        stack += [(child, level + 1) for child in reversed(children)]
    return found


def _standing(thought: Seen, level: int, depth: int, *, has_more: bool) -> str:
    if level == 0:
        return "problem"
    is_frontier = thought.status == "live" and not has_more and level < depth
    return FRONTIER if is_frontier else thought.status


def score_cell(score: float | None) -> str:
    """7.5, 20, 0.001, 1.2e-05; - where nobody judged"""
    return "-" if score is None else f"{score:.3g}"


def picked(places: Sequence[_Place], room: int) -> list[Row]:
    """Rows for all thoughts, or for as many as there is room for, those that matter most; a run of
    the others is one row.
    """
    if len(places) <= room:
        return [place.row for place in places]
    by_worth = sorted(range(len(places)), key=lambda i: (*_worth(places[i]), i))
    least, most = 1, len(places)  # thoughts shown: the more, the more rows
    while least < most:
        middle = (least + most + 1) // 2
        if sum(1 for _ in _folded(places, set(by_worth[:middle]))) <= room:
            least = middle
        else:
            most = middle - 1
    return list(_folded(places, set(by_worth[:least])))


def _worth(place: _Place) -> tuple[int, float]:
    if place.depth == 0:
        return (-1, 0.0)
    rank = ORDER.index(place.state) if place.state in ORDER else len(ORDER)
    return (rank, -(place.thought.score or 0.0))


def _folded(places: Sequence[_Place], shown: set[int]) -> Iterator[Row]:
    run: list[_Place] = []
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


def _fold(run: Sequence[_Place]) -> Row:
    states = Counter(place.state for place in run)
    told = ", ".join(f"{count(states[state])} {state}" for state in ORDER if states[state])
    depth = min(place.depth for place in run)
    return Row(depth, ELLIPSIS, "", "", told)


def laid_out(rows: Sequence[Row], columns: int | None) -> list[str]:
    """The rows under their heads, none wider than ``columns``; None: a pipe, first words only.

    Indentation gives way first, then the names' beginnings; the words are cut.
    """
    score = max(len(HEAD[1]), *(len(row.score) for row in rows))
    state = max(len(HEAD[2]), *(len(row.state) for row in rows))
    rest = score + state + 3 * len(GAP)
    room = None if columns is None else max(columns - rest - LEAST_TEXT, len(HEAD[0]))
    names = _named(rows, room)
    name = max(len(HEAD[0]), *map(len, names))
    text = PLAIN_TEXT if columns is None else max(columns - rest - name, 0)
    lines = []
    for label, row in zip((HEAD[0], *names), (None, *rows), strict=True):
        cells = HEAD[1:] if row is None else (row.score, row.state, row.text)
        line = GAP.join((pad(label, name), cells[0].rjust(score), cells[1].ljust(state)))
        line = f"{line}{GAP}{cut(cells[2], text)}".rstrip()
        lines.append(line if columns is None else cut(line, columns))
    return lines


def _named(rows: Sequence[Row], room: int | None) -> list[str]:
    """The names behind their indentation, as wide as there is room for."""
    for step in (2, 1, 0):
        names = [" " * (step * row.depth) + row.name for row in rows]
        if room is None or max(map(len, names)) <= room:
            return names
    return [_end(name, room or 0) for name in names]


def _end(name: str, columns: int) -> str:
    """`..2.1.3`: where a name ends tells it from its siblings."""
    return name if len(name) <= columns else ".." + name[len(name) - columns + 2 :].lstrip(".")
