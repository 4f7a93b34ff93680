"""What-ifs: several sayings at one place, or one said several times, answered side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from radchat.daemon.arguments import Generate
from radchat.daemon.finding import Place
from radchat.daemon.turns import Plan, plan_turn
from radchat.errors import ContextOverflow
from radchat.mentions import without_mentions
from radchat_sessions.names import Names, auto_name
from radchat_sessions.store import Store

UNNAMED = "what-if"  # a branch whose text has no word to name it
USUAL = {"temperature": 0.8}  # answers are to differ
_ASKING = re.compile(r"\W*what[\s-]+if\b", re.IGNORECASE)


def plans_of(store: Store, place: Place, ask: Generate) -> list[Plan]:
    """What a command means: one turn, or one for each text of a what-if."""
    if ask.kind != "what-if":
        return [plan_turn(store, place, ask)]
    before = f"{ask.before}\n\n" if ask.before else ""
    plans = [
        plan_turn(store, place, replace(ask, kind="turn", text=before + text, texts=(), before=""))
        for text in ask.texts
    ]
    return [
        replace(
            plan,
            branch=name_of(text),
            expected=None,
            is_fork=True,
            keep_head=True,
            says=text,
        )
        for plan, text in zip(plans, ask.texts, strict=True)
    ]


def name_of(text: str) -> str:
    """A branch's, of the words that tell it from others: no files, no "what if" before them."""
    words = without_mentions(text)
    asking = _ASKING.match(words)
    words = words[asking.end() :] if asking else words
    return auto_name(words) or auto_name(text) or UNNAMED


def is_many(ask: Generate) -> bool:
    """Answers that are to differ."""
    return ask.kind == "what-if" or not ask.named


def branch_names(store: Store, plans: list[Plan], n: int) -> list[list[str]]:
    """Of each turn: the branch of its first answer, and names of their own for the others."""
    session = plans[0].place.session.id
    labels = (label.value for label in store.labels(session) if label.kind == "label")
    names = Names({branch.name for branch in store.branches(session)} | set(labels))
    found = []
    for plan in plans:
        whole = plan.says is not None
        first = names.take(plan.branch, whole=whole) if plan.is_fork else plan.branch
        found.append([first, *(names.take(plan.branch, whole=whole) for _ in range(n - 1))])
    return found


@contextmanager
def naming(ask: Generate, index: int) -> Iterator[None]:
    """What does not fit the context says which of several texts it is."""
    try:
        yield
    except ContextOverflow as error:
        if len(ask.texts) < 2:
            raise
        which = f"what-if {index + 1} ({name_of(ask.texts[index])})"
        raise ContextOverflow(f"{which}: {error.message}", **error.data, choice=index) from error
