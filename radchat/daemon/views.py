"""What the commands that only look are told: trees, logs and lists as JSON (docs/cli.md).

A view has three steps: what the store says (on the desk), what the cache holds of it (on the
engine's thread, a probe that disturbs nothing), and the two joined. Without a loaded model nothing
is cached; no view ever loads one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from radchat.daemon.finding import Place
from radchat.daemon.turns import shown
from radchat.engine.request import Ids
from radchat_sessions.messages import Message
from radchat_sessions.reader import Span
from radchat_sessions.store import Store

if TYPE_CHECKING:
    from radchat.engine.engine import Engine

TIERS = ("device", "host", "disk")


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [start, stop) of a path: one message's own."""

    message: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Path:
    """The ids of one path and the messages whose tokens they are."""

    ids: Ids
    parts: tuple[Part, ...]


@dataclass(slots=True)
class Held:
    """What the cache has of one message."""

    device: int = 0  # tokens
    last_used: float | None = None  # wall clock
    hits: int = 0
    rank: int | None = None  # 1 goes first, among the messages asked about
    nodes: list[int] = field(default_factory=list)


def paths_of(
    store: Store, session_id: str, messages: Sequence[Message], tokenizer: str
) -> list[Path]:
    """Each message's tokens on a path that has them, as few paths as there are ends of paths.

    A message is on the path of a later one when that one's prompt keeps all its ids. Ids of another
    tokenizer than the loaded model's are left out: they mean nothing to its cache.
    """
    spans = store.spans(session_id)
    wanted = {m.id: spans[m.id] for m in messages if m.id in spans}
    answers = {m.id: m for m in messages if m.prompt is not None}
    chains: dict[str, dict[str, int]] = {}
    paths: list[Path] = []
    placed: set[str] = set()
    for message in sorted(messages, key=lambda m: -wanted[m.id].stop if m.id in wanted else 0):
        if message.id in placed or message.id not in wanted:
            continue
        span = wanted[message.id]
        prompt = store.prompt(span.prompt)
        if prompt.tokenizer != tokenizer:
            continue
        ids = store.prompt_ids(span.prompt)
        if message.id in answers:
            ids = ids + (store.out(message.id) or array("I"))
        kept = chains.setdefault(span.prompt, kept_prompts(store, span.prompt))
        parts = []
        for other in store.path(message.id):
            theirs = wanted.get(other.id)
            if theirs is None or other.id in placed:
                continue
            limit = len(ids) if other.id == message.id else kept.get(theirs.prompt, 0)
            if _covers(theirs, limit, is_answer=other.id in answers):
                parts.append(Part(other.id, theirs.start, min(theirs.stop, len(ids))))
                placed.add(other.id)
        paths.append(Path(ids, tuple(parts)))
    return paths


def kept_prompts(store: Store, prompt_id: str) -> dict[str, int]:
    """The prompts this one stands on, and how many ids of each one's path it keeps."""
    found: dict[str, int] = {}
    limit: int | None = None
    current: str | None = prompt_id
    while current is not None:
        prompt = store.prompt(current)
        found[current] = prompt.length if limit is None else limit
        kept = prompt.kept if limit is None else min(prompt.kept, limit)
        if prompt.base_message is not None:
            current = store.message(prompt.base_message).prompt
        else:
            current = prompt.base_prompt
        limit = kept
    return found


def _covers(span: Span, limit: int, *, is_answer: bool) -> bool:
    """An answer's stop token belongs to the next tail: it need not be kept (templates.md, 0.4)."""
    return span.stop - is_answer <= limit


def probe(engine: Engine, paths: Sequence[Path]) -> dict[str, Held]:
    """On the engine's thread: what is cached of each message, when last used, when it would go."""
    order = {step.node_id: index for index, step in enumerate(engine.eviction_plan())}
    held: dict[str, Held] = {}
    ranks: list[tuple[int, int, str]] = []
    for path in paths:
        nodes = engine.path(path.ids)
        end = engine.probe(path.ids)
        for part in path.parts:
            mine = Held(device=max(0, min(part.stop, end) - part.start))
            most = 0
            for node in nodes:
                share = min(node.end, part.stop) - max(node.start, part.start)
                if share > 0 and mine.device:
                    mine.nodes.append(node.id)
                    if share >= most:  # it may stand in several: the one with most of it speaks
                        most, mine.hits, mine.last_used = share, node.hits, node.last_used
            held[part.message] = mine
            goes = [order[node] for node in mine.nodes if node in order]
            if goes:  # tokens go from the end of a node: a later message of the same one goes first
                ranks.append((min(goes), -part.start, part.message))
    for rank, (_, _, message) in enumerate(sorted(ranks), start=1):
        held[message].rank = rank
    return held


def cuts(paths: Sequence[Path], doomed: set[str]) -> list[tuple[Ids, int]]:
    """Where each path's part that belongs to ``doomed`` messages begins."""
    found = []
    for path in paths:
        starts = [part.start for part in path.parts if part.message in doomed]
        if starts:
            found.append((path.ids, min(starts)))
    return found


# -- tree ------------------------------------------------------------------------------------------


def tree_json(
    store: Store,
    place: Place,
    messages: Sequence[Message],
    held: Mapping[str, Held],
    tiers: Mapping[str, Any],
) -> dict[str, Any]:
    session = place.session
    spans = store.spans(session.id)
    now = time.time()
    labels: dict[str, list[str]] = {}
    for label in store.labels(session.id):
        labels.setdefault(label.message, []).append(label.value)
    branches = {b.name: b.message for b in store.branches(session.id) if b.message is not None}
    rows = []
    for message in messages:
        span = spans.get(message.id)
        mine = held.get(message.id, Held())
        age = None if mine.last_used is None else max(0.0, now - mine.last_used)
        rows.append(
            {
                "id": message.id,
                "parent": message.parent,
                "role": message.role,
                "text": shown(message),
                "tokens": None if span is None else span.stop - span.start,
                "cached": {"device": mine.device, "host": 0, "disk": 0},
                "last_used_s": age,
                "hits": mine.hits if mine.device else None,
                "pinned": False,
                "lru_rank": mine.rank,
                "labels": labels.get(message.id, []),
                "finish_reason": message.finish_reason,
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
        "tiers": tiers,
    }


def _shared_tokens(store: Store, heads: Sequence[str], spans: Mapping[str, Span]) -> int:
    """Tokens of the messages that every branch has; 0 where there is one branch only."""
    if len(heads) < 2:
        return 0
    paths = [{m.id for m in store.path(head)} for head in heads]
    common = set.intersection(*paths)
    return sum(spans[m].stop - spans[m].start for m in common if m in spans)


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
    messages: Sequence[Message], which: str, depth: int | None, named: set[str]
) -> list[Message]:
    """The messages a filter shows; one whose parent is hidden hangs from its nearest shown one."""

    def keep(message: Message) -> bool:
        if which == "user-only":
            return message.role in ("user", "system")
        if which == "no-tools":
            return message.role != "tool"
        return which != "labeled" or message.id in named

    levels: dict[str | None, int] = {}
    shown_above: dict[str | None, str | None] = {None: None}
    found: list[Message] = []
    for message in messages:
        level = levels.get(message.parent, -1) + 1
        levels[message.id] = level
        above = shown_above.get(message.parent, message.parent)
        if keep(message) and (depth is None or level < depth):
            found.append(replace(message, parent=above))
            shown_above[message.id] = message.id
        else:
            shown_above[message.id] = above
    return found


# -- log -------------------------------------------------------------------------------------------


def log_json(store: Store, place: Place, at: str | None, last_turns: int | None) -> dict[str, Any]:
    """The linear path to a message; ``last_turns``: only so many user turns of it."""
    path = store.path(at)
    spans = store.spans(place.session.id)
    by_message: dict[str, list[str]] = {}
    for branch in store.branches(place.session.id):
        if branch.message is not None:
            by_message.setdefault(branch.message, []).append(branch.name)
    labels: dict[str, list[str]] = {}
    for label in store.labels(place.session.id):
        labels.setdefault(label.message, []).append(label.value)
    rows: list[dict[str, Any]] = []
    turn = 0
    for message in path:
        turn += message.role == "user"
        span = spans.get(message.id)
        rows.append(
            {
                "id": message.id,
                "parent": message.parent,
                "role": message.role,
                "text": message.text,
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
                "tokens": None if span is None else span.stop - span.start,
                "finish_reason": message.finish_reason,
                "usage": message.usage,
                "timing": message.timing,
                "branches": by_message.get(message.id, []),
                "labels": labels.get(message.id, []),
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


# -- cache -----------------------------------------------------------------------------------------


def tiers_json(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    """The whole cache by tier; budgets are ceilings."""
    if stats is None:
        return {}
    tokens, sizes = stats["tokens"], stats["bytes"]
    used = tokens["total"] - tokens["free"]
    return {
        "device": {
            "tokens": used,
            "bytes": sizes["total"] - sizes["free"],
            "budget_bytes": sizes["total"],
            "budget_tokens": tokens["total"],
        }
    }


def stats_json(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    if stats is None:
        return {"tiers": {}, "requests": 0, "hit_rate": None, "model": None}
    tokens = stats["tokens"]
    return {
        "tiers": tiers_json(stats),
        "total_tokens": tokens["total"],
        "free_tokens": tokens["free"],
        "evictable_tokens": tokens["evictable"],
        "locked_tokens": tokens["locked"],
        **{
            name: stats[name]
            for name in (
                "hit_rate",
                "requests",
                "input_tokens",
                "cached_tokens",
                "output_tokens",
                "rows_run",
                "steps",
                "retractions",
                "prefill_tokens_per_s",
                "page_size",
                "bytes_per_token",
            )
        },
    }


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the radix tree, with its place in the eviction order."""

    id: int
    parent: int | None
    depth: int
    start: int
    end: int
    tokens: Ids
    pages: int
    adds: int
    locks: int
    last_used: float
    hits: int
    rank: int | None
    frees: int


def node_rows(engine: Engine) -> list[NodeRow]:
    """On the engine's thread: every node, ranked by the real evictor run dry."""
    rank: dict[int, int] = {}
    frees: dict[int, int] = {}
    for step in engine.eviction_plan():
        rank.setdefault(step.node_id, len(rank) + 1)
        frees[step.node_id] = frees.get(step.node_id, 0) + step.pages
    return [
        NodeRow(
            id=node.id,
            parent=node.parent,
            depth=node.depth,
            start=node.start,
            end=node.end,
            tokens=node.tokens,
            pages=len(node.pages),
            adds=node.adds,
            locks=node.lock_ref,
            last_used=node.last_used,
            hits=node.hits,
            rank=rank.get(node.id),
            frees=frees.get(node.id, 0),
        )
        for node in engine.nodes()
    ]


def owners(held: Mapping[str, Held]) -> dict[int, list[str]]:
    """Which messages each node serves."""
    serves: dict[int, list[str]] = {}
    for message, mine in held.items():
        for node in mine.nodes:
            serves.setdefault(node, []).append(message)
    return serves
