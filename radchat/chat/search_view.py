"""A search as it goes on: its tree of thoughts on a screen of its own, or a line for each step.

Told by the search (``radchat/programs/search``: its Listener), of which this knows no more than
what a thought is. All of it goes to stderr: the answer alone is data.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TextIO

from radchat.chat.footer import SEPARATOR, count, counted, seconds
from radchat.chat.live import Live
from radchat.chat.search_rows import laid_out
from radchat.chat.search_tree import FRONTIER, GROWING, JUDGING, Seen, Tree, picked, score_cell
from radchat.chat.text import one_line
from radchat.chat.view import DIM, RESET
from radchat.chat.width import cut

BOLD = "\x1b[1m"
ENOUGH = 40  # rows of the tree that stays
NAMED = 6  # thoughts that a line names
BESIDE = 4  # lines of the screen that are no thoughts: heads, counts, the last note, the cursor's
STYLES = dict.fromkeys(("best", "solved"), BOLD) | dict.fromkeys(("pruned", "dead", ""), DIM)
DOING = {"grow": GROWING, "judge": JUDGING}


class Settings(Protocol):
    """Of how a search is made, what is shown."""

    @property
    def depth(self) -> int: ...
    @property
    def budget(self) -> int | None: ...


@dataclass
class SearchView:
    """``terminal``: where the tree is painted; None: a line a step. ``say`` writes a line."""

    say: Callable[[str], None]
    columns: Callable[[], int]  # of stderr
    terminal: TextIO | None = None
    paints: bool = False  # style on it
    tree: Tree | None = None
    num_spent: int = 0
    _budget: int | None = None
    _cache: Mapping[str, int] = field(default_factory=dict)
    _live: Live | None = None
    _held: list[str] = field(default_factory=list)  # notes, until the screen has gone
    _begun_at: float = 0.0
    _is_replay: bool = False  # what is told was asked before
    _is_over: bool = False

    # --- what the search tells ---

    def began(self, root: Seen, search: Settings, opened: Mapping[str, Any]) -> None:
        self.tree, self._budget = Tree(root, search.depth), search.budget
        self._begun_at = time.monotonic()
        self._is_replay = bool(opened.get("found"))
        if not self._is_replay:
            self._appear()

    def wave(self, thoughts: Sequence[Seen], what: Literal["grow", "judge"]) -> None:
        self._begin({each.name: DOING[what] for each in thoughts})

    def delta(self, thought: Seen, choice: int, text: str) -> None:
        self._goes_on()
        if self.tree is not None:
            self.tree.hear(thought.name, choice, text)
        self._refresh()

    def grown(self, thoughts: Sequence[Seen]) -> None:
        self._begin({})
        self._step("grown", thoughts)

    def judged(self, thoughts: Sequence[Seen]) -> None:
        self._begin({})
        self._step("judged", [each for each in thoughts if each.status != "dead"])

    def pruned(self, thoughts: Sequence[Seen], freed_tokens: int) -> None:
        kv = f": {counted(freed_tokens, 'token')} of KV released" if freed_tokens else ""
        gone = [each for each in thoughts if each.status != "dead"]  # the others are told
        self._step("pruned", gone or (thoughts if kv else ()), kv)

    def spent(self, tokens: int, usage: Mapping[str, int], cache: Mapping[str, int]) -> None:
        if any(usage.values()):
            self._goes_on()
        self.num_spent, self._cache = tokens, cache
        self._refresh()

    def note(self, text: str) -> None:
        """What must be read, now, or when the screen has gone."""
        if self._live is None:
            self.say(text)
        else:
            self._held.append(text)
            self._refresh()

    # --- the end ---

    def finish(self) -> None:
        """Give the terminal back, and leave there what was seen. Also twice."""
        if self._is_over:
            return
        self._is_over = True
        if self._live is not None:
            self._live.end()
            self._live = None
        self._begin({})
        for text in self._held:
            self.say(text)
        if self.terminal is not None:
            for line in self._lines(self.columns(), ENOUGH):
                self.terminal.write(f"{line}\n")
            self.terminal.flush()

    def tell_end(self, line: str) -> None:
        """How the search came to its end; with the counts, where no tree stands above it."""
        self.say(line if self.terminal is not None else f"{line}{SEPARATOR}{self.counts()}")

    @property
    def num_thoughts(self) -> int:
        return 0 if self.tree is None else self.tree.states().total()

    def counts(self) -> str:
        """`frontier 2 · 14 thoughts, 4 pruned · 412/2,000 tokens · cached 93% · 12 s`"""
        states = Counter[str]() if self.tree is None else self.tree.states()
        thoughts = counted(states.total(), "thought")
        thoughts += f", {count(states['pruned'])} pruned" if states["pruned"] else ""
        frontier = states[FRONTIER] + states[GROWING]
        parts = [f"frontier {count(frontier)}"] if frontier else []
        parts += [thoughts, self._spending]
        if read := sum(self._cache.values()):
            parts.append(f"cached {100 * (read - self._cache.get('computed', 0)) // read}%")
        return SEPARATOR.join([*parts, seconds(time.monotonic() - self._begun_at)])

    # --- what is seen ---

    def _goes_on(self) -> None:
        """The model is asked again: what follows is new."""
        if self._is_replay:
            self._is_replay = False
            self._appear()

    def _appear(self) -> None:
        if self.terminal is not None:
            self._live = Live(self.terminal, self._paint)
            self._live.begin()

    def _lines(self, columns: int, room: int) -> list[str]:
        if self.tree is None:
            return []
        rows = picked(self.tree.places(), room)
        head, *lines = laid_out(rows, columns)
        styled = [self._styled(line, row.state) for line, row in zip(lines, rows, strict=True)]
        return [self._styled(head, ""), *styled, cut(self.counts(), columns)]

    def _styled(self, line: str, state: str) -> str:
        """What is best bold, and dim what is not looked at any more; the words say it too."""
        style = STYLES.get(state, "")
        return f"{style}{line}{RESET}" if style and self.paints else line

    def _paint(self, columns: int, rows: int) -> list[str]:
        told = cut(one_line(self._held[-1]), columns) if self._held else ""
        return [*self._lines(columns, max(rows - BESIDE, 1)), told]

    def _begin(self, doing: Mapping[str, str]) -> None:
        if self.tree is not None:
            self.tree.begin(doing)
        self._refresh()

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _step(self, what: str, thoughts: Sequence[Seen], more: str = "") -> None:
        if self._live is None and thoughts and not self._is_replay:
            self.say(f"{what} {named(thoughts)}{more}{SEPARATOR}{self._spending}")
        self._refresh()

    @property
    def _spending(self) -> str:
        of = f"/{count(self._budget)}" if self._budget is not None else ""
        return f"{count(self.num_spent)}{of} tokens"


def named(thoughts: Sequence[Seen]) -> str:
    """`s1.1 7.5, s1.2 dead`; of many the first."""
    more = len(thoughts) - NAMED
    told = ", ".join(f"{one_line(each.name)} {_worth(each)}".rstrip() for each in thoughts[:NAMED])
    return f"{told} and {count(more)} more" if more > 0 else told


def _worth(thought: Seen) -> str:
    if thought.status in ("dead", "solved"):
        return thought.status
    return "" if thought.score is None else score_cell(thought.score)
