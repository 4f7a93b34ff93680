"""Which messages' tokens are on disk, and which blocks go with messages that go.

A message's tokens lie on the path that was read when it was said, and on every path that goes on
from there: a block is looked for along the longest, so that a talk of a thousand turns is one walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from radchat.daemon.held import Finder
from radchat.engine.cuts import common_ids
from radchat.engine.request import Ids
from radchat_sessions.content import pack_ids
from radchat_sessions.kv_store import KVFolder, KVStore
from radchat_sessions.store import Store
from radchat_sessions.token_ids import Span, Stand

Ranges = Sequence[tuple[int, int]]  # of tokens, in order, apart from one another


def num_in(ranges: Ranges, start: int, stop: int) -> int:
    """How many tokens of [start, stop) are in the ranges."""
    return sum(max(0, min(end, stop) - max(begin, start)) for begin, end in ranges)


def on_disk(
    store: Store, session: str, blocks: KVFolder, tokenizer: str | None
) -> dict[str, Ranges]:
    """Where on its path each message of a session lies on disk; those of which nothing is are left
    out, and those whose ids are another tokenizer's than this.
    """
    spans, stands = store.spans(session), store.stands(session)
    carriers = carriers_of(spans, stands)
    known: dict[str, Ranges] = {}
    found: dict[str, Ranges] = {}
    for message, span in spans.items():
        carrier = carriers[message]
        if tokenizer not in (None, stands[span.prompt].tokenizer):
            continue
        if carrier not in known:
            known[carrier] = blocks.spans(pack_ids(ids_of(store, carrier, stands)))
        if num_in(known[carrier], span.start, span.stop):
            found[message] = known[carrier]
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


class Doomed(NamedTuple):
    """A path of messages that go, and how many of its first tokens are on a path that stays."""

    ids: Ids
    stays: int


def doomed_paths(store: Store, session: str, doomed: set[str]) -> list[Doomed]:
    """The paths of these messages of a session, while they are all there still.

    What stays is looked for in all sessions; ids are read only as far as they are a doomed path's.
    """
    spans, stands = store.spans(session), store.stands(session)
    carriers = carriers_of({m: s for m, s in spans.items() if m in doomed}, stands)
    lines = Lines([ids_of(store, each, stands) for each in sorted(set(carriers.values()))])
    if not lines.ids:
        return []
    everywhere = store.spans(None)
    finder = Finder(store, lines, everywhere, store.stands(None))
    for message, span in everywhere.items():
        if message not in doomed:
            lines.mark(finder.of_message(message, span))
    return [Doomed(ids, lines.marked(line)) for line, ids in enumerate(lines.ids)]


def delete(disk: KVStore, paths: Sequence[Doomed]) -> tuple[int, int]:
    """Every block, of any model, that has ids of these paths beyond what stays; tokens, bytes."""
    before = disk.stats()
    for name in before.by_fingerprint:
        blocks = disk.of(name)
        for path in paths:
            for block in blocks.blocks(pack_ids(path.ids)):
                if block.end > path.stays:
                    blocks.delete(block)
    after = disk.stats()
    return max(0, before.tokens - after.tokens), max(0, before.bytes - after.bytes)


class OnLine(NamedTuple):
    """So many ids as one of the lines begins with."""

    line: int
    end: int


class Lines:
    """Paths side by side, to be followed as a radix tree is (held.py)."""

    nothing = OnLine(0, 0)

    def __init__(self, ids: Sequence[Ids]) -> None:
        self.ids = ids
        self._marks = [0] * len(ids)
        self._common: dict[tuple[int, int], int] = {}

    def knows(self, tokenizer: str) -> bool:  # noqa: ARG002 - ids are compared, whoever made them
        return True

    def follow(self, match: OnLine, ids: Ids) -> OnLine:
        best = match
        for line, own in enumerate(self.ids):
            if self._together(line, match.line) >= match.end:
                num = common_ids(own[match.end : match.end + len(ids)], ids)
                best = max(best, OnLine(line, match.end + num), key=lambda each: each.end)
        return best

    def cut(self, match: OnLine, end: int) -> OnLine:
        return OnLine(match.line, min(match.end, end))

    def mark(self, match: OnLine) -> None:
        """So much of a line stays."""
        self._marks[match.line] = max(self._marks[match.line], match.end)

    def marked(self, line: int) -> int:
        """How much of a line does, with what it shares with others."""
        return max(min(self._together(line, other), end) for other, end in enumerate(self._marks))

    def _together(self, line: int, other: int) -> int:
        """How many of their first ids two lines have in common."""
        key = min(line, other), max(line, other)
        if line == other:
            return len(self.ids[line])
        if key not in self._common:
            self._common[key] = common_ids(self.ids[line], self.ids[other])
        return self._common[key]
