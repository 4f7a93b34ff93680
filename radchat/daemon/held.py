"""What the cache holds of which message.

The radix tree is copied once, on the engine's thread; the rest happens on the desk's. A prompt
continues where the one it stands on was matched, so its ids are read only where its beginning is
cached, and only the new ones: the work is that of the ids that are cached, not of all paths to all
messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from radchat.engine.cuts import common_ids
from radchat.engine.request import Ids
from radchat_sessions.store import Store
from radchat_sessions.token_ids import Span, Stand

if TYPE_CHECKING:
    from radchat.engine.node_view import NodeView
    from radchat.engine.prefix_cache import PrefixCache


class Match(NamedTuple):
    """How far a path is cached: ``end`` tokens, the last of them in ``node``."""

    node: NodeView | None
    end: int


NOTHING = Match(None, 0)


@dataclass(slots=True)
class Held:
    """What the cache has of one message."""

    device: int = 0  # tokens
    last_used: float | None = None  # wall clock
    hits: int = 0
    rank: int | None = None  # 1 goes first, among the messages asked about
    pinned: bool = False  # all that is cached of it is kept on purpose
    nodes: list[int] = field(default_factory=list)
    start: int = 0  # of its tokens on their path
    match: Match = NOTHING  # the path to the end of what is cached of it


class Snapshot:
    """A loaded model's radix tree at one moment, and the order in which its nodes would go."""

    def __init__(self, cache: PrefixCache, tokenizer: str, key: str = "") -> None:
        """On the engine's thread. ``tokenizer``: the hash of the one whose ids these are; ``key``:
        of the engine it was taken of.
        """
        self.tokenizer, self.key = tokenizer, key
        self.page_size = cache.page_size
        self.nodes = [node for node in cache.nodes() if not node.namespace]
        self.plan = cache.eviction_plan()
        self._by_id = {node.id: node for node in self.nodes}
        self._children = {(node.parent, node.tokens[0]): node for node in self.nodes}
        self._order = {step.node_id: index for index, step in enumerate(self.plan)}

    nothing = NOTHING

    def knows(self, tokenizer: str) -> bool:
        """Ids of another tokenizer than the loaded model's mean nothing to its cache."""
        return tokenizer == self.tokenizer

    def follow(self, match: Match, ids: Ids) -> Match:
        """The match of a path that goes on with ``ids``."""
        node, at = match
        done = 0
        while done < len(ids):
            if node is None or at == node.end:
                child = self._children.get((None if node is None else node.id, ids[done]))
                if child is None:
                    break
                node = child
            num = min(node.end - at, len(ids) - done)
            offset = at - node.start
            num = common_ids(node.tokens[offset : offset + num], ids[done : done + num])
            at, done = at + num, done + num
            if at < node.end:
                break
        return Match(node, at)

    def up(self, node: NodeView | None) -> Iterator[NodeView]:
        """The node and those above it."""
        while node is not None:
            yield node
            node = None if node.parent is None else self._by_id[node.parent]

    def cut(self, match: Match, end: int) -> Match:
        """The match of the path's first ``end`` tokens; ``end`` is no more than is cached."""
        node = next((node for node in self.up(match.node) if node.start < end), None)
        return NOTHING if node is None else Match(node, end)

    def ids(self, match: Match) -> Ids:
        """The ids of a matched path."""
        ids = array("I")
        for node in reversed(list(self.up(match.node))):
            ids.extend(node.tokens)
        return ids[: match.end]

    def look(self, span: Span, match: Match) -> Held:
        """What is cached of the tokens of ``span``, whose path matches so far."""
        end = min(span.stop, match.end)
        if end <= span.start:
            return Held()
        mine = Held(end - span.start, pinned=True, start=span.start, match=self.cut(match, end))
        most = 0
        for node in self.up(mine.match.node):
            if node.end <= span.start:
                break
            mine.nodes.append(node.id)
            mine.pinned &= node.pins > 0
            share = min(node.end, end) - max(node.start, span.start)
            if share > most:  # it may stand in several: the one with most of it speaks
                most, mine.hits, mine.last_used = share, node.hits, node.last_used
        mine.nodes.reverse()
        return mine

    def place(self, node: NodeView) -> int | None:
        """A node's in the order of going; None: something relies on it, or keeps it."""
        return self._order.get(node.id)

    def rank(self, held: Mapping[str, Held]) -> None:
        """Order the messages as the evictor, run dry, would take them."""
        ranks = []
        for message, mine in held.items():
            goes = [self._order[node] for node in mine.nodes if node in self._order]
            if goes:  # tokens go from the end of a node: a later message of the same goes first
                ranks.append((min(goes), -mine.start, message))
        for rank, (_, _, message) in enumerate(sorted(ranks), start=1):
            held[message].rank = rank


def held_of(store: Store, session: str | None, snapshot: Snapshot) -> dict[str, Held]:
    """What is cached of each message of a session, or of every message in the store.

    Messages of which nothing is cached are left out. Ids of another tokenizer than the loaded
    model's mean nothing to its cache.
    """
    spans, stands = store.spans(session), store.stands(session)
    finder = Finder(store, snapshot, spans, stands)
    matches = {message: finder.of_message(message, span) for message, span in spans.items()}
    # A stop token belongs to the next turn: the KV of an answer's is found on the path of that.
    for prompt, stand in stands.items():
        if stand.answer in matches and stand.kept >= spans[stand.answer].stop - 1:
            after = finder.of_prompt(prompt)
            if after.end > matches[stand.answer].end:
                matches[stand.answer] = after
    held = {message: snapshot.look(spans[message], match) for message, match in matches.items()}
    held = {message: mine for message, mine in held.items() if mine.device}
    snapshot.rank(held)
    return held


class Matched(Protocol):
    """How far a path is in a tree, and there where."""

    @property
    def end(self) -> int: ...


M = TypeVar("M", bound=Matched)


class Tree(Protocol[M]):
    """What has paths: ``nothing`` is the match of none, and ``cut`` that of the first ids of one
    that is matched.
    """

    @property
    def nothing(self) -> M: ...
    def knows(self, tokenizer: str) -> bool: ...
    def follow(self, match: M, ids: Ids) -> M: ...
    def cut(self, match: M, end: int) -> M: ...


class Finder(Generic[M]):
    """The matches of prompts and answers in a tree, each found once."""

    def __init__(
        self,
        store: Store,
        tree: Tree[M],
        spans: Mapping[str, Span],
        stands: Mapping[str, Stand],
    ) -> None:
        self._store, self._tree = store, tree
        self._stands, self._spans = stands, spans
        self._answers: dict[str, M] = {}
        self._prompts: dict[str, M] = {}
        for prompt in stands:  # each after what it stands on: no recursion, however long the talk
            self._prompts[prompt] = self._find(prompt)

    def of_prompt(self, prompt: str) -> M:
        return self._prompts[prompt]

    def of_message(self, message: str, span: Span) -> M:
        """An answer's path goes on after its prompt; another message's ends in one."""
        is_answer = span.start == self._stands[span.prompt].length
        return self._of_answer(message, span.prompt) if is_answer else self._prompts[span.prompt]

    def _of_answer(self, message: str, prompt: str) -> M:
        if message not in self._answers:
            match = self._prompts[prompt]
            if match.end == self._stands[prompt].length:
                match = self._tree.follow(match, self._store.out(message) or array("I"))
            self._answers[message] = match
        return self._answers[message]

    def _find(self, prompt: str) -> M:
        stand = self._stands[prompt]
        match = self._tree.nothing
        if not self._tree.knows(stand.tokenizer):
            return match
        if stand.base is not None:
            match = self._prompts[stand.base]
            if stand.answer is not None and stand.kept > self._stands[stand.base].length:
                match = self._of_answer(stand.answer, stand.base)
            if match.end < stand.kept:
                return match
            match = self._tree.cut(match, stand.kept)
        return self._tree.follow(match, self._store.prompt(prompt).tail)


def cuts(snapshot: Snapshot, held: Mapping[str, Held], doomed: set[str]) -> list[tuple[Ids, int]]:
    """Paths and where the part of them that belongs to ``doomed`` messages alone begins.

    What follows a doomed message is doomed: one path an end, from the first that goes.
    """
    starts: dict[int, int] = {}  # of the doomed messages that end in a node
    stays: dict[int, int] = {}  # how far others use the node they end in; those above have children
    ends: list[Match] = []
    for message, mine in held.items():
        assert mine.match.node is not None
        node = mine.match.node.id
        if message in doomed:
            starts[node] = min(starts.get(node, mine.start), mine.start)
            ends.append(mine.match)
        else:
            stays[node] = max(stays.get(node, 0), mine.match.end)
    covered: set[int] = set()
    found = []
    for match in sorted(ends, key=lambda match: -match.end):
        assert match.node is not None
        if match.node.id in covered:
            continue
        path = [node.id for node in snapshot.up(match.node)]
        covered.update(path)
        start = min(starts[n] for n in path if n in starts)
        start = max(start, *(stays.get(n, 0) for n in path))
        if start < match.end:
            found.append((snapshot.ids(match), start))
    return found


def owners(held: Mapping[str, Held]) -> dict[int, list[str]]:
    """Which messages each node serves, along the path."""
    serves: dict[int, list[str]] = {}
    for message, mine in sorted(held.items(), key=lambda item: item[1].start):
        for node in mine.nodes:
            serves.setdefault(node, []).append(message)
    return serves
