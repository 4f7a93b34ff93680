"""What the commands that only look are told: trees, logs and lists as JSON (docs/cli.md).

What the cache holds of a message comes from held.py. Without a loaded model nothing is cached; no
view ever loads one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from radchat.daemon.disk_paths import OnDisk, num_in
from radchat.daemon.finding import Place
from radchat.daemon.held import Held
from radchat.daemon.options import REMOTE
from radchat.daemon.tools import result_of, shown_calls
from radchat.daemon.turns import shown
from radchat_sessions import scores
from radchat_sessions.messages import Message
from radchat_sessions.store import Store
from radchat_sessions.token_ids import Span


class Labels:
    """What a session's labels say of its messages."""

    def __init__(self, store: Store, session: str) -> None:
        labels = store.labels(session)
        self._labels: dict[str, list[str]] = {}
        for label in labels:
            if label.kind == "label":
                self._labels.setdefault(label.message, []).append(label.value)
        self._scores = scores.by_message(labels)

    @property
    def messages(self) -> set[str]:
        """Those with a label, or a score."""
        return self._labels.keys() | self._scores.keys()

    def of(self, message: str) -> dict[str, Any]:
        score = self._scores.get(message, scores.NO_SCORE)
        return {
            "labels": self._labels.get(message, []),
            "thought": score.name,
            "score": score.number,
        }


# -- tree ------------------------------------------------------------------------------------------


def tree_json(
    store: Store,
    place: Place,
    messages: Sequence[Message],
    held: Mapping[str, Held],
    tiers: Mapping[str, Any],
    pinned: Collection[str],
    disk: Mapping[str, OnDisk],
    below: Mapping[str, int],
) -> dict[str, Any]:
    """``pinned``: the messages on the way to those that pins name; ``disk``: where on its path
    each is on disk; ``below``: how many follow that are not told of. A token counts in its fastest
    tier.
    """
    session = place.session
    spans = store.spans(session.id)
    now = time.time()
    labels = Labels(store, session.id)
    branches = {b.name: b.message for b in store.branches(session.id) if b.message is not None}
    elsewhere = _read_elsewhere(store.messages(session.id))
    rows, on_disk, kept = [], 0, 0
    for message in messages:
        tokens, twice = _tokens(spans, message)
        mine = held.get(message.id, Held())
        span, there = spans.get(message.id), disk.get(message.id)
        only = _on_disk(span, there, max(twice, mine.device))
        on_disk += only
        kept += _on_disk(span, there, twice)
        used = there.last_used if mine.last_used is None and there and only else mine.last_used
        age = None if used is None else max(0.0, now - used)
        rows.append(
            {
                "id": message.id,
                "parent": message.parent,
                "role": message.role,
                "text": shown(message),
                "tokens": tokens,
                "cached": {
                    "device": max(mine.device - twice, 0),
                    "host": 0,
                    "disk": only,
                    **({"remote": None} if message.id in elsewhere else {}),
                },
                "last_used_s": age,
                "hits": mine.hits if mine.device else None,
                "pinned": message.id in pinned and (mine.pinned or not mine.device),
                "lru_rank": mine.rank,
                **labels.of(message.id),
                "finish_reason": message.finish_reason,
                "more_below": below.get(message.id, 0),
            }
        )
    return {
        "session": session.id,
        "name": session.name,
        "model": session.model,
        "created": session.created,
        "folder": session.folder,
        "head": place.message,
        "branch": place.branch,
        "branches": branches,
        "messages": rows,
        "num_messages": len(messages),
        "shared_tokens": _shared_tokens(store, list(branches.values()), spans),
        "tiers": _tiers_of(held, tiers, on_disk, kept),
    }


def _read_elsewhere(messages: Sequence[Message]) -> set[str]:
    """Messages that an engine behind a URL has read, or said: what of their KV it still has, it
    alone knows.
    """
    parents = {message.id: message.parent for message in messages}
    found: set[str] = set()
    for message in messages:
        at = message.id if message.dtype == REMOTE else None
        while at is not None and at not in found:
            found.add(at)
            at = parents.get(at)
    return found


def _on_disk(span: Span | None, there: OnDisk | None, skipped: int) -> int:
    """Tokens of a message that are on disk, but for its first ones."""
    if span is None or there is None:
        return 0
    return num_in(there.ranges, span.start + skipped, span.stop)


def _tokens(spans: Mapping[str, Span], message: Message) -> tuple[int | None, int]:
    return own_tokens(spans, message.id, message.parent)


def own_tokens(
    spans: Mapping[str, Span], message: str, parent: str | None
) -> tuple[int | None, int]:
    """How many tokens a message adds to its path, and how many of its span are its parent's.

    An answer's stop token is in the answer and in the opening of the turn after it: it counts
    once, so that the messages of a path add up to what the next prompt holds of it.
    """
    span, before = spans.get(message), spans.get(parent or "")
    if span is None:
        return None, 0
    twice = int(before is not None and before.stop == span.start + 1)
    return span.stop - span.start - twice, twice


def tokens_of(store: Store, session: str, path: Sequence[Message]) -> list[int | None]:
    """What each message of a path adds to it; None where it was in no prompt yet."""
    spans = store.spans(session)
    return [_tokens(spans, message)[0] for message in path]


def _tiers_of(
    held: Mapping[str, Held], tiers: Mapping[str, Any], on_disk: int, kept: int
) -> dict[str, Any]:
    """The session's own part of the tiers; the budgets are the whole cache's. ``kept``: tokens on
    disk, those that are on the device besides among them: what outlives the daemon.
    """
    own = dict(tiers)
    if device := tiers.get("device"):
        tokens = min(sum(mine.device for mine in held.values()), device["tokens"])
        num_bytes = tokens * device["budget_bytes"] // max(device["budget_tokens"], 1)
        own["device"] = {**device, "tokens": tokens, "bytes": num_bytes}
    if disk := tiers.get("disk"):
        only, all_ = (n * disk["bytes"] // max(disk["tokens"], 1) for n in (on_disk, kept))
        own["disk"] = {**disk, "tokens": on_disk, "bytes": only}
        own["disk"] |= {"kept_tokens": kept, "kept_bytes": all_}
    return own


def _shared_tokens(store: Store, heads: Sequence[str], spans: Mapping[str, Span]) -> int:
    """Tokens of the messages that every branch has; 0 where there is one branch only."""
    if len(heads) < 2:
        return 0
    paths = [{m.id: m for m in store.path(head)} for head in heads]
    common = set.intersection(*(set(path) for path in paths))
    return sum(_tokens(spans, paths[0][m])[0] or 0 for m in common)


def subtree(messages: Sequence[Message], root: str | None) -> list[Message]:
    """``root`` and what follows it; None: all."""
    if root is None:
        return list(messages)
    inside = {root}
    for message in messages:  # parents before children
        if message.parent in inside:
            inside.add(message.id)
    return [m for m in messages if m.id in inside]


def filtered(
    messages: Sequence[Message], which: str, depth: int | None, named: set[str], head: str | None
) -> tuple[list[Message], dict[str, int], str | None]:
    """The messages a filter shows; one whose parent is hidden hangs from its nearest shown one.
    How many of them are too deep, by the message under which they would be. And under which HEAD
    is, where it is not shown itself.
    """

    def keep(message: Message) -> bool:
        if which == "user-only":
            return message.role in ("user", "system")
        if which == "no-tools":
            return message.role != "tool"
        return which != "labeled" or message.id in named

    levels: dict[str | None, int] = {}
    shown_above: dict[str | None, str | None] = {None: None}
    found: list[Message] = []
    below: dict[str, int] = {}
    for message in messages:
        level = levels.get(message.parent, -1) + 1
        levels[message.id] = level
        above = shown_above.get(message.parent, message.parent)
        shown_above[message.id] = above
        if not keep(message):
            continue
        if depth is None or level < depth:
            found.append(message if above == message.parent else replace(message, parent=above))
            shown_above[message.id] = message.id
        elif above is not None:
            below[above] = below.get(above, 0) + 1
    under = shown_above.get(head)
    return found, below, None if under == head else under


def _of_tools(message: Message) -> dict[str, Any]:
    """What an answer calls; which call a result is of."""
    if message.role == "tool":
        name, call = result_of(message.parts)
        status = next((part.get("status") for part in message.parts if "call" in part), None)
        return {"result": {"call": call, "name": name, "status": status}}
    calls = [dict(part["call"]) for part in message.parts if part.get("type") == "tool_call"]
    return {"calls": calls, "line": shown_calls("", message.parts)} if calls else {}


# -- log -------------------------------------------------------------------------------------------


def log_json(store: Store, place: Place, at: str | None, last_turns: int | None) -> dict[str, Any]:
    """The linear path to a message; ``last_turns``: only so many user turns of it."""
    path = store.path(at)
    spans = store.spans(place.session.id)
    by_message: dict[str, list[str]] = {}
    for branch in store.branches(place.session.id):
        if branch.message is not None:
            by_message.setdefault(branch.message, []).append(branch.name)
    labels = Labels(store, place.session.id)
    rows: list[dict[str, Any]] = []
    turn = 0
    for message in path:
        turn += message.role == "user"
        rows.append(
            {
                "id": message.id,
                "parent": message.parent,
                "role": message.role,
                "text": message.text,
                **_of_tools(message),
                "files": [
                    {"name": p["name"], "text": p["text"]}
                    for p in message.parts
                    if p.get("type") == "file"
                ],
                "reasoning": message.reasoning or None,
                "created": message.created,
                "model": message.model,
                "dtype": message.dtype,
                "seed": message.seed,
                "tokens": _tokens(spans, message)[0],
                "finish_reason": message.finish_reason,
                "usage": message.usage,
                "timing": message.timing,
                "branches": by_message.get(message.id, []),
                **labels.of(message.id),
                "turn": turn,
            }
        )
    if last_turns is not None:
        rows = [row for row in rows if row["turn"] > turn - last_turns]
    return {
        "session": place.session.id,
        "name": place.session.name,
        "branch": place.branch,
        "head": place.message,
        "messages": rows,
    }


def fork_json(place: Place) -> dict[str, Any]:
    """A fork on which nothing was asked yet, in the shape of one that was: without an answer."""
    counts = ("input_tokens", "cached_input_tokens", "output_tokens", "forced_tokens")
    usage = dict.fromkeys((*counts, "reasoning_tokens"), 0)
    cache = dict.fromkeys(("device", "host", "disk", "computed"), 0)
    branch = {
        "session": place.session.id,
        "message": None,
        "parent": place.message,
        "branch": place.branch,
        **dict.fromkeys(("model", "dtype", "text", "finish_reason")),
        "usage": usage,
        "cache": cache,
        "timing": dict.fromkeys(("first_token_s", "total_s", "tokens_per_s")),
    }
    return {"parent": place.message, "branches": [branch], "usage": usage, "cache": cache}
