"""Who runs in the next step: queue order, admission, followers, retraction, the step's batch.

No torch here, and no text. The one idea: everything is decided anew each step from the tree, so
a leader that ends, an eviction or a retraction needs no bookkeeping (docs/adr/0008). What is kept
from step to step (``kinship.py``, the sums of ``running.py``, what was tried in vain) saves asking
again what has not changed; it decides nothing.

What it holds:
  - a request starts after at most ``max_passed`` later arrivals of its priority (a background
    request: ``BACKGROUND_PATIENCE`` times as many) have been admitted before it;
  - a request is put back at most ``max_retractions`` times: worn, it is admitted only when nothing
    else runs, and whoever comes later is put back before it. In the background that holds among
    those of the background: the foreground never waits for it;
  - a step runs at most ``chunk_tokens`` tokens of prompts, in chunks that end on a page's edge;
  - a step that the device had no memory for has not happened: the newest are put back, not counted
    against them, until the rest fits half of its rows (``step_limit.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radchat.engine.batch import Work, compose
from radchat.engine.choice import Choice
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.queue_order import Waiting, queue_order, urgency
from radchat.engine.request import Priority
from radchat.engine.running import Running
from radchat.engine.scheduler_options import SchedulerOptions

if TYPE_CHECKING:
    from radchat.engine.restoring import Restoring

BACKGROUND_PATIENCE = 8


@dataclass(slots=True)
class Schedule:
    work: list[Work] = field(default_factory=list)
    admitted: list[Choice] = field(default_factory=list)
    full: list[Choice] = field(default_factory=list)  # alone, and the pool has no page left
    restored: list[tuple[Choice, int]] = field(default_factory=list)  # whose KV reaches how far
    loaded: list[Choice] = field(default_factory=list)  # of which no more is on disk


class Scheduler:
    def __init__(
        self,
        cache: PrefixCache,
        options: SchedulerOptions,
        prefill_speed: Callable[[], float],
        disk: Restoring | None = None,
    ) -> None:
        assert options.chunk_tokens >= cache.page_size
        self._cache = cache
        self._options = options
        self._prefill_speed = prefill_speed  # tokens a second, as measured
        self._disk = disk
        self.waiting: list[Choice] = []
        self.running = Running(options, cache.page_size)
        self.retractions = 0
        self.full_steps = 0  # that the device had no memory for
        self._changes = 0  # of who waits and who runs
        self._tried = (-1, -1)  # (changes, generation of the tree) when nobody could be admitted …
        self._least_need = 0  # … and the fewest pages that one of them asked for

    def add(self, choice: Choice) -> None:
        choice.queue()
        self.waiting.append(choice)
        self._changes += 1

    def adopt(self, choice: Choice) -> None:
        """A sibling that forked from a running request: it runs already."""
        self.running.add(choice, choice.request.priority)
        self._changes += 1

    def has_place(self, rows: int) -> bool:
        """For one more that has so many to run, in the next step; the others have one at least."""
        is_free = len(self.running) < self._options.max_running
        return is_free and self.running.has_rows_for(min(rows, self._cache.page_size), least=1)

    def forget(self, choice: Choice) -> None:
        """A choice has ended, wherever it was; the caller gives its lease back."""
        if self._disk is not None:
            self._disk.drop(choice)
        for queue in (self.running, self.waiting):
            if choice in queue:
                queue.remove(choice)
        self.running.ended(choice)
        self._changes += 1

    def schedule(self, now: float) -> Schedule:
        out = Schedule()
        before = self.retractions
        self._grow(out)
        self.running.renew()
        self._admit(out, now, may_admit=self.retractions == before)
        running = self.running.by_priority()
        if self._disk is not None:
            out.restored = self._disk.advance(running)
        out.loaded = [choice for choice in self.running if choice.is_loaded]
        out.work = compose(
            running,
            page_size=self._cache.page_size,
            chunk_tokens=self.running.limit.chunk(
                self._options.chunk_tokens, self._cache.page_size
            ),
            scoring_chunk=self._options.scoring_chunk,
            urgency=urgency(self._options.policy, now, self._prefill_speed()),
            is_short=self._disk is not None and self._disk.is_due(running[Priority.FOREGROUND]),
        )
        return out

    # -- memory -------------------------------------------------------------------------------

    def _grow(self, out: Schedule) -> None:
        """A slot for every token that is to run; put others back, the newest first, to get it."""
        for choice in list(self.running):
            while choice.lease is not None:
                alone = len(self.running) == 1
                over_pins = alone and self._goes_over_pins(choice)
                if self._cache.reserve(choice.lease, len(choice.ids), over_pins=over_pins):
                    break
                if alone:
                    if self._cache.fits(len(choice.ids)):
                        self._retract(choice)  # and then computed anew
                    else:
                        self.running.clear()
                        out.full.append(choice)
                    break
                self._retract(self.running.victim())

    def _goes_over_pins(self, choice: Choice) -> bool:
        """Not while it fits beside the pins: computed anew it is not in its own way."""
        is_patient = not self.running.is_worn(choice)
        return not (is_patient and self._cache.fits_beside_pins(len(choice.ids)))

    def _retract(self, choice: Choice, *, counts: bool = True) -> None:
        """Its KV stays in the tree while there is room; its ids and text go on where they were."""
        assert choice.lease is not None
        if self._disk is not None:
            self._disk.drop(choice)
        self._cache.finish(choice.lease)
        self.running.remove(choice)
        choice.lease = None
        choice.retractions += counts
        self.retractions += 1
        self.add(choice)

    def step_was_full(self, work: Sequence[Work]) -> Choice | None:
        """The device had no memory for this step, and nothing of it has happened.

        Returns the choice that must end: alone, and by the least there is, it can't be run either.
        """
        self.full_steps += 1
        lost = self.running.step_was_full(work)
        while not self.running.has_rows_for(0) and (victim := self.running.victim_of_rows()):
            self._retract(victim, counts=False)
        return lost

    def step_went_well(self, work: Sequence[Work]) -> None:
        self._changes += self.running.step_went_well(work)

    # -- admission ----------------------------------------------------------------------------

    def _admit(self, out: Schedule, now: float, *, may_admit: bool) -> None:
        if not may_admit or not self._may_fit():
            if any(choice.pending > 1 for choice in self.running):
                for choice in self.waiting:  # whatever their order
                    self._follows(choice)
            return
        self._tried = (self._changes, self._cache.generation)
        self._least_need = self._cache.total
        background_blocked = False
        for entry in self._ordered(now):
            choice = entry.choice
            if self._follows(choice):
                continue
            if not may_admit or (background_blocked and entry.priority is Priority.BACKGROUND):
                continue
            if self.running.num_rivals(entry.priority) >= self._options.max_running:
                continue
            if self._try(entry, out.admitted) or self._try_anew(entry):
                out.admitted.append(choice)
                for other in self.waiting:
                    other.passed += other.group.serial < choice.group.serial
            elif not self.running:
                self.waiting.remove(choice)
                out.full.append(choice)
            elif entry.is_overdue:
                may_admit = False  # nobody else goes before it
            else:
                background_blocked |= entry.is_worn or entry.priority is Priority.FOREGROUND

    def _may_fit(self) -> bool:
        """False if nobody can be admitted now: all places are taken, or all were tried in vain
        and since then there has been no change but that those who run have grown.
        """
        if self.running.num_rivals(Priority.FOREGROUND) >= self._options.max_running:
            return False
        if not self.running or self._tried != (self._changes, self._cache.generation):
            return True
        return self._least_need + self.running.growth() <= self._cache.free + self._cache.evictable

    def _ordered(self, now: float) -> list[Waiting]:
        entries = []
        for choice in self.waiting:
            priority = choice.request.priority
            patience = 1 if priority is Priority.FOREGROUND else BACKGROUND_PATIENCE
            worn = self.running.is_worn(choice)
            overdue = choice.passed >= self._options.max_passed * patience
            overdue |= worn and priority is Priority.FOREGROUND
            entries.append(Waiting(choice, self._matched(choice), priority, overdue, worn))
        options = self._options
        return queue_order(entries, options.policy, now, self._prefill_speed(), options.seed)

    def _matched(self, choice: Choice) -> int:
        """Tokens of a waiting choice that need not be run, as the tree stands now."""
        generation = self._cache.generation
        if choice.found[0] != generation:
            num = self._cache.match_raw(choice.raw, choice.request.namespace)
            choice.found = (generation, num)
        return min(choice.found[1], len(choice.ids) - 1)

    def _follows(self, choice: Choice) -> bool:
        """Whether a running request is computing what this one needs next; then it is lent to."""
        if not self._options.follow:
            return False
        choice.kin.look(choice, self.running.choices)
        if not choice.kin.may_follow:
            return False
        leader = choice.kin.leader(choice, self._matched(choice), self._cache.page_size)
        if leader is None:
            return False
        leader.followers += 1
        self.running.lend(leader, choice.request.priority)
        return True

    def _try(
        self, entry: Waiting, admitted: Sequence[Choice] = (), *, over_pins: bool = False
    ) -> bool:
        """Admit if there is room for it and for the next tokens of all that run.

        ``admitted``: those of this step. Nobody is put back in the step that admits him.
        """
        choice = entry.choice
        if entry.is_worn and self.running.has_others(entry.priority):
            return False
        self._show_shared(entry)
        while not self._has_room(entry) or not self._lease(choice, over_pins=over_pins):
            behind = [
                other
                for other in self.running
                if other.lent > entry.priority and other not in admitted
            ]
            if not behind:
                return False  # nobody who could be put back for it
            self._retract(behind[-1])
        self.waiting.remove(choice)
        self.running.add(choice, entry.priority)
        self._changes += 1
        return True

    def _try_anew(self, entry: Waiting) -> bool:
        """With nothing running, what fits the pool can only stand in its own way: where its path
        was cut inside a page the tree holds that page and copies of it. With nothing cached it
        takes each page once. Or pins do: they give way, but to nothing that fits beside them.
        """
        cache, num_tokens = self._cache, len(entry.choice.ids)
        if self.running or not cache.fits(num_tokens):
            return False
        if cache.fits_beside_pins(num_tokens):
            cache.clear()
            if self._try(entry):
                return True
        if self._try(entry, over_pins=True):
            return True
        cache.clear(pinned=True)
        return self._try(entry)

    def _has_room(self, entry: Waiting) -> bool:
        """Could it be so? Counts the pages it would find as if they could still be evicted.

        And whether its rows may be in a step with those of all that run.
        """
        if not self.running:
            return True
        page = self._cache.page_size
        table_len = -(-len(entry.choice.ids) // page)
        need = table_len - entry.matched // page + self.running.growth_of(entry.choice, table_len)
        self._least_need = min(self._least_need, need)
        if not self.running.has_rows_for(min(page, len(entry.choice.ids) - entry.matched)):
            return False
        return need + self.running.growth() <= self._cache.free + self._cache.evictable

    def _lease(self, choice: Choice, *, over_pins: bool) -> bool:
        lease = self._cache.admit(choice.ids, choice.request.namespace, over_pins=over_pins)
        if lease is None:
            return False
        growth = self.running.growth() + self.running.growth_of(choice, len(lease.table))
        if self.running and growth > self._cache.free + self._cache.evictable:
            self._cache.abort(lease)
            return False
        choice.lease = lease
        return True

    def _show_shared(self, entry: Waiting) -> None:
        """What a running request has generated is found too, as far as this prompt repeats it."""
        choice = entry.choice
        choice.kin.look(choice, self.running.choices)
        for other in choice.kin.repeated(choice, choice.found[1]):
            assert other.lease is not None
            self._cache.show(other.lease)
