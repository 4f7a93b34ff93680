"""Scores of thoughts: the paper's V(p, S), by ratings or by votes, or without a question at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from radchat.errors import ContextOverflow, InvalidInput
from radchat.programs.search.settings import Evaluate
from radchat.programs.search.tree import Thought

if TYPE_CHECKING:
    from radchat.programs.search.thinker import Thinker


def value(thinker: Thinker, thoughts: Sequence[Thought]) -> None:
    """Each by itself: the mean of n ratings."""
    answers = thinker.ask(thoughts, [thinker.prompting.value(thought) for thought in thoughts])
    for thought, outputs in zip(thoughts, answers, strict=True):
        if outputs is not None:
            thought.side_tokens += sum(output.tokens for output in outputs)
            thought.values = [thinker.task.read_value(output.text) for output in outputs]
            thought.score = fmean(thought.values)


def vote(thinker: Thinker, thoughts: Sequence[Thought]) -> None:
    """Among siblings: the share of n votes. One that is alone has all of them."""
    families = siblings(thoughts)
    for family in families.values():
        if len(family) == 1:
            family[0].score = 1.0
    families = {parent: each for parent, each in families.items() if len(each) > 1}
    asks = [thinker.prompting.vote(parent, family) for parent, family in families.items()]
    answers = thinker.ask(list(families), asks, list(families.values()))
    for (parent, family), outputs in zip(families.items(), answers, strict=True):
        if outputs is not None:
            parent.side_tokens += sum(output.tokens for output in outputs)
            votes = [thinker.task.read_vote(output.text, len(family)) for output in outputs]
            for number, thought in enumerate(family, start=1):
                thought.values = [float(each == number) for each in votes]
                thought.score = fmean(thought.values)


def logprob(thinker: Thinker, thoughts: Sequence[Thought]) -> None:
    """How likely the model finds its tokens: e to the mean of their log probabilities. What was
    not drawn from it is scored; nothing is generated for that.
    """
    for thought in thoughts:
        if thought.logprob is not None and thought.tokens:
            thought.score = math.exp(thought.logprob / thought.tokens)
    unknown = [thought for thought in thoughts if thought.score is None]
    for parent, family in siblings(unknown).items():
        texts = [thought.text for thought in family]
        try:
            told = thinker.asks.score(parent.message, thinker.prompting.step_text(parent), texts)
        except (ContextOverflow, InvalidInput) as error:  # of these texts; others may fit
            thinker.give_up(family, error)
            continue
        thinker.count(told["usage"], told["cache"])
        for thought, score in zip(family, told["scores"], strict=True):
            thought.score = math.exp(score)


def siblings(thoughts: Sequence[Thought]) -> dict[Thought, list[Thought]]:
    """By the thought they follow."""
    families: dict[Thought, list[Thought]] = {}
    for thought in thoughts:
        assert thought.parent is not None
        families.setdefault(thought.parent, []).append(thought)
    return families


JUDGES: Mapping[Evaluate, Callable[[Thinker, Sequence[Thought]], None]] = {
    "value": value,
    "vote": vote,
    "logprob": logprob,
}
