"""How a tree of thoughts is searched: algorithms 1 and 2 of the paper (arXiv 2305.10601), and beam.

``grow`` is the paper's G(p, s, k): the next thoughts after some, in waves as large as the budget
has room for; ``judge`` is its V(p, S): it gives each a score, and returns those that are not dead.
Both end the search where they must (thinker.Ended): a thought that solves the problem, a budget
that is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from radchat.programs.search.settings import Method
from radchat.programs.search.thinker import Thinker, own_score
from radchat.programs.search.tree import Thought


def bfs(thinker: Thinker) -> None:
    """Level by level, the best of each: ToT-BFS."""
    _by_levels(thinker)


def beam(thinker: Thinker) -> None:
    """As bfs, but the best by the mean of the scores on their paths."""
    _by_levels(thinker)


def _by_levels(thinker: Thinker) -> None:
    frontier = [thinker.root]
    for level in range(1, thinker.search.depth + 1):
        thoughts: list[Thought] = []
        for wave in thinker.grow(frontier):
            thoughts += thinker.judge(wave)
            thinker.stop_at(thoughts)
        if not thoughts:
            return
        frontier = thinker.select(thoughts, f"level {level}")
        thinker.prune(keep=frontier)


def dfs(thinker: Thinker) -> None:
    """The most promising first, and back where nothing is left below: ToT-DFS.

    A thought at the full depth is a leaf; the first that is good enough ends the search, else all
    is visited. Behind it, only the path of the best leaf so far is kept.
    """
    waiting: list[Thought] = []  # followed, and not left yet
    best: list[Thought] = []  # the best leaf so far

    def visit(thought: Thought) -> None:
        if thought.depth == thinker.search.depth:
            thinker.visited.append(thought)
            thinker.stop_at([thought])
            best[:] = [max([*best, thought], key=own_score)]
            return
        for wave in thinker.grow([thought]):
            chosen = thinker.select(thinker.judge(wave), thought.place)
            waiting.extend(chosen)
            thinker.prune(keep=waiting + best)
            for child in chosen:
                visit(child)
                waiting.remove(child)
                thinker.prune(keep=waiting + best)

    visit(thinker.root)


METHODS: Mapping[Method, Callable[[Thinker], None]] = {"bfs": bfs, "dfs": dfs, "beam": beam}
