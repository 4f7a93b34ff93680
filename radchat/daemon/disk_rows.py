"""The blocks on disk as `cache ls` lists them: in the order in which they would go, and whose."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from radchat.daemon.held import Finder
from radchat.engine.cuts import common_ids
from radchat.engine.request import Ids
from radchat_sessions.content import unpack_ids
from radchat_sessions.kv_blocks import ROOT
from radchat_sessions.kv_store import KVEntry
from radchat_sessions.store import Store


class InBlock(NamedTuple):
    """How far a path is on disk: ``end`` tokens, the last of them in ``block``."""

    block: int | None  # its place in the list
    end: int


class BlockTree:
    """The blocks of one fingerprint, to be followed as a radix tree is (held.py). What lies behind
    a hole is nobody's here.
    """

    nothing = InBlock(None, 0)

    def __init__(self, entries: Mapping[int, KVEntry]) -> None:
        self._entries = entries
        self._ids = {place: unpack_ids(entry.ids) for place, entry in entries.items()}
        self._children: dict[str, list[int]] = {}
        self._places: dict[str, int] = {}
        for place, entry in entries.items():
            self._children.setdefault(entry.parent, []).append(place)
            self._places[entry.key] = place

    def knows(self, tokenizer: str) -> bool:  # noqa: ARG002 - ids are compared, whoever made them
        return True

    def follow(self, match: InBlock, ids: Ids) -> InBlock:
        done = 0
        while True:
            parent, begun = self._from(match)
            rest = begun + ids[done:]
            fits = [
                (common_ids(self._ids[place], rest), place)
                for place in self._children.get(parent, ())
            ]
            num, place = max(fits, default=(0, 0))
            if num <= len(begun):
                return match
            done += num - len(begun)
            match = InBlock(place, match.end + num - len(begun))
            if done == len(ids) or num < len(self._ids[place]):
                return match

    def _from(self, match: InBlock) -> tuple[str, Ids]:
        """After which block the path goes on, and its ids since the end of that."""
        if match.block is None:
            return ROOT, array("I")
        entry = self._entries[match.block]
        if match.end == entry.start + entry.num_tokens:
            return entry.key, array("I")
        return entry.parent, self._ids[match.block][: match.end - entry.start]

    def cut(self, match: InBlock, end: int) -> InBlock:
        for place in self.up(match.block):
            if self._entries[place].start < end:
                return InBlock(place, min(match.end, end))
        return self.nothing

    def up(self, place: int | None) -> Iterator[int]:
        """The block and those it goes on from."""
        while place is not None:
            yield place
            place = self._places.get(self._entries[place].parent)

    def serves(self, store: Store) -> dict[int, tuple[int, str]]:
        """By block: how far into it the last message of the store that has tokens there comes, and
        which it is.
        """
        spans, stands = store.spans(None), store.stands(None)
        finder = Finder(store, self, spans, stands)
        found: dict[int, tuple[int, str]] = {}
        for message, span in spans.items():
            match = finder.of_message(message, span)
            for place in self.up(match.block):
                entry = self._entries[place]
                if entry.start + entry.num_tokens <= span.start:
                    break
                end = min(match.end, span.stop)
                if end > max(span.start, entry.start):
                    found[place] = max(found.get(place, (0, "")), (end, message))
        return found


def disk_rows(
    entries: Sequence[KVEntry], store: Store, decode: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """On the desk. ``decode``: of the models that are loaded, by fingerprint."""
    by_model: dict[str, dict[int, KVEntry]] = {}
    for place, entry in enumerate(entries):
        by_model.setdefault(entry.fingerprint, {})[place] = entry
    owners: dict[int, str] = {}
    for own in by_model.values():
        served = BlockTree(own).serves(store)
        owners |= {place: message for place, (_, message) in served.items()}
    names: dict[str, str] = {}
    now = time.time()
    rows = []
    for place, entry in enumerate(entries):
        message = owners.get(place)
        session = None if message is None else store.message(message).origin
        if session is not None and session not in names:
            names[session] = store.session(session).name
        text = decode.get(entry.fingerprint)
        rows.append(
            {
                "rank": place + 1,
                "node": entry.key[:8],
                "tokens": entry.num_tokens,
                "frees": entry.num_tokens,
                "tier": "D",
                "pinned": False,
                "locks": 0,
                "last_used_s": max(0.0, now - entry.last_used),
                "hits": None,
                "session": session,
                "name": None if session is None else names[session],
                "message": message,
                "text": None if text is None else text(unpack_ids(entry.ids)),
            }
        )
    return rows
