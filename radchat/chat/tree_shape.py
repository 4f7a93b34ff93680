"""The shape of a tree of messages: who follows whom, in which order, and how far in it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[str, int, int]  # id, depth, depth counted in forks

WHO = {"system": "sys", "user": "user", "assistant": "asst", "tool": "tool"}
TIERS = (("device", "G", "device"), ("host", "H", "host"), ("disk", "D", "disk"))
FILTERS: dict[str, Callable[[Message, bool], bool]] = {  # (message, has a name) -> is it shown?
    "default": lambda _message, _named: True,
    "user-only": lambda message, _named: message["role"] in ("user", "system"),
    "no-tools": lambda message, _named: message["role"] != "tool",
    "labeled": lambda _message, named: named,
}


def labels_of(message: Message) -> list[str]:
    """Labels, and of a thought its name and score: ``s1.1.2 7.5``."""
    name, score = message.get("thought"), message.get("score")
    thought = [str(name)] if name else []
    thought += [] if score is None else [scored(score)]
    labels = [str(label) for label in message.get("labels") or ()]
    return [*labels, " ".join(thought)] if thought else labels


def scored(score: float) -> str:
    """7.5, 0.431, 1,234: what tells scores apart, and no more."""
    score += 0.0  # no -0
    return f"{score:.3g}" if abs(score) < 999.5 else f"{score:,.0f}"


def short_ids(ids: Iterable[str], least: int = 4) -> dict[str, str]:
    """Each id's shortest prefix, of ``least`` or more, that no other id begins with."""
    ordered = sorted(ids)
    names = {}
    for i, full in enumerate(ordered):
        near = ordered[max(i - 1, 0) : i] + ordered[i + 1 : i + 2]
        need = least
        while need < len(full) and any(other.startswith(full[:need]) for other in near):
            need += 1
        names[full] = full[:need]
    return names


def walk(parents: Mapping[str, str | None]) -> list[Place]:
    """Each message after its parent, siblings in order; one whose parent is not there is a root."""
    children: dict[str | None, list[str]] = {}
    for key, parent in parents.items():
        children.setdefault(parent if parent in parents else None, []).append(key)
    stack = [(key, 0, 0) for key in reversed(children.get(None, []))]
    found = []
    while stack:
        key, depth, forks = stack.pop()
        found.append((key, depth, forks))
        below = children.get(key, [])
        deeper = forks + (len(below) > 1)
        stack += [(child, depth + 1, deeper) for child in reversed(below)]
    return found


def steps(place: Place, deepest: int, limit: int | None) -> int:
    """Of indentation: one a message; where a tree is too deep for ``limit`` columns, one a fork;
    never past the limit.
    """
    _, depth, forks = place
    if limit is None:
        return depth
    return min(forks if 2 * deepest > limit else depth, limit // 2)


def hung(messages: Iterable[Message], keep: Callable[[Message], bool]) -> dict[str, str | None]:
    """The kept messages with their parents; one whose parent is not kept hangs from the nearest
    kept one above it. Parents come before children.
    """
    found: dict[str, str | None] = {}
    nearest: dict[str | None, str | None] = {None: None}
    for message in messages:
        key, parent = message["id"], message.get("parent")
        above = nearest.get(parent)
        if keep(message):
            found[key] = above
            nearest[key] = key
        else:
            nearest[key] = above
    return found


# -- long conversations ----------------------------------------------------------------------------

ENOUGH = 40  # rows that are never too many; at most so many, if folding can help it
LEAST = 6  # messages that are worth a fold
NEAR = (
    8,
    4,
    2,
    1,
)  # messages that stay at the end of a long run, and half as many at its beginning


def folded(
    parents: Mapping[str, str | None], alike: Callable[[str], object]
) -> tuple[dict[str, str | None], dict[str, list[str]]]:
    """Long runs of messages without their middle: what is left, with its parents, and for the first
    of a middle, which stands for all of it, what it is.

    ``alike``: what messages of a run have in common; None: this one is always shown.
    """
    if len(parents) <= ENOUGH:
        return dict(parents), {}
    runs = _runs(parents, alike)
    for near in NEAR:
        middles = [run[(near + 1) // 2 : -near] for run in runs]
        middles = [middle for middle in middles if len(middle) >= LEAST]
        if len(parents) - sum(len(middle) - 1 for middle in middles) <= ENOUGH:
            break
    first_of = {key: middle[0] for middle in middles for key in middle}
    left = {
        key: None if parent is None else first_of.get(parent, parent)
        for key, parent in parents.items()
        if first_of.get(key, key) == key
    }
    return left, {middle[0]: middle for middle in middles}


def _runs(parents: Mapping[str, str | None], alike: Callable[[str], object]) -> list[list[str]]:
    """Messages that follow each other alone, all alike."""
    follow = Counter(parents.values())
    runs: list[list[str]] = []
    before: object = None
    for key, _, _ in walk(parents):
        kind = alike(key) if follow[key] == 1 else None
        if kind is not None:
            if kind == before and parents[key] == runs[-1][-1]:
                runs[-1].append(key)
            else:
                runs.append([key])
        before = kind
    return runs
