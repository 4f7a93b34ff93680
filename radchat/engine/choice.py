"""The state of one request inside the engine, and of each of its choices.

A request begins as one choice that carries the numbers of its unborn siblings: the prompt runs
once, and when its last row has been drawn from n times the siblings fork from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from radchat.engine.kinship import Kinship
from radchat.engine.reader import Restore
from radchat.engine.request import Ids, Priority, Request, Span, Tier, TokenLogprob, Usage
from radchat.engine.sampling import Seen
from radchat.engine.words import Words

if TYPE_CHECKING:
    from radchat.engine.matcher import Matcher
    from radchat.engine.prefix_cache import Lease


@dataclass(slots=True, eq=False)
class Group:
    """One request: what its choices share."""

    request: Request
    serial: int  # order of arrival
    arrived: float  # on the engine's clock
    limit: int  # most ids a choice may put out: max_tokens, and what the context leaves
    live: int  # choices that have not ended, unborn ones included
    started: bool = False
    spans: list[Span] = field(default_factory=list)  # of the prompt, from its start without a hole
    restored: int = 0  # tokens up to here came from disk, and no row has attended to them yet
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def prompt_len(self) -> int:
        return len(self.request.ids)

    @property
    def covered(self) -> int:
        """Prompt tokens whose KV was there or made, and is told of."""
        return self.spans[-1].end if self.spans else 0

    @property
    def scores(self) -> tuple[TokenLogprob | None, ...] | None:
        """Log probabilities of the prompt, where they were asked for and all are known."""
        known = self.prompt_logprobs
        return tuple(known) if known and len(known) == self.prompt_len else None

    def found(self, cached_len: int) -> None:
        """Tokens [0, cached_len) were in the tree at an admission (first, or after a retract).

        After one, what had been restored and not used is found like all else in the tree.
        """
        self.restored = 0
        if self.request.scores:  # from there on every token runs, found or not
            cached_len = min(cached_len, first_scored(self.request))
        self._cover(cached_len, "device")

    def settle(self) -> int:
        """What was restored counts from now on; how many tokens that is."""
        before = self.covered
        self._cover(self.restored, "disk")
        return self.covered - before

    def ran(self, end: int) -> int:
        """Tokens up to ``end`` have been run; what runs a second time is not counted here.

        Returns how many tokens from disk have been used so for the first time.
        """
        used = self.settle()
        self._cover(end, "computed")
        return used

    def was_ahead(self, start: int, end: int) -> int:
        """Of what was found on the device, a ``load`` had brought tokens [start, end) for this.

        Returns how many tokens from disk have been used so for the first time.
        """
        before = self.tokens_of("disk")
        parts: list[Span] = []
        for span in self.spans:
            cuts = [span.start, span.end]
            if span.tier == "device":
                cuts[1:1] = [min(max(at, span.start), span.end) for at in (start, end)]
            for place, (first, last) in enumerate(pairwise(cuts)):
                _append(parts, first, last, "disk" if place == 1 else span.tier)
        self.spans = parts
        return self.tokens_of("disk") - before

    def tokens_of(self, tier: str) -> int:
        return sum(span.end - span.start for span in self.spans if span.tier == tier)

    def usage(self, output_tokens: int, forced_tokens: int) -> Usage:
        device, disk = self.tokens_of("device"), self.tokens_of("disk")
        return Usage(
            input_tokens=self.prompt_len,
            cached_tokens=device + disk,
            output_tokens=output_tokens,
            device=device,
            disk=disk,
            computed=self.tokens_of("computed"),
            forced_tokens=forced_tokens,
        )

    def _cover(self, end: int, tier: Tier) -> None:
        _append(self.spans, self.covered, min(end, self.prompt_len), tier)


def first_scored(request: Request) -> int:
    """The first row of the prompt that log probabilities are asked of."""
    return max(0, request.score_from - 1)


def _append(spans: list[Span], start: int, end: int, tier: Tier) -> None:
    """Joined to the last one, where that is of the same tier; nothing where it is empty."""
    if end > start:
        if spans and spans[-1].tier == tier:
            start = spans.pop().start
        spans.append(Span(start, end, tier))


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence of ids: a prompt on its way to the first draw, or one sample after it."""

    group: Group
    index: int
    ids: Ids  # prompt and output; the lease's own array while there is a lease
    words: Words
    seen: Seen
    matcher: Matcher | None = None  # at the end of ``ids``
    unborn: tuple[int, ...] = ()  # siblings that fork at the first draw
    lease: Lease | None = None
    raw: bytes = b""  # ids at the time of queueing (a fork's: its parent's), to compare in bulk
    num_out: int = 0
    num_forced: int = 0  # of them
    scored: int = 0  # rows of the prompt whose log probabilities are known
    lent: Priority = Priority.BACKGROUND  # its own, or a follower's higher one
    admitted: int = 0  # order of admission
    followers: int = 0  # requests that wait for what this one computes
    passed: int = 0  # later arrivals admitted while this one waited
    retractions: int = 0
    was_full: bool = False  # a step that it was in, since the limit of rows last went up …
    limit_before: int | None = None  # … which was this before
    kin: Kinship = field(default_factory=lambda: Kinship(b""))
    found: tuple[int, int] = (-1, 0)  # generation of the tree -> ids cached then
    restore: Restore | None = None  # while it runs, once the disk has been asked

    @property
    def request(self) -> Request:
        return self.group.request

    @property
    def is_scoring(self) -> bool:
        return self.group.prompt_logprobs is not None and self.scored < self.group.prompt_len

    @property
    def next_row(self) -> int:
        """The position of the next token to run through the model."""
        assert self.lease is not None
        done = self.lease.computed_len
        return min(done, self.scored) if self.is_scoring else done

    @property
    def pending(self) -> int:
        """Tokens to run before the next draw."""
        return len(self.ids) - self.next_row

    @property
    def rows(self) -> int:
        """Tokens that might be run of it now: of a ``load`` none, nor while blocks are awaited."""
        return 0 if self.is_restoring or self.request.fill == "load" else self.pending

    @property
    def rows_end(self) -> int:
        """Where a chunk ends at the latest."""
        if self.restore is not None and self.restore.stop_at is not None:
            return self.restore.stop_at
        return len(self.ids)

    @property
    def is_loaded(self) -> bool:
        """It was only to be loaded, and the disk has no more of it."""
        return self.request.fill == "load" and not self.is_restoring

    @property
    def is_restoring(self) -> bool:
        return self.restore is not None and self.restore.left > 0

    @property
    def remaining(self) -> int:
        """Ids that may still be put out."""
        return self.group.limit - self.num_out

    @property
    def jumps(self) -> bool:
        """Whether what its grammar forces is taken without a draw."""
        return self.request.jump and self.request.params.logprobs is None

    def ends_with(self, token: int) -> bool:
        """Whether this id is the end of an answer."""
        is_end = self.matcher is not None and token == self.matcher.end_id
        return is_end or token in self.request.params.stop_ids

    def sibling(self, index: int) -> Choice:
        """One of those it carries unborn, as this one is before its own first draw."""
        return Choice(
            self.group,
            index,
            self.ids[:],
            self.words.copy(),
            self.seen.copy(),
            self.matcher and self.matcher.copy(),
            num_out=self.num_out,
            num_forced=self.num_forced,
            scored=self.scored,
        )

    def queue(self) -> None:
        self.raw = self.ids.tobytes()
        self.kin = Kinship(self.raw)
        self.found = (-1, 0)
