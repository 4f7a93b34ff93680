"""What a search had to compute at least: the ids of all its prompts, each place counted once.

Read from the session itself, when the daemon has gone: the prompts' and the answers' exact ids.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from radchat.engine.request import Ids
from radchat_sessions.store import Store


class Tree(NamedTuple):
    """Tokens of a session's tree: a place is one token after all that is before it."""

    tokens: int
    asked: int  # without those that the model said
    answers: int


def tree_of(store: Store, session: str) -> Tree:
    everything, said, answers = set[int](), set[int](), 0
    for message in store.messages(session):
        if message.prompt is not None:
            prompt = store.prompt_ids(message.prompt)
            there = places(prompt + (store.out(message.id) or array("I")))
            everything.update(there)
            said.update(there[len(prompt) :])
            answers += 1
    return Tree(len(everything), len(everything - said), answers)


def places(ids: Ids) -> list[int]:
    """A number for each, the same wherever all before it is the same."""
    found, at = [], 0
    for one in ids:
        at = hash((at, one))
        found.append(at)
    return found
