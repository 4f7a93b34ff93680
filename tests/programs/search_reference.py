"""The methods of a search written once more, small, over a table: no model, no session, no budget.

Paths instead of thoughts; a set of what is alive, and at each choice only what leads to something
that is kept stays in it.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from statistics import mean

from radchat.programs.search.settings import Search
from tests.programs.fake_asks import VALUES, Path, Table


class Over(Exception):
    pass


@dataclass
class Reference:
    table: Table
    search: Search
    words: dict[Path, str] = field(default_factory=dict)
    scores: dict[Path, float] = field(default_factory=dict)
    visited: list[Path] = field(default_factory=list)
    levels: list[list[Path]] = field(default_factory=list)  # what was grown from, at once
    alive: list[Path] = field(default_factory=list)
    pruned: set[Path] = field(default_factory=set)
    dead: set[Path] = field(default_factory=set)
    best: Path = ()
    reason: str = ""

    def run(self) -> Reference:
        try:
            if self.search.method == "dfs":
                self.waiting: list[Path] = []
                self.leaf: list[Path] = []
                self.visit(())
            else:
                self.by_levels()
            deepest = max((len(path) for path in self.alive), default=0)
            self.reason = "depth" if deepest == self.search.depth else "dead ends"
            self.best = self.first_best([p for p in self.alive if len(p) == deepest] or [()])
        except Over:
            pass
        return self

    def by_levels(self) -> None:
        frontier: list[Path] = [()]
        for level in range(1, self.search.depth + 1):
            alive = self.expand(frontier)
            self.stop(alive)
            if not alive:
                return
            frontier = self.choose(alive, f"level {level}")
            self.keep(frontier)

    def visit(self, path: Path) -> None:
        if len(path) == self.search.depth:
            self.visited.append(path)
            self.stop([path])
            if not self.leaf or self.scores[path] > self.scores[self.leaf[0]]:
                self.leaf = [path]
            return
        chosen = self.choose(self.expand([path]), ".".join(map(str, path)))
        self.waiting += chosen
        self.keep(self.waiting + self.leaf)
        for each in chosen:
            self.visit(each)
            self.waiting.remove(each)
            self.keep(self.waiting + self.leaf)

    def expand(self, paths: list[Path]) -> list[Path]:
        self.visited += paths
        self.levels.append(list(paths))
        grown = [child for path in paths for child in self.children(path)]
        open_ones = []
        solved = []
        for path in grown:
            state = self.table.state([self.words[path[: i + 1]] for i in range(len(path))])
            if state == "dead":
                self.dead.add(path)
                self.scores[path] = 0
            elif state == "solved":
                solved.append(path)
            else:
                open_ones.append(path)
        if solved:
            self.end("solved", solved[0])
        for path in open_ones:
            self.scores[path] = self.score(path, open_ones)
        self.alive += open_ones
        return open_ones

    def children(self, path: Path) -> list[Path]:
        said = [self.table.word((*path, n)) for n in range(1, self.search.branch + 1)]
        if self.search.generate == "propose":
            said = list(dict.fromkeys(said))
        found = []
        for number, word in enumerate(said, start=1):
            if word not in said[: number - 1]:
                self.words[*path, number] = word
                found.append((*path, number))
        return found

    def score(self, path: Path, judged: list[Path]) -> float:
        n = self.search.n_eval
        if self.search.evaluate == "value":
            return mean(VALUES[word] for word in self.table.values(path, n))
        if self.search.evaluate == "logprob":
            return math.exp(self.table.logprob(path[:-1], self.words[path]))
        family = [each for each in judged if each[:-1] == path[:-1]]
        if len(family) == 1:
            return 1
        votes = self.table.votes(path[:-1], n, len(family))
        return votes.count(family.index(path) + 1) / n

    def rank(self, path: Path) -> float:
        if self.search.method == "beam":
            return mean(self.scores[path[: i + 1]] for i in range(len(path)))
        return self.scores[path]

    def first_best(self, paths: list[Path]) -> Path:
        best = paths[0]
        for path in paths[1:]:
            if self.rank(path) > self.rank(best):
                best = path
        return best

    def choose(self, paths: list[Path], what: str) -> list[Path]:
        left = list(paths)
        chosen: list[Path] = []
        digest = hashlib.blake2b(f"{self.search.seed} {what} select".encode(), digest_size=4)
        draw = random.Random(int.from_bytes(digest.digest(), "little") >> 1)
        lowest = min([self.rank(path) for path in left], default=0)
        while left and len(chosen) < self.search.beam:
            pick = self.first_best(left)
            if self.search.select == "sample" and len(pick) < self.search.depth:
                weights = [self.rank(path) - min(lowest, 0) for path in left]
                if sum(weights) == 0:
                    weights = [1] * len(left)
                point = draw.random() * sum(weights)
                for path, weight in zip(left, weights, strict=True):
                    pick = path
                    if point < weight:
                        break
                    point -= weight
            left.remove(pick)
            chosen.append(pick)
        return chosen

    def keep(self, kept: list[Path]) -> None:
        if kept:
            gone = [p for p in self.alive if not any(k[: len(p)] == p for k in kept)]
            self.pruned |= set(gone)
            self.alive = [path for path in self.alive if path not in gone]

    def stop(self, paths: list[Path]) -> None:
        stop = self.search.stop_score
        good = [path for path in paths if stop is not None and self.scores[path] >= stop]
        if good:
            self.end("stop score", self.first_best(good))

    def end(self, reason: str, path: Path) -> None:
        self.reason, self.best = reason, path
        raise Over
