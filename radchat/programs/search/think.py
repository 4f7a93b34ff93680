"""One run of a search, from its problem to the path that the answer is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat.errors import UsageError
from radchat.programs.search.asks import Ask, Asks, Output
from radchat.programs.search.budget import Budget
from radchat.programs.search.journal import Journal, Stored
from radchat.programs.search.listener import Listener, Silent
from radchat.programs.search.methods import METHODS
from radchat.programs.search.prompting import Prompting
from radchat.programs.search.settings import Search
from radchat.programs.search.task import Task
from radchat.programs.search.thinker import Ended, Reason, Thinker
from radchat.programs.search.tree import Thought


@dataclass(frozen=True, slots=True)
class Outcome:
    root: Thought
    best: Thought  # the answer follows it; the root, where every thought is dead
    reason: Reason
    visited: Sequence[Thought]
    spent: int  # tokens of the budget, an answer that is there already among them
    usage: Mapping[str, int]  # of what this run asked
    cache: Mapping[str, int]
    answer_text: str  # what the user says for the final answer
    answer_tokens: int | None  # that are left for it; None: no limit
    answer_grammar: Mapping[str, Any] | None
    answered: Output | None  # it is there already, after ``best``
    asked: str | None = None  # the message that asks for it there, with no whole answer yet

    @property
    def is_solved(self) -> bool:
        return self.reason == "solved"

    def json(self) -> dict[str, Any]:
        """What `radchat think --json` says of the search."""
        return {
            "best_path": [
                {"name": each.name, "text": each.text, "score": each.score, "message": each.message}
                for each in self.best.path()
            ],
            "tree": self.root.json(),
            "reason": self.reason,
            "solved": self.is_solved,
            "spent": self.spent,
        }


def think(
    problem: str, search: Search, task: Task, asks: Asks, *, listener: Listener | None = None
) -> Outcome:
    """Search until it ends by itself; what was opened to be resumed goes on where it was.

    Raises UsageError where the budget is too small, and what the first asks failed with, where
    there is no thought at all. Whatever it is ended by (Ctrl+C), what was told is stored.
    """
    told = listener or Silent()
    opened = asks.opened
    run = _run(search, task, opened)
    journal = Journal(asks, is_paid=run > 1)
    root = Thought(f"s{opened['number']}", problem, opened.get("at"), status="live")
    budget = Budget(search.budget)
    answered = journal.answer_tokens(lambda thoughts: task.answer_text(problem, thoughts))
    if run > 1:
        budget.spent = journal.tokens + answered
    prompting = Prompting(problem, search, task, opened["number"], run)
    thinker = Thinker(prompting, journal, told, budget, root)
    told.began(root, search, opened)
    reason, best = _searched(thinker)
    if best is root and thinker.failures:
        raise thinker.failures[0]
    thinker.prune(keep=thinker.thoughts)  # what died last
    for thought in best.path():
        if thought.status != "solved":
            thought.status = "best"
    journal.catch_up()
    if run == 1:
        budget.spent += answered
    text = problem if best is root else task.answer_text(problem, best.texts)
    outputs = journal.outputs(Ask(best.message, text))
    if outputs is None and budget.left == 0:
        raise UsageError(
            f"nothing is left for an answer of a budget of {search.budget:,} tokens: "
            f"radchat think --resume --budget N"
        )
    return Outcome(
        root,
        best,
        reason,
        thinker.visited,
        budget.spent,
        thinker.usage,
        thinker.cache,
        text,
        budget.left,
        task.answer_grammar(problem, best.texts),
        outputs[0] if outputs else None,
        None if outputs else journal.asked(best.message, text),
    )


def _searched(thinker: Thinker) -> tuple[Reason, Thought]:
    try:
        METHODS[thinker.search.method](thinker)
    except Ended as end:
        return end.reason, end.thought or thinker.best()
    best = thinker.best()
    return ("depth" if best.depth == thinker.search.depth else "dead ends"), best


def _run(search: Search, task: Task, opened: Mapping[str, Any]) -> int:
    """1 as long as a search has the settings it began with."""
    if opened.get("found") is None:
        return 1
    stored = Stored.of(opened)
    if search.depth != stored.search.depth and task.says_depth:
        raise UsageError(
            f"--depth can't change in a search that is resumed where the task tells the model of "
            f"it ({task.name}): begin another one"
        )
    return stored.run + (search != stored.search)
