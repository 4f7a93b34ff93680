"""The asks of a search: which task's words, how many answers, under which grammar, seeded how."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat.programs.search.asks import Ask
from radchat.programs.search.settings import Search
from radchat.programs.search.task import Task
from radchat.programs.search.tree import Thought


@dataclass(frozen=True, slots=True)
class Prompting:
    problem: str
    search: Search
    task: Task
    number: int  # of the search in its session
    run: int  # how often its settings have changed

    # -- thoughts ----------------------------------------------------------------------------------

    def samples(self, parent: Thought) -> Ask:
        """Each a next thought of its own."""
        return self._ask(
            parent,
            self.step_text(parent),
            "sample",
            n=self.search.branch,
            max_tokens=self.search.thought_tokens,
            grammar=self.task.thought_grammar(self.problem, parent.texts),
            names=[f"{parent.name}.{number + 1}" for number in range(self.search.branch)],
            logprobs=self.search.evaluate == "logprob",
        )

    def proposals(self, parent: Thought) -> Ask:
        """All the next thoughts in one answer."""
        count = self.search.branch
        return self._ask(
            parent,
            self.task.propose_text(self.problem, parent.texts, count),
            "propose",
            max_tokens=self.task.proposals_tokens(count, self.search.thought_tokens),
            grammar=self.task.proposals_grammar(self.problem, parent.texts, count),
        )

    def proposed(self, parent: Thought, texts: Sequence[str]) -> Ask:
        """The same thoughts as if each had been sampled: the branches that the search goes on."""
        names = [f"{parent.name}.{number}" for number in range(1, len(texts) + 1)]
        return self._ask(parent, self.step_text(parent), "says", names=names, says=texts)

    def step_text(self, parent: Thought) -> str:
        return self.task.step_text(self.problem, parent.texts)

    # -- judgements --------------------------------------------------------------------------------

    def value(self, thought: Thought) -> Ask:
        return self._ask(
            thought,
            self.task.value_text(self.problem, thought.texts),
            "value",
            n=self.search.n_eval,
            max_tokens=self.task.value_tokens,
            grammar=self.task.value_grammar(),
        )

    def vote(self, parent: Thought, candidates: Sequence[Thought]) -> Ask:
        count = len(candidates)
        texts = [thought.text for thought in candidates]
        return self._ask(
            parent,
            self.task.vote_text(self.problem, parent.texts, texts),
            "vote",
            n=self.search.n_eval,
            max_tokens=self.task.vote_tokens(count),
            grammar=self.task.vote_grammar(count),
        )

    # -- what they may cost ------------------------------------------------------------------------

    def most(self, parent: Thought) -> int:
        """Tokens that the next thoughts after this one may take, and judging them."""
        return self.next_thoughts(parent).most + self._most_judging()

    def next_thoughts(self, parent: Thought) -> Ask:
        propose = self.search.generate == "propose"
        return self.proposals(parent) if propose else self.samples(parent)

    def _most_judging(self) -> int:
        search = self.search
        if search.evaluate == "value":
            return search.branch * search.n_eval * self.task.value_tokens
        if search.evaluate == "vote" and search.branch > 1:
            return search.n_eval * self.task.vote_tokens(search.branch)
        return 0

    def _ask(
        self, at: Thought, text: str, kind: str, *, logprobs: bool = False, **more: Any
    ) -> Ask:
        options = {
            "temperature": self.search.temperature,
            "seed": seed_of(self.search.seed, at.place, kind),
            **({"logprobs": 0} if logprobs else {}),
        }
        extra = {"search": self._about(is_first=at.parent is None)}
        return Ask(at=at.message, text=text, options=options, extra=extra, **more)

    def _about(self, *, is_first: bool) -> Mapping[str, Any]:
        """What the message says of its search: where it begins, and where settings have changed,
        all that is needed to go on with it.
        """
        if not is_first and self.run == 1:
            return {"number": self.number}
        return {
            "number": self.number,
            "run": self.run,
            "problem": self.problem,
            "task": self.task.ref,
            "settings": self.search.json(),
        }


def seed_of(seed: int, place: str, kind: str) -> int:
    """The same whatever else is asked, and in which order."""
    digest = hashlib.blake2b(f"{seed} {place} {kind}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1
