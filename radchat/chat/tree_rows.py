"""The rows of a tree's picture: a message each, or one for the middle of a long run of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radchat.chat.footer import age, count
from radchat.chat.text import one_line
from radchat.chat.tree_shape import TIERS, WHO, Place, folded, labels_of, steps, walk

HEAD_MARK, HEAD_BELOW = "<- HEAD", "<- HEAD below"


@dataclass(slots=True)
class Row:
    """A message, ready to be laid out."""

    indent: int
    id: str
    who: str
    text: str
    tokens: str
    cache: tuple[str, str, str, str]  # kv, used, hits, lru
    labels: tuple[str, ...]  # branches and labels; where HEAD is, or below, its mark is the last
    is_head: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """The messages in their order, each with its names, and which of them stand for more."""

    messages: dict[str, Mapping[str, Any]]
    names: Mapping[str, str]
    head: str | None
    under: str | None  # under which HEAD is, where it is not shown
    labels: dict[str, list[str]]
    order: list[Place]
    hidden: dict[str, list[str]]

    @classmethod
    def of(cls, tree: Mapping[str, Any], names: Mapping[str, str], *, folds: bool) -> Rows:
        messages = {m["id"]: m for m in tree["messages"]}
        labels: dict[str, list[str]] = {}
        for name, key in (tree.get("branches") or {}).items():
            labels.setdefault(key, []).append(one_line(name))
        for key, message in messages.items():
            more = [one_line(label) for label in labels_of(message)]
            if below := message.get("more_below"):
                more.append(f"... {count(below)} more below")
            if more:
                labels[key] = [*labels.get(key, ()), *more]
        head, under = tree.get("head"), tree.get("head_below")

        def alike(key: str) -> object:
            is_plain = key not in labels and key not in (head, under)
            return bool(messages[key].get("pinned")) if is_plain else None

        parents = {key: message.get("parent") for key, message in messages.items()}
        left, hidden = folded(parents, alike) if folds else (parents, {})
        return cls(messages, names, head, under, labels, walk(left), hidden)

    def indented(self, limit: int | None) -> list[Row]:
        """``limit``: columns of indentation."""
        deepest = max(depth for _, depth, _ in self.order)
        found = []
        for place in self.order:
            key, indent = place[0], 2 * steps(place, deepest, limit)
            if key in self.hidden:
                found.append(
                    _folded_row([self.messages[each] for each in self.hidden[key]], indent)
                )
                continue
            marks = {self.under: [HEAD_BELOW], self.head: [HEAD_MARK]}.get(key, [])
            labels = (*self.labels.get(key, ()), *marks)
            is_head = key == self.head
            found.append(_row(self.messages[key], self.names[key], indent, labels, is_head=is_head))
        return found


def _row(
    message: Mapping[str, Any], name: str, indent: int, labels: tuple[str, ...], *, is_head: bool
) -> Row:
    tokens = message.get("tokens")
    who = str(message["role"])
    return Row(
        indent=indent,
        id=name,
        who=WHO.get(who, one_line(who)[:4]),
        text=one_line(str(message.get("text") or "")),
        tokens="-" if tokens is None else count(tokens),
        cache=_cache_cells(message),
        labels=labels,
        is_head=is_head,
    )


def _folded_row(messages: Sequence[Mapping[str, Any]], indent: int) -> Row:
    """One for all of them: their tokens, where those are, and from which rank to which they go."""
    tokens = [message["tokens"] for message in messages if message.get("tokens") is not None]
    cached = [message.get("cached") or {} for message in messages]
    whole = {
        "role": None,
        "tokens": sum(tokens),
        "cached": {key: sum(each.get(key) or 0 for each in cached) for key, _, _ in TIERS}
        | ({"remote": None} if all("remote" in each for each in cached) else {}),
        "pinned": messages[0].get("pinned"),
    }

    def known(key: str) -> list[Any]:
        return sorted(each[key] for each in messages if each.get(key) is not None)

    spans = []
    for key in ("hits", "lru_rank"):
        ends = [count(number) for number in known(key)[:: max(len(known(key)) - 1, 1)]]
        spans.append("-".join(dict.fromkeys(ends)) or "-")
    used = age(next(iter(known("last_used_s")), None))
    return Row(
        indent=indent,
        id="...",
        who="",
        text=f"{count(len(messages))} messages",
        tokens=count(sum(tokens)) if tokens else "-",
        cache=(kv_cell(whole), used, spans[0], spans[1]),
        labels=(),
        is_head=False,
    )


def _cache_cells(message: Mapping[str, Any]) -> tuple[str, str, str, str]:
    used = age(message.get("last_used_s"))
    hits = message.get("hits")
    rank = message.get("lru_rank")
    return (
        kv_cell(message),
        used,
        "-" if hits is None else count(hits),
        "-" if rank is None else str(rank),
    )


def kv_cell(message: Mapping[str, Any]) -> str:
    """``G``, ``D``, ``-``, ``G*`` pinned, ``G 80%`` when only a part of the tokens is cached;
    ``G 80% D``: the rest is on disk, ``G 80% D 10%``: some of the rest.
    """
    cached = message.get("cached") or {}
    held = {letter: number for key, letter, _ in TIERS if (number := cached.get(key))}
    if not held:
        return "R" if "remote" in cached else "-"
    tokens, star = message.get("tokens") or 0, "*" if message.get("pinned") else ""
    cells = []
    for letter, number in held.items():
        cells += [f"{letter}{star}", f"{max(100 * number // tokens, 1)}%"]
        star = ""
    # the stop token of a newest answer is computed with the turn after it
    if sum(held.values()) >= tokens - (message.get("role") == "assistant"):
        cells.pop()
    return " ".join(cells)
