"""Who runs in the next step: queue order, admission, followers, retraction, the step's batch.

No torch here, and no text. The one idea: everything is decided anew each step from the tree, so
a leader that ends, an eviction or a retraction needs no bookkeeping (docs/adr/0008).

What it holds:
  - a request starts after at most ``max_passed`` later arrivals of its priority (a background
    request: ``BACKGROUND_PATIENCE`` times as many) have been admitted before it;
  - a request is put back at most ``max_retractions`` times: after that it is admitted only when
    nothing else runs, counts as foreground, and whoever comes later is put back before it;
  - a step runs at most ``chunk_tokens`` tokens of prompts, in chunks that end on a page's edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from radchat.engine.batch import Work, compose
from radchat.engine.choice import Choice
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.queue_order import Waiting, queue_order, shared_len
from radchat.engine.request import Priority

BACKGROUND_PATIENCE = 8


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    policy: str = "lpm"  # or fcfs, random
    chunk_tokens: int = 512
    max_running: int = 64  # rows of one priority; forks of a running request may exceed it
    max_passed: int = 128
    max_retractions: int = 6
    growth_tokens: int = 64  # room left for each running request's next tokens at an admission
    scoring_chunk: int = 128  # prompt log probabilities need a row of logits for every token
    follow: bool = True
    seed: int = 0  # of the random policy


@dataclass(slots=True)
class Schedule:
    work: list[Work] = field(default_factory=list)
    admitted: list[Choice] = field(default_factory=list)
    full: list[Choice] = field(default_factory=list)  # alone, and the pool has no page left


class Scheduler:
    def __init__(
        self,
        cache: PrefixCache,
        options: SchedulerOptions,
        prefill_speed: Callable[[], float],
    ) -> None:
        assert options.chunk_tokens >= cache.page_size
        self._cache = cache
        self._options = options
        self._prefill_speed = prefill_speed  # tokens a second, as measured
        self.waiting: list[Choice] = []
        self.running: list[Choice] = []  # in order of admission
        self.retractions = 0
        self._admissions = 0

    def add(self, choice: Choice) -> None:
        choice.queue()
        self.waiting.append(choice)

    def adopt(self, choice: Choice) -> None:
        """A sibling that forked from a running request: it runs already."""
        self._admissions += 1
        choice.admitted = self._admissions
        choice.lent = choice.request.priority
        self.running.append(choice)

    @property
    def has_place(self) -> bool:
        return len(self.running) < self._options.max_running

    def forget(self, choice: Choice) -> None:
        """A choice has ended, wherever it was; the caller gives its lease back."""
        for queue in (self.running, self.waiting):
            if choice in queue:
                queue.remove(choice)

    def schedule(self, now: float) -> Schedule:
        out = Schedule()
        before = self.retractions
        self._grow(out)
        for choice in self.running:
            choice.lent = self._own_priority(choice)
            choice.followers = 0
        self._admit(out, now, may_admit=self.retractions == before)
        by_priority: dict[Priority, list[Choice]] = {priority: [] for priority in Priority}
        for choice in self.running:
            by_priority[self._own_or_lent(choice)].append(choice)
        out.work = compose(
            by_priority,
            page_size=self._cache.page_size,
            chunk_tokens=self._options.chunk_tokens,
            scoring_chunk=self._options.scoring_chunk,
            urgency=self._urgency(now) if self._options.policy == "lpm" else None,
        )
        return out

    def _urgency(self, now: float) -> Callable[[Choice], tuple[float, float]]:
        """Short prompts, and those that others wait for, overtake long ones, again with ageing."""
        speed = self._prefill_speed()

        def key(choice: Choice) -> tuple[float, float]:
            waited = max(0.0, now - choice.group.arrived)
            age = math.floor(math.log2(1 + waited * speed / choice.pending))
            return -age, choice.pending / (1 + choice.followers)

        return key

    # -- memory -------------------------------------------------------------------------------

    def _grow(self, out: Schedule) -> None:
        """A slot for every token that is to run; put others back, the newest first, to get it."""
        for choice in list(self.running):
            while choice.lease is not None:
                if self._cache.reserve(choice.lease, len(choice.ids)):
                    break
                if len(self.running) == 1:
                    self.running.clear()
                    out.full.append(choice)
                    break
                self._retract(self._victim())

    def _victim(self) -> Choice:
        return max(self.running, key=lambda choice: (self._own_or_lent(choice), choice.admitted))

    def _retract(self, choice: Choice) -> None:
        """Its KV stays in the tree while there is room; its ids and text go on where they were."""
        assert choice.lease is not None
        self._cache.finish(choice.lease)
        self.running.remove(choice)
        choice.lease = None
        choice.retractions += 1
        self.retractions += 1
        self.add(choice)

    def _own_priority(self, choice: Choice) -> Priority:
        if choice.retractions >= self._options.max_retractions:
            return Priority.FOREGROUND
        return choice.request.priority

    def _own_or_lent(self, choice: Choice) -> Priority:
        return min(choice.lent, self._own_priority(choice))

    def _growth_pages(self, choice: Choice, table_len: int) -> int:
        """Pages that it may want soon; doubled each time it was put back for want of them."""
        page = self._cache.page_size
        tokens = min(choice.remaining, self._options.growth_tokens << choice.retractions)
        return max(0, -(-(len(choice.ids) + tokens) // page) - table_len)

    # -- admission ----------------------------------------------------------------------------

    def _admit(self, out: Schedule, now: float, *, may_admit: bool) -> None:
        queue = self._ordered(now)
        background_blocked = False
        leaders = [choice for choice in self.running if choice.pending > 1]
        for entry in queue:
            choice = entry.choice
            leader = self._leader(entry, leaders) if self._options.follow else None
            if leader is not None:
                leader.lent = min(leader.lent, entry.priority)
                leader.followers += 1
                continue
            if not may_admit or (background_blocked and entry.priority is Priority.BACKGROUND):
                continue
            rivals = sum(self._own_or_lent(other) <= entry.priority for other in self.running)
            if rivals >= self._options.max_running:
                continue
            if self._try(entry):
                out.admitted.append(choice)
                leaders.append(choice)
                for other in self.waiting:
                    other.passed += other.group.serial < choice.group.serial
            elif not self.running and not self._cache.fits(len(choice.ids)):
                self.waiting.remove(choice)
                out.full.append(choice)
            elif entry.is_overdue:
                may_admit = False  # nobody else goes before it
            else:
                background_blocked |= entry.priority is Priority.FOREGROUND

    def _ordered(self, now: float) -> list[Waiting]:
        entries = []
        for choice in self.waiting:
            priority = self._own_priority(choice)
            patience = 1 if priority is Priority.FOREGROUND else BACKGROUND_PATIENCE
            found = self._cache.match_len(choice.ids, choice.request.namespace)
            overdue = (
                choice.passed >= self._options.max_passed * patience
                or choice.retractions >= self._options.max_retractions
            )
            entries.append(Waiting(choice, min(found, len(choice.ids) - 1), priority, overdue))
        options = self._options
        return queue_order(entries, options.policy, now, self._prefill_speed(), options.seed)

    def _leader(self, entry: Waiting, leaders: Sequence[Choice]) -> Choice | None:
        """A running request that is computing tokens this one needs next, or None.

        Worth waiting for: a page of tokens, or half of what would have to be run.
        """
        choice = entry.choice
        if choice.is_scoring:
            return None  # it runs every token anyway
        last = len(choice.ids) - 1
        best, leader = 0, None
        for other in leaders:
            if other.lease is None or other.request.namespace != choice.request.namespace:
                continue  # put back meanwhile, or a stranger
            done = other.lease.computed_len
            shared = choice.common.get(other.admitted)
            if shared is None:
                shared = choice.common[other.admitted] = shared_len(choice.raw, other.raw)
            gain = min(shared, last) - max(entry.matched, done)
            if gain > best and (gain >= self._cache.page_size or 2 * gain >= last - entry.matched):
                best, leader = gain, other
        return leader

    def _try(self, entry: Waiting) -> bool:
        """Admit if there is room for it and for the next tokens of all that run."""
        choice = entry.choice
        if self.running and choice.retractions >= self._options.max_retractions:
            return False
        self._show_shared(entry)
        while not self._has_room(entry) or not self._lease(choice):
            background = [c for c in self.running if self._own_or_lent(c) is Priority.BACKGROUND]
            if entry.priority is Priority.BACKGROUND or not background:
                return False
            self._retract(max(background, key=lambda other: other.admitted))
        self.waiting.remove(choice)
        self.adopt(choice)
        choice.lent = entry.priority
        return True

    def _has_room(self, entry: Waiting) -> bool:
        """Could it be so? Counts the pages it would find as if they could still be evicted."""
        if not self.running:
            return True
        page = self._cache.page_size
        table_len = -(-len(entry.choice.ids) // page)
        need = table_len - entry.matched // page + self._growth(entry.choice, table_len)
        return need <= self._cache.free + self._cache.evictable

    def _growth(self, choice: Choice, table_len: int) -> int:
        pages = self._growth_pages(choice, table_len)
        for other in self.running:
            assert other.lease is not None
            pages += self._growth_pages(other, len(other.lease.table))
        return pages

    def _lease(self, choice: Choice) -> bool:
        lease = self._cache.admit(choice.ids, choice.request.namespace)
        if lease is None:
            return False
        growth = self._growth(choice, len(lease.table))
        if self.running and growth > self._cache.free + self._cache.evictable:
            self._cache.abort(lease)
            return False
        choice.lease = lease
        return True

    def _show_shared(self, entry: Waiting) -> None:
        """What a running request has generated is found too, as far as this prompt repeats it."""
        choice = entry.choice
        for other in self.running:
            lease = other.lease
            if lease is None or other.request.namespace != choice.request.namespace:
                continue
            if lease.computed_len <= max(entry.matched, other.group.prompt_len):
                continue  # prompts are shown as they are computed
            if (
                choice.raw.startswith(other.raw)
                and shared_len(choice.raw, lease.ids.tobytes()) > entry.matched
            ):
                self._cache.show(lease)
