"""Which messages' tokens are on disk, and which blocks go with messages that go.

A message's tokens lie on the path that was read when it was said, and on every path that goes on
from there: a block is looked for along the longest, so that a talk of a thousand turns is one walk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from radchat.daemon.held import Finder
from radchat.engine.request import Ids
from radchat_sessions.content import pack_ids
from radchat_sessions.kv_blocks import ID_BYTES, Block, common_ids
from radchat_sessions.kv_store import KVFolder, KVStore
from radchat_sessions.store import Store
from radchat_sessions.token_ids import Span, Stand

Ranges = Sequence[tuple[int, int]]  # of tokens, in order, apart from one another


class OnDisk(NamedTuple):
    """A message's path as it is on disk."""

    ranges: Ranges
    last_used: float  # of what has tokens of the message; wall clock


def num_in(ranges: Ranges, start: int, stop: int) -> int:
    """How many tokens of [start, stop) are in the ranges."""
    return sum(max(0, min(end, stop) - max(begin, start)) for begin, end in ranges)


def on_disk(
    store: Store, session: str, blocks: KVFolder, tokenizer: str | None
) -> dict[str, OnDisk]:
    """Where on its path each message of a session lies on disk; those of which nothing is are left
    out, and those whose ids are another tokenizer's than this.
    """
    return spans_on_disk(store, store.spans(session), store.stands(session), blocks, tokenizer)


def spans_on_disk(
    store: Store,
    spans: Mapping[str, Span],
    stands: Mapping[str, Stand],
    blocks: KVFolder,
    tokenizer: str | None,
) -> dict[str, OnDisk]:
    """The same of some messages; ``stands``: of their prompts, and maybe of others."""
    carriers = carriers_of(spans, stands)
    known: dict[str, list[Block]] = {}
    found: dict[str, OnDisk] = {}
    for message, span in spans.items():
        carrier = carriers[message]
        if tokenizer not in (None, stands[span.prompt].tokenizer):
            continue
        if carrier not in known:
            known[carrier] = blocks.best(pack_ids(ids_of(store, carrier, stands)))
        mine = [b for b in known[carrier] if b.start < span.stop and b.end > span.start]
        if mine:
            ranges = [(block.start, block.end) for block in mine]
            found[message] = OnDisk(ranges, max(block.last_used for block in mine))
    return found


def carriers_of(spans: Mapping[str, Span], stands: Mapping[str, Stand]) -> dict[str, str]:
    """By message: a prompt or an answer whose path has all of its tokens, and goes as far as any.

    A stop token is said again by the turn after it: an answer's path may do without.
    """
    goes_on: dict[str, list[tuple[int, str]]] = {}  # a prompt or an answer -> what keeps how much
    for prompt, stand in stands.items():
        base = stand.base
        if base is not None and stand.answer is not None and stand.kept > stands[base].length:
            base = stand.answer
        if base is not None:
            goes_on.setdefault(base, []).append((stand.kept, prompt))
    answers: dict[str, list[str]] = {}
    needed: dict[str, int] = {}
    for message, span in spans.items():
        if span.start == stands[span.prompt].length:
            answers.setdefault(span.prompt, []).append(message)
            needed[message] = span.stop - 1
        else:
            needed[span.prompt] = max(needed.get(span.prompt, 0), span.stop)
    carrier: dict[str, str] = {}
    for prompt in reversed(list(stands)):  # what goes on from it first
        for answer in answers.get(prompt, ()):
            fits = [each for kept, each in goes_on.get(answer, ()) if kept >= needed[answer]]
            carrier[answer] = carrier[fits[-1]] if fits else answer
        least = needed.get(prompt, 0)
        fits = [each for kept, each in goes_on.get(prompt, ()) if kept >= least]
        nexts = [*fits, *answers.get(prompt, ())]
        carrier[prompt] = carrier[nexts[-1]] if nexts else prompt
    return {m: carrier[m] if m in carrier else carrier[s.prompt] for m, s in spans.items()}


def ids_of(store: Store, carrier: str, stands: Mapping[str, Stand]) -> Ids:
    """Of a prompt's path, or of an answer's."""
    if carrier in stands:
        return store.prompt_ids(carrier)
    ids = store.ids(carrier)
    assert ids is not None
    return ids


# -- what goes -------------------------------------------------------------------------------------


class Doomed:
    """Paths of messages that go, and how many of the first tokens of each are on a path that stays.

    Side by side in order, so that of all paths one's neighbours have most of its ids in common.
    """

    def __init__(self, paths: Sequence[bytes], stays: Sequence[int]) -> None:
        self.paths, self.stays = paths, stays

    def goes(self, raw: bytes) -> bool:
        """Whether a path has ids of these beyond what stays."""
        at = bisect_left(self.paths, raw)
        near = range(max(0, at - 1), min(len(self.paths), at + 1))
        return any(common_ids(self.paths[each], raw) > self.stays[each] for each in near)


def doomed_paths(store: Store, session: str, doomed: set[str]) -> Doomed:
    """The paths of these messages of a session, while they are all there still.

    What stays is looked for in all sessions; ids are read only as far as they are a doomed path's.
    """
    spans, stands = store.spans(session), store.stands(session)
    carriers = carriers_of({m: s for m, s in spans.items() if m in doomed}, stands)
    lines = Lines([pack_ids(ids_of(store, each, stands)) for each in set(carriers.values())])
    if lines.paths:
        everywhere = store.spans(None)
        finder = Finder(store, lines, everywhere, store.stands(None))
        for message, span in everywhere.items():
            if message not in doomed:
                lines.mark(finder.of_message(message, span))
    return Doomed(lines.paths, lines.marked())


def delete(disk: KVStore, doomed: Doomed) -> tuple[int, int]:
    """Every block, of any model, that has ids of these paths beyond what stays; tokens, bytes."""
    before = disk.stats()
    for name in before.by_fingerprint:
        blocks = disk.of(name)
        for path, stays in zip(doomed.paths, doomed.stays, strict=True):
            for block in blocks.blocks(path):
                if block.end > stays:
                    blocks.delete(block)
    after = disk.stats()
    return max(0, before.tokens - after.tokens), max(0, before.bytes - after.bytes)


class OnLines(NamedTuple):
    """So many ids as lines ``low`` to ``high`` begin with, and no other does."""

    low: int
    high: int
    end: int


class Lines:
    """Paths in order, to be followed as a radix tree is (held.py)."""

    def __init__(
        self,
        paths: Sequence[bytes],
        common: Callable[[bytes, bytes], int] = common_ids,
    ) -> None:
        """``common``: how many first ids two runs share; for tests."""
        self.paths = sorted(set(paths))
        self._common = common
        self._together = [common(one, other) for one, other in pairwise(self.paths)]
        self._marks = [0] * len(self.paths)
        self.nothing = OnLines(0, len(self.paths), 0)

    def knows(self, tokenizer: str) -> bool:  # noqa: ARG002 - ids are compared, whoever made them
        return True

    def follow(self, match: OnLines, ids: Ids) -> OnLines:
        """Of the lines that have what is matched: those that go on with most of the ids."""
        low, high, begin = match
        raw = pack_ids(ids)

        def next_ids(num: int) -> Callable[[bytes], bytes]:
            return lambda path: path[begin * ID_BYTES : (begin + num) * ID_BYTES]

        at = bisect_left(self.paths, raw, low, high, key=next_ids(len(ids)))
        near = self.paths[max(low, at - 1) : min(high, at + 1)]
        num = max((self._common(next_ids(len(ids))(path), raw) for path in near), default=0)
        if num == 0:
            return match
        run, key = raw[: num * ID_BYTES], next_ids(num)
        low = bisect_left(self.paths, run, low, high, key=key)
        return OnLines(low, bisect_right(self.paths, run, low, high, key=key), begin + num)

    def cut(self, match: OnLines, end: int) -> OnLines:
        low, high, _ = match
        if end >= match.end:
            return match
        while low > 0 and self._together[low - 1] >= end:
            low -= 1
        while high < len(self.paths) and self._together[high - 1] >= end:
            high += 1
        return OnLines(low, high, end)

    def mark(self, match: OnLines) -> None:
        """So much of these lines stays."""
        self._marks[match.low] = max(self._marks[match.low], match.end)

    def marked(self) -> list[int]:
        """How much of each line does, with what it shares with others."""
        stays = list(self._marks)
        for at, common in enumerate(self._together):
            stays[at + 1] = max(stays[at + 1], min(stays[at], common))
        for at, common in reversed(list(enumerate(self._together))):
            stays[at] = max(stays[at], min(stays[at + 1], common))
        return stays
