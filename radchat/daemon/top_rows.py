"""What sits where, by whose it is: the rows of `cache top`.

Every token belongs to one row: to the branch that alone has it on its path, to all the branches of
its session together where several have, or of several sessions, or to nobody (retried, undone). On
the device that goes by the ids in the radix tree, so that what rows hold adds up to the tier; what
a row's messages have there and on disk is counted message by message, as in the tree's picture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from radchat.daemon.disk_paths import OnDisk, num_in, spans_on_disk
from radchat.daemon.held import NOTHING, Finder, Held, Match, Snapshot, held_of
from radchat.daemon.turns import shown
from radchat.daemon.views import own_tokens
from radchat.engine.node_view import NodeView
from radchat_sessions.kv_store import KVFolder
from radchat_sessions.messages import Branch, Link, Running
from radchat_sessions.store import Store

Kind = Literal["branch", "shared", "unnamed", "running"]
Blocks: TypeAlias = Callable[[str], tuple[KVFolder | None, str | None]]  # of a session; tokenizer


class Owner(NamedTuple):
    """``shared``: of a session's branches together; without a session, of several sessions'."""

    kind: Kind
    session: str | None = None
    branch: str | None = None


NOBODY, SESSIONS, RUNNING = Owner("unnamed"), Owner("shared"), Owner("running")


def joined(one: Owner, other: Owner) -> Owner:
    """Whose it is where both have it."""
    if NOBODY in (one, other):
        return other if one == NOBODY else one
    if one == other:
        return one
    return Owner("shared", one.session) if one.session == other.session else SESSIONS


def owners(links: Mapping[str, Link], branches: Iterable[Branch]) -> dict[str, Owner]:
    """By message; those that no branch has on its path are left out."""
    found: dict[str, Owner] = {}

    def add(message: str | None, owner: Owner) -> None:
        if message is not None and owner != NOBODY:
            found[message] = joined(found.get(message, NOBODY), owner)

    for branch in branches:
        add(branch.message, Owner("branch", branch.session, branch.name))
    for message in reversed(list(links)):  # what follows before what it follows
        add(links[message].parent, found.get(message, NOBODY))
    return found


@dataclass(slots=True)
class Row:
    owner: Owner
    tokens: int = 0  # of its messages
    device: int = 0
    disk: int = 0  # and not on the device
    held: int = 0  # what its part of the device takes, in whole pages; the three below add up to it
    evictable: int = 0
    pinned: int = 0
    locked: int = 0
    last_used: float | None = None  # wall clock
    hits: int | None = None
    answers: list[str] = field(default_factory=list)  # those that rely on it now
    goes: tuple[int, int] | None = None  # its place in the order of going
    next: int = 0  # tokens that go first
    _most: int = -1

    def take(self, node: NodeView, held: int, at: tuple[int, int] | None) -> None:
        """Its part of a node."""
        self.held += held
        if node.lock_ref:
            self.locked += held
        elif node.pins:
            self.pinned += held
        else:
            self.evictable += held
        if held and at is not None and (self.goes is None or at < self.goes):
            self.goes, self.next = at, held
        self.last_used = max(self.last_used or 0.0, node.last_used)
        if held > self._most:  # the node with most of it speaks
            self._most, self.hits = held, node.hits


class Table:
    """The rows, filled store by store, then by what is on the device."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._rows: dict[Owner, Row] = {}
        self._ends: list[tuple[Match, Owner]] = []  # paths that are cached so far
        self._told: dict[Owner, dict[str, Any]] = {}
        self.answers: list[dict[str, Any]] = []  # in progress
        self._reach: list[tuple[str, Match]] = []  # what each of them relies on

    def row(self, owner: Owner) -> Row:
        return self._rows.setdefault(owner, Row(owner))

    # -- the stores ------------------------------------------------------------------------------

    def add(self, store: Store, blocks: Blocks | None) -> None:
        """``blocks``: where a session's KV is on disk; None: nowhere. On the desk."""
        links, branches = store.links(), store.branches(None)
        whose, spans = owners(links, branches), store.spans(None)
        held = {} if self._snapshot is None else held_of(store, None, self._snapshot)
        disk = {} if blocks is None else _on_disk(store, links, blocks)
        for message, link in links.items():
            tokens, twice = own_tokens(spans, message, link.parent)
            if tokens is None:
                continue
            mine, there = held.get(message, Held()), disk.get(message)
            device, span = max(mine.device - twice, 0), spans[message]
            only = 0
            if there is not None:
                only = num_in(there.ranges, span.start + max(twice, mine.device), span.stop)
            owner = whose.get(message, NOBODY)
            if owner == NOBODY and not device + only:
                continue  # of what has no name, what is kept is told of
            row = self.row(owner)
            row.tokens, row.device, row.disk = (
                row.tokens + tokens,
                row.device + device,
                row.disk + only,
            )
            if there is not None and only:
                row.last_used = max(row.last_used or 0.0, there.last_used)
        for branch in branches:
            self._name(store, branch, is_ephemeral=blocks is None)
            at = branch.message
            while at is not None and at not in held:
                at = links[at].parent
            match = NOTHING if at is None else held[at].match
            self._ends.append((match, Owner("branch", branch.session, branch.name)))
        names = {(branch.session, branch.name) for branch in branches}
        for running in store.running():
            self._rely(store, running, is_named=(running.session, running.branch) in names)

    def _name(self, store: Store, branch: Branch, *, is_ephemeral: bool) -> None:
        name = store.session(branch.session).name
        owner, message = Owner("branch", branch.session, branch.name), branch.message
        told = {"name": name, "ephemeral": is_ephemeral}
        text = None if message is None else shown(store.message(message))
        self._told[owner] = {**told, "message": message, "text": text}
        self._told[Owner("shared", branch.session)] = told
        self.row(owner)

    def _rely(self, store: Store, running: Running, *, is_named: bool) -> None:
        """An answer in progress: its prompt is its branch's."""
        told = {"session": running.session, "name": store.session(running.session).name}
        asked = shown(store.message(running.parent))
        self.answers.append(
            {"message": running.id, **told, "branch": running.branch, "text": asked}
        )
        if self._snapshot is not None:
            stands = store.stands(running.session)
            match = Finder(store, self._snapshot, {}, stands).of_prompt(running.prompt)
            self._reach.append((running.id, match))
            if is_named:
                self._ends.append((match, Owner("branch", running.session, running.branch)))

    # -- the device ------------------------------------------------------------------------------

    def share_out(self, used: int, locked: int) -> None:
        """What the tree holds, to whose it is. ``used``, ``locked``: tokens on the device, by the
        engine's own count: what is beyond the tree is being computed.
        """
        if self._snapshot is None:
            return
        relied: dict[int, list[str]] = {}
        for answer, match in self._reach:
            for node in self._snapshot.up(match.node):
                relied.setdefault(node.id, []).append(answer)
        for node, start, end, owner in parts(self._snapshot.nodes, self._ends):
            is_said_now = owner == NOBODY and node.lock_ref > 0  # by an answer in progress
            row = self.row(RUNNING if is_said_now else owner)
            index = self._snapshot.place(node)
            held = pages_of(node, start, end, self._snapshot.page_size)
            row.take(
                node,
                held * self._snapshot.page_size,
                None if index is None else (index, -start),
            )
            row.answers += [each for each in relied.get(node.id, ()) if each not in row.answers]
        used -= sum(row.held for row in self._rows.values())
        locked -= sum(row.locked for row in self._rows.values())
        if used:
            row = self.row(RUNNING)
            row.held += used
            row.locked += locked
            row.evictable += used - locked
            row.answers = [answer["message"] for answer in self.answers]

    # -- what is told ----------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """What goes first is first; what does not go, by whose it is."""
        going = sorted(
            (row for row in self._rows.values() if row.goes is not None),
            key=lambda row: row.goes or (0, 0),
        )
        rank = {row.owner: index for index, row in enumerate(going, start=1)}
        made = [self._json(row, rank.get(row.owner)) for row in self._rows.values()]
        last = len(rank) + 1
        made.sort(key=lambda row: (row["lru_rank"] or last, row["name"] or "", row["branch"] or ""))
        return made

    def _json(self, row: Row, rank: int | None) -> dict[str, Any]:
        used, told = row.last_used, self._told.get(row.owner, {})
        return {
            "kind": row.owner.kind,
            "session": row.owner.session,
            "name": told.get("name"),
            "ephemeral": told.get("ephemeral", False),
            "branch": row.owner.branch,
            "message": told.get("message"),
            "text": told.get("text"),
            "tokens": row.tokens,
            "cached": {"device": row.device, "host": 0, "disk": row.disk},
            "held_tokens": row.held,
            "evictable_tokens": row.evictable,
            "pinned_tokens": row.pinned,
            "locked_tokens": row.locked,
            "answers": row.answers,
            "last_used_s": None if used is None else max(0.0, time.time() - used),
            "hits": row.hits,
            "lru_rank": rank,
            "next_tokens": row.next,
        }


def parts(
    nodes: list[NodeView], ends: Iterable[tuple[Match, Owner]]
) -> Iterator[tuple[NodeView, int, int, Owner]]:
    """Every token of the nodes, in runs [start, end) of one node that are one owner's. ``ends``:
    how far each owner's paths are cached.
    """
    at: dict[int | None, list[tuple[int, Owner]]] = {}
    for match, owner in ends:
        if match.node is not None:
            at.setdefault(match.node.id, []).append((match.end, owner))
    for node in reversed(nodes):  # what follows before what it follows
        end, owner = node.end, NOBODY
        for stop, other in (*sorted(at.get(node.id, ()), key=_later), (node.start, NOBODY)):
            if stop < end:
                yield node, stop, end, owner
                end = stop
            owner = joined(owner, other)
        at.setdefault(node.parent, []).append((node.start, owner))


def _later(end: tuple[int, Owner]) -> int:
    return -end[0]


def pages_of(node: NodeView, start: int, end: int, size: int) -> int:
    """Pages of a node that hold a run of its tokens: each page counts where its first token does,
    and not where a node above has it too.
    """
    first = node.start // size + len(node.pages) - node.adds
    begin = first if start == node.start else max(-(-start // size), first)
    return -(-end // size) - begin


def _on_disk(store: Store, links: Mapping[str, Link], blocks: Blocks) -> dict[str, OnDisk]:
    """Where each message of a store is on disk, for the model of the session that wrote it."""
    spans, stands = store.spans(None), store.stands(None)
    places: dict[str | None, tuple[KVFolder | None, str | None]] = {None: (None, None)}
    mine: dict[tuple[str, str | None], tuple[KVFolder, dict[str, Any]]] = {}
    for message, span in spans.items():
        origin = links[message].origin
        if origin not in places:
            places[origin] = blocks(str(origin))
        folder, tokenizer = places[origin]
        if folder is not None:
            key = folder.fingerprint, tokenizer
            mine.setdefault(key, (folder, {}))[1][message] = span
    found: dict[str, OnDisk] = {}
    for (_, tokenizer), (folder, some) in mine.items():
        found |= spans_on_disk(store, some, stands, folder, tokenizer)
    return found
