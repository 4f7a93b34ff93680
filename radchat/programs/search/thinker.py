"""What a method does with thoughts: grow them, judge them, choose among them, prune the others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from radchat.errors import RadchatError, UsageError
from radchat.programs.search.asks import Answer, Ask, Output
from radchat.programs.search.budget import Budget, least
from radchat.programs.search.growing import GROWERS
from radchat.programs.search.journal import Journal
from radchat.programs.search.judging import JUDGES
from radchat.programs.search.listener import Listener
from radchat.programs.search.prompting import Prompting, seed_of
from radchat.programs.search.tree import Thought

Reason = Literal["solved", "stop score", "depth", "budget", "dead ends"]


class Ended(Exception):
    """No error: how a search ends. ``thought``: what it looked for, where it has found that."""

    def __init__(self, reason: Reason, thought: Thought | None = None) -> None:
        self.reason: Reason = reason
        self.thought = thought


@dataclass
class Thinker:
    prompting: Prompting
    asks: Journal
    listener: Listener
    budget: Budget
    root: Thought
    thoughts: list[Thought] = field(default_factory=list)  # all of them, as they were grown
    visited: list[Thought] = field(default_factory=list)  # in order: grown from, or a leaf
    failures: list[RadchatError] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    num_doubles: int = 0  # thoughts of the wave that are none: others say the same
    _dead: list[Thought] = field(default_factory=list)  # their KV is not released yet

    def __post_init__(self) -> None:
        self.search, self.task = self.prompting.search, self.prompting.task

    # -- growing: the paper's G --------------------------------------------------------------------

    def grow(self, frontier: Sequence[Thought]) -> Iterator[list[Thought]]:
        """The next thoughts after each; as many at once as the budget has room for."""
        waiting = list(frontier)
        while waiting:
            wave = self.budget.fitting(waiting, self._cost)
            if not wave:
                self._require_room(waiting[0])
                raise Ended("budget")
            waiting = waiting[len(wave) :]
            self.visited += wave
            self.listener.wave(wave, "grow")
            grown = GROWERS[self.search.generate](self, wave)
            self.thoughts += grown
            self._tell_doubles()
            self._check(grown)
            yield grown

    def _cost(self, parent: Thought) -> int | None:
        if self.asks.is_paid(self.prompting.next_thoughts(parent)):
            return None
        return self.prompting.most(parent)

    def _require_room(self, parent: Thought) -> None:
        """A budget that the first thoughts don't fit in is a mistake of the user's."""
        if parent is self.root:
            raise UsageError(
                f"--budget {self.budget.most:,} is too small for one thought: with these settings "
                f"{least(self.prompting.most(parent)):,} is the least"
            )

    def _tell_doubles(self) -> None:
        if num := self.num_doubles:
            self.listener.note(f"{num} of these thoughts said the same as others: counted once")
        self.num_doubles = 0

    def _check(self, grown: Sequence[Thought]) -> None:
        """What the task knows without asking the model."""
        solved: list[Thought] = []
        for thought in grown:
            if not thought.text:
                self._bury(thought, "it says nothing")
                continue
            state = self.task.state_of(self.prompting.problem, thought.texts)
            if state == "dead":
                thought.score = 0.0
                self._bury(thought, f"{self.task.name} sees that nothing comes of it")
            elif state == "solved":
                thought.status = "solved"
                solved.append(thought)
        self.listener.grown(grown)
        if solved:
            self._mark(grown)
            raise Ended("solved", solved[0])

    # -- judging: the paper's V --------------------------------------------------------------------

    def judge(self, thoughts: Sequence[Thought]) -> list[Thought]:
        """Scores all at once. Those that are not dead, in their order."""
        new = [thought for thought in thoughts if thought.status == "new"]
        if new:
            self.listener.wave(new, "judge")
            JUDGES[self.search.evaluate](self, new)
        for thought in new:
            if thought.score is not None:
                thought.status = "live"
        self._mark(thoughts)
        self.listener.judged(thoughts)
        return [thought for thought in new if thought.status == "live"]

    # -- choosing ----------------------------------------------------------------------------------

    def rank(self, thought: Thought) -> float:
        return path_score(thought) if self.search.method == "beam" else own_score(thought)

    def select(self, thoughts: Sequence[Thought], what: str) -> list[Thought]:
        """``beam`` of them, the best first; of equals the first. Or drawn one after the other, each
        as likely as its score is high (where any is below nothing, as it is above the least); but
        not at full depth, where nothing is gone on from.
        """
        num = min(self.search.beam, len(thoughts))
        is_last = any(thought.depth == self.search.depth for thought in thoughts)
        if self.search.select == "greedy" or is_last:
            return sorted(thoughts, key=self.rank, reverse=True)[:num]
        draw = random.Random(seed_of(self.search.seed, what, "select"))
        left, chosen = list(thoughts), []
        lowest = min([0.0, *map(self.rank, left)])
        for _ in range(num):
            weights = [self.rank(thought) - lowest for thought in left]
            pick = draw.choices(left, weights if any(weights) else None)[0]
            left.remove(pick)
            chosen.append(pick)
        return chosen

    def stop_at(self, thoughts: Sequence[Thought]) -> None:
        """Ends the search where one of these is good enough: with the best that is."""
        stop = self.search.stop_score
        good = [each for each in thoughts if stop is not None and own_score(each) >= stop]
        if good:
            raise Ended("stop score", max(good, key=self.rank))

    def prune(self, keep: Sequence[Thought]) -> None:
        """All that is not on a path to one of these; and the KV of that, and of what died, goes.
        Where there is none to keep, nothing is pruned: the best there is will be one of the others.
        """
        kept = {thought for each in keep for thought in each.path()}
        gone, self._dead = self._dead, []
        for thought in self.thoughts:
            if kept and thought.status == "live" and thought not in kept:
                thought.status = "pruned"
                gone.append(thought)
        messages = [
            each for thought in gone for each in (thought.message, *thought.doubles) if each
        ]
        if messages:
            self.listener.pruned(gone, self.asks.release(messages))

    def best(self) -> Thought:
        """Of all that lives: the best at full depth, else the best of the deepest."""
        alive = [thought for thought in self.thoughts if thought.status == "live"]
        return max(alive, key=lambda each: (each.depth, self.rank(each)), default=self.root)

    # -- asking ------------------------------------------------------------------------------------

    def ask(
        self,
        thoughts: Sequence[Thought],
        asks: Sequence[Ask],
        about: Sequence[Sequence[Thought]] | None = None,
    ) -> list[Sequence[Output] | None]:
        """The outputs of each ask. None: it failed, and what it was ``about`` is dead: the thought
        it followed, if nothing else is said.
        """
        paid = [self.asks.is_paid(ask) for ask in asks]

        def tell(number: int, choice: int, text: str) -> None:
            self.listener.delta(thoughts[number], choice, text)

        found: list[Sequence[Output] | None] = []
        for number, answer in enumerate(self.asks.ask(asks, tell) if asks else ()):
            if isinstance(answer, Answer):
                if asks[number].says is None and not paid[number]:
                    self.budget.spent += sum(output.tokens for output in answer.outputs)
                self.count(answer.usage, answer.cache)
                found.append(answer.outputs)
            else:
                self.give_up(about[number] if about else [thoughts[number]], answer.error)
                found.append(None)
        return found

    def give_up(self, thoughts: Sequence[Thought], error: RadchatError) -> None:
        """What could be asked of the model about them failed."""
        self.failures.append(error)
        for thought in thoughts:
            self._bury(thought, error.message)
            self.listener.note(f"{thought.name} is given up: {error.message}")

    def _bury(self, thought: Thought, why: str) -> None:
        if thought.parent is not None:  # the root is where one may always begin
            thought.status, thought.why = "dead", why
            self._dead.append(thought)

    def count(self, usage: Mapping[str, int], cache: Mapping[str, int]) -> None:
        for total, more in ((self.usage, usage), (self.cache, cache)):
            for name, number in more.items():
                total[name] = total.get(name, 0) + number
        self.listener.spent(self.budget.spent, self.usage, self.cache)

    def _mark(self, thoughts: Sequence[Thought]) -> None:
        marks = {each.message: each.mark for each in thoughts if each.score is not None}
        self.asks.mark({message: mark for message, mark in marks.items() if message is not None})


def own_score(thought: Thought) -> float:
    return thought.score or 0.0


def path_score(thought: Thought) -> float:
    return fmean(own_score(each) for each in thought.path())
