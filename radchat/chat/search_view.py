"""A search as it goes on: its tree of thoughts on a screen of its own, or a line for each step.

Told by the search (``radchat/programs/search``: its Listener), of which this knows no more than
what a thought is. All of it goes to stderr: the answer alone is data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from radchat.chat.footer import SEPARATOR, count, counted, seconds
from radchat.chat.live import Live
from radchat.chat.search_rows import (
    FRONTIER,
    Seen,
    laid_out,
    picked,
    score_cell,
    walk,
)
from radchat.chat.text import one_line
from radchat.chat.width import cut

ENOUGH = 40  # rows of the tree that stays
NAMED = 6  # thoughts that a line names
BESIDE = 3  # lines of the screen that are no thoughts: heads, counts, the last note


@dataclass
class SearchView:
    """``terminal``: where the tree is painted; None: a line a step. ``note`` writes a line."""

    note: Callable[[str], None]
    columns: Callable[[], int]  # of stderr
    terminal: TextIO | None = None
    is_quiet: bool = False
    root: Seen | None = None
    depth: int = 0
    budget: int | None = None
    num_spent: int = 0
    cache: Mapping[str, int] = field(default_factory=dict)
    _doing: dict[str, str] = field(default_factory=dict)  # by name
    _live: Live | None = None
    _held: list[str] = field(default_factory=list)  # notes, until the screen has gone
    _begun_at: float = 0.0

    # --- what the search tells ---

    def began(self, root: Seen, *, depth: int, budget: int | None, line: str) -> None:
        """``line``: how it is made, in words."""
        self.root, self.depth, self.budget = root, depth, budget
        self._begun_at = time.monotonic()
        self.tell(f"{one_line(root.name)}: {line}")
        if self.terminal is not None:
            self._live = Live(self.terminal, self._paint)
            self._live.begin()

    def wave(self, thoughts: Sequence[Seen], doing: str) -> None:
        """``doing``: GROWING or JUDGING."""
        self._doing = {each.name: doing for each in thoughts}
        self._refresh()

    def spent(self, num_tokens: int, cache: Mapping[str, int]) -> None:
        self.num_spent, self.cache = num_tokens, cache
        self._refresh()

    def grown(self, thoughts: Sequence[Seen]) -> None:
        self._doing = {}
        self._step(f"grown: {named(thoughts)}")

    def judged(self, thoughts: Sequence[Seen]) -> None:
        self._doing = {}
        self._step(f"judged: {named(thoughts)}")

    def pruned(self, thoughts: Sequence[Seen], freed_tokens: int) -> None:
        kv = f": {counted(freed_tokens, 'token')} of KV released" if freed_tokens else ""
        self._step(f"pruned: {named(thoughts)}{kv}")

    def tell(self, text: str) -> None:
        """What must be read, now or when the screen has gone."""
        if self._live is None:
            self.note(text)
        else:
            self._held.append(text)
            self._refresh()

    # --- the end ---

    def finish(self) -> None:
        """Give the terminal back, and leave there what was seen. Also twice."""
        if self._live is None:
            return
        self._live.end()
        self._live = None
        for text in self._held:
            self.note(text)
        assert self.terminal is not None
        for line in self.lines(ENOUGH):
            self.terminal.write(f"{line}\n")
        self.terminal.flush()

    # --- what is seen ---

    def lines(self, room: int) -> list[str]:
        """The tree in ``room`` rows and its heads, and the line under it."""
        if self.root is None:
            return []
        columns = self.columns()
        rows = picked(walk(self.root, self._doing, self.depth), room)
        return [*laid_out(rows, columns), cut(self.counts(), columns)]

    def counts(self) -> str:
        """`frontier 2 · 14 thoughts, 4 pruned · 412/2,000 tokens · cached 93% · 12 s`"""
        assert self.root is not None
        states = [place.state for place in walk(self.root, {}, self.depth)[1:]]
        pruned = states.count("pruned")
        parts = [f"frontier {count(states.count(FRONTIER))}", counted(len(states), "thought")]
        parts[1] += f", {count(pruned)} pruned" if pruned else ""
        parts.append(spending(self.num_spent, self.budget))
        if read := sum(self.cache.values()):
            parts.append(f"cached {100 * (read - self.cache.get('computed', 0)) // read}%")
        return SEPARATOR.join([*parts, seconds(time.monotonic() - self._begun_at)])

    def _paint(self, columns: int, rows: int) -> list[str]:
        assert self.root is not None
        places = walk(self.root, self._doing, self.depth)
        shown = laid_out(picked(places, max(rows - BESIDE, 1)), columns)
        told = cut(one_line(self._held[-1]), columns) if self._held else ""
        return [*shown, cut(self.counts(), columns), told]

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _step(self, line: str) -> None:
        if self._live is not None:
            self._live.refresh()
        elif not self.is_quiet:
            self.note(f"{line}{SEPARATOR}{spending(self.num_spent, self.budget)}")


def spending(num_tokens: int, budget: int | None) -> str:
    of = f"/{count(budget)}" if budget is not None else ""
    return f"{count(num_tokens)}{of} tokens"


def named(thoughts: Sequence[Seen]) -> str:
    """`s1.1 7.5, s1.2 4`; of many the first."""
    told = [
        each.name + (f" {score_cell(each.score)}" if each.score is not None else "")
        for each in thoughts[:NAMED]
    ]
    more = len(thoughts) - len(told)
    return ", ".join(told) + (f" and {count(more)} more" if more else "")
