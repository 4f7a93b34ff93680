"""The engine: requests in, events out, one step at a time.

One thread calls ``submit``, ``abort`` and ``step``. What is wrong with one request ends that
request; an exception out of ``step`` is a broken invariant or a lost device, after which the
engine must not be used. Every choice of a submitted request ends with exactly one ``Finished``.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from typing import Any

from torch import Tensor

from radchat.engine import sampling
from radchat.engine.batch import Work, tell
from radchat.engine.block_store import BlockStore
from radchat.engine.checks import Poison, check_answers, check_idle, check_request, wants_checks
from radchat.engine.choice import Group
from radchat.engine.delivery import Delivery
from radchat.engine.device import Device, DeviceFull
from radchat.engine.disk_tier import DiskTier
from radchat.engine.kv_pool import KVPool
from radchat.engine.memory import no_memory
from radchat.engine.meters import Meters, PromptCost
from radchat.engine.outside import Outside
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.request import Event, FinishReason, GaveWay, Request
from radchat.engine.runner import Model, Runner
from radchat.engine.scheduler import Scheduler
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.taking import matcher_of
from radchat.engine.unless_full import or_on_cpu
from radchat.engine.words import TextFactory
from radchat.errors import InvalidInput, ModelBroken
from radchat_kernels.executor import Executor, choose
from radchat_kernels.plan import Limits

log = logging.getLogger(__name__)
PAUSE_S = 0.2  # before a request's last try: memory that another program took for a moment


class Engine(Outside):
    """``check`` (default: RADCHAT_CHECK=1) recounts everything and poisons free pages each step."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        cache: PrefixCache,
        text: TextFactory,
        *,
        options: SchedulerOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        check: bool | None = None,
        blocks: BlockStore | None = None,
        device: Device | None = None,
        executor: Executor | None = None,
        limits: Limits | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``device`` (default: the CPU): where model and pool are. ``limits``: of steps' plans."""
        self.model = model
        self.pool = pool
        self.device = device or Device()
        self.executor = executor or choose("cpu")
        self.cache = cache
        self.options = options or SchedulerOptions()
        self._clock = clock
        self._pause = pause
        self._meters = Meters(clock, self.options.chunk_tokens, self.executor.name == "triton")
        self._runner = Runner(model, pool, self.device, limits or Limits())
        self._disk = None
        if blocks is not None:
            self._disk = DiskTier(
                blocks,
                pool,
                cache,
                copy_pages=self._runner.copy_pages,
                tokens_per_s=lambda: self._meters.prefill_tokens_per_s,
                chunk_tokens=self.options.chunk_tokens,
                clock=clock,
            )
        self._scheduler = Scheduler(
            cache,
            self.options,
            lambda: self._meters.guessed_tokens_per_s,
            self._disk.restoring if self._disk else None,
        )
        self._delivery = Delivery(
            cache,
            self._scheduler,
            self._meters,
            text,
            self._forget,
            self._disk.restoring.ahead if self._disk else None,
        )
        self._groups: dict[str, Group] = {}
        self._num_submitted = 0
        self._given_way = 0  # pages of pins, told of
        self._events: list[Event] = []
        check = wants_checks() if check is None else check
        self._poison = Poison(pool, cache) if check else None

    # -- requests -----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Raises InvalidInput or ContextOverflow; then nothing has happened."""
        if request.id in self._groups:
            raise InvalidInput(f"request {request.id!r} is running already", field="id")
        self.check_request(request)
        model = self.model
        self._num_submitted += 1
        params = request.params
        room = model.context_length - len(request.ids)
        group = Group(
            request,
            serial=self._num_submitted,
            arrived=self._clock(),
            limit=room if params.max_tokens is None else min(room, params.max_tokens),
            live=request.n,
            prompt_logprobs=[None] * max(1, request.score_from) if request.scores else None,
        )
        self._groups[request.id] = group
        ids = request.ids
        if request.fill == "load" and self._disk is not None:
            ids = self._disk.loadable(ids)  # no pages, then, for the rest
        choice = self._delivery.choice(group, array("I", ids))
        choice.unborn = tuple(range(1, request.n))
        self._scheduler.add(choice)

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """End a request now, wherever it is, or one of its choices; events come with the next step.

        Its pages are free or in the tree when this returns. False: no such one is alive.
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        found = False
        for each in [*self._scheduler.running, *self._scheduler.waiting]:
            carried = (each.index, *each.unborn)
            if each.group is not group or (choice is not None and choice not in carried):
                continue
            found = True
            if choice is None or carried == (choice,):
                self._delivery.end(each, FinishReason.ABORT, self._events)
            else:
                self._delivery.end_unborn(each, choice, self._events)
        return found

    def has_work(self) -> bool:
        return bool(self._events or self._scheduler.waiting or self._scheduler.running)

    def step(self) -> list[Event]:
        """Admit, run one batch, draw, end what has ended. Events in order."""
        events, self._events = self._events, []
        with self._meters.timed("schedule"):
            schedule = self._scheduler.schedule(self._clock())
        for choice in schedule.admitted:
            self._delivery.start(choice, events)
        for choice in schedule.full:
            self._delivery.end_full(choice, events)
        for choice, end in schedule.restored:
            self._delivery.restored(choice, end, events)
        for choice in schedule.loaded:
            self._delivery.end_load(choice, events)
        self._tell_of_pins(events)
        if schedule.work:
            self._run(schedule.work, events)
            if self._disk is not None:
                self._disk.saving.stepped()
        elif self._disk is not None and not events:
            self._disk.restoring.wait()
        if self._poison is not None:
            self.cache.check(self._leases())
            check_answers([*self._scheduler.running, *self._scheduler.waiting])
            self._poison.spread(self._leases())
            if not self.has_work():
                self.check_idle()
        return events

    @property
    def context_length(self) -> int:
        """Tokens a request may hold, prompt and answer."""
        return self.model.context_length

    def check_request(self, request: Request) -> None:
        """What ``submit`` would raise."""
        model = self.model
        check_request(
            request,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            cache=self.cache,
        )
        matcher_of(request)

    # -- what it says of itself -----------------------------------------------------------------

    def check_idle(self) -> None:
        """For an idle daemon: recount everything. AssertionError = a broken invariant."""
        assert not self._scheduler.running, "not idle"
        check_idle(self.cache)

    @property
    def prompt_cost(self) -> PromptCost | None:
        """What prompts take here, as measured; None before the steps run tell."""
        return self._meters.prompt_cost

    @property
    def bytes_per_token(self) -> int:
        """Of KV."""
        return self.pool.bytes_per_token

    @property
    def rows_run(self) -> int:
        """Rows sent through the model so far, by the engine's count."""
        return self._runner.rows_run

    @property
    def plans_made(self) -> int:
        """A plan of attention serves more than one step where the executor can extend it."""
        return self._runner.planner.plans_made

    def stats(self) -> dict[str, Any]:
        """Numbers for `cache stats` and `daemon status`; JSON values.

        Reads counters only, so it may be asked from any thread, as `daemon status` does, which does
        not wait for a step; in the midst of one the counts need not add up.
        """
        cache, meters, size = self.cache, self._meters, self.cache.page_size
        pages = {
            "total": cache.total,
            "free": cache.free,
            "evictable": cache.evictable,
            "pinned": cache.pinned,
            "locked": cache.total  # running requests' own included
            - (cache.free + cache.evictable + cache.pinned),
        }
        return {
            "page_size": size,
            "pages": pages,
            "tokens": {name: num * size for name, num in pages.items()},
            "bytes": {name: num * size * self.pool.bytes_per_token for name, num in pages.items()},
            "bytes_per_token": self.pool.bytes_per_token,
            "requests": meters.requests,
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "steps": meters.steps,
            "rows_run": self.rows_run,
            "input_tokens": meters.input_tokens,
            "cached_tokens": meters.cached_tokens,
            "output_tokens": meters.output_tokens,
            "forced_tokens": meters.forced_tokens,
            "hit_rate": meters.hit_rate,
            "retractions": self._scheduler.retractions,
            "device_full": self._scheduler.full_steps,
            "disk": self._disk and self._disk.stats(meters.restored_tokens),
            "prefill_tokens_per_s": meters.prefill_tokens_per_s,
            "seconds": dict(meters.seconds),
        }

    # -- one step -----------------------------------------------------------------------------

    def _leases(self) -> list[Lease]:
        return [choice.lease for choice in self._scheduler.running if choice.lease is not None]

    def _run(self, work: list[Work], events: list[Event]) -> None:
        begin = self._clock()
        try:
            logits = self._logits(work)
        except DeviceFull as error:  # what the step had taken is free
            self._step_was_full(work, error, events)
            return
        self._scheduler.step_went_well(work)
        extend = sum(each.end - each.start for each in work if each.end - each.start > 1)
        singles = sum(each.end - each.start == 1 for each in work)
        self._meters.ran(extend, singles, self._clock() - begin)
        self._meters.steps += 1
        tell(self._meters.steps, work)
        with self._meters.timed("sample"):
            draws, owners = self._delivery.advance(work, logits, events)
            drawn = or_on_cpu(lambda there: self._sample(there, draws), logits)
            self._delivery.deliver(owners, drawn, events)

    def _sample(
        self, logits: Tensor, draws: list[sampling.Draw]
    ) -> list[sampling.Drawn | ModelBroken]:
        is_there = logits.device.type == self.device.type  # else a copy, of which kernels know not
        return sampling.sample(logits, draws, executor=self.executor if is_there else None)

    def _logits(self, work: list[Work]) -> Tensor:
        """Raises DeviceFull."""
        with self._meters.timed("model"):
            self._runner.copy_pages(self._leases())
            return self._runner.run(work)

    def _step_was_full(self, work: list[Work], error: DeviceFull, events: list[Event]) -> None:
        """Nothing has been counted yet: what was to run is run later, by fewer rows a step."""
        before, rows = self._scheduler.retractions, sum(each.end - each.start for each in work)
        lost = self._scheduler.step_was_full(work)
        log.warning(
            "no device memory for a step of %d rows: %d requests put back, at most %d rows for now"
            " (%s)",
            *(rows, self._scheduler.retractions - before, self._scheduler.running.limit.rows),
            error,
        )
        if lost is not None:
            why = no_memory(is_possible=error.is_possible, on_gpu=self.device.type != "cpu")
            self._delivery.end(lost, FinishReason.ERROR, events, why)
        elif self._scheduler.running.last_try is not None:
            self._pause(PAUSE_S)

    def _tell_of_pins(self, events: list[Event]) -> None:
        """Pins give way to a request that runs alone: it is the one that is told."""
        given = self.cache.given_way - self._given_way
        if given and self._scheduler.running:
            (choice,) = self._scheduler.running
            events.append(GaveWay(choice.request.id, given * self.cache.page_size))
        self._given_way += given

    def _forget(self, group: Group) -> None:
        del self._groups[group.request.id]
