"""The shape of a tree of messages: who follows whom, in which order, and how far in it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[str, int, int]  # id, depth, depth counted in forks

WHO = {"system": "sys", "user": "user", "assistant": "asst", "tool": "tool"}
FILTERS: dict[str, Callable[[Message, bool], bool]] = {  # (message, has a name) -> is it shown?
    "default": lambda _message, _named: True,
    "user-only": lambda message, _named: message["role"] in ("user", "system"),
    "no-tools": lambda message, _named: message["role"] != "tool",
    "labeled": lambda _message, named: named,
}


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
