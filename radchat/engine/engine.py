"""The engine: requests in, events out, one step at a time.

One thread calls ``submit``, ``abort`` and ``step``. What is wrong with one request ends that
request; an exception out of ``step`` is a broken invariant or a lost device, after which the
engine must not be used. Every choice of a submitted request ends with exactly one ``Finished``.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from radchat.engine import sampling
from radchat.engine.checks import Poison, check_idle, check_request
from radchat.engine.choice import Choice, Group
from radchat.engine.eviction import Eviction
from radchat.engine.kv_pool import KVPool
from radchat.engine.meters import Meters
from radchat.engine.prefix_cache import Lease, NodeView, PrefixCache
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Progress,
    Request,
    Started,
    Tokens,
)
from radchat.engine.runner import Model, Runner, wanted_rows
from radchat.engine.scheduler import Scheduler, SchedulerOptions, Work
from radchat.engine.words import TextFactory, Words
from radchat.errors import InvalidInput, RadchatError


class Engine:
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
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.pool = pool
        self.cache = cache
        self.options = options or SchedulerOptions()
        self._text = text
        self._clock = clock
        self._meters = Meters(clock)
        self._runner = Runner(model, pool, device)
        self._scheduler = Scheduler(cache, self.options, lambda: self._meters.prefill_tokens_per_s)
        self._groups: dict[str, Group] = {}
        self._num_submitted = 0
        self._events: list[Event] = []
        checks = os.environ.get("RADCHAT_CHECK") == "1" if check is None else check
        self._poison = Poison(pool, cache) if checks else None

    # -- requests -----------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Raises InvalidInput or ContextOverflow; then nothing has happened."""
        if request.id in self._groups:
            raise InvalidInput(f"request {request.id!r} is running already", field="id")
        model = self.model
        check_request(
            request,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            cache=self.cache,
        )
        self._num_submitted += 1
        params = request.params
        room = model.context_length - len(request.ids)
        group = Group(
            request,
            serial=self._num_submitted,
            arrived=self._clock(),
            limit=room if params.max_tokens is None else min(room, params.max_tokens),
            live=request.n,
            prompt_logprobs=[None] if params.prompt_logprobs else None,
        )
        self._groups[request.id] = group
        choice = self._choice(group, 0, array("I", request.ids))
        choice.unborn = tuple(range(1, request.n))
        self._scheduler.add(choice)

    def abort(self, request_id: str) -> bool:
        """End a request now, wherever it is; its events come with the next step.

        Its pages are free or in the tree when this returns. False: no such request is alive.
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        for choice in [*self._scheduler.running, *self._scheduler.waiting]:
            if choice.group is group:
                self._end(choice, FinishReason.ABORT, self._events)
        return True

    def has_work(self) -> bool:
        return bool(self._events or self._scheduler.waiting or self._scheduler.running)

    def step(self) -> list[Event]:
        """Admit, run one batch, draw, end what has ended. Events in order."""
        events, self._events = self._events, []
        with self._meters.timed("schedule"):
            schedule = self._scheduler.schedule(self._clock())
        for choice in schedule.admitted:
            self._start(choice, events)
        for choice in schedule.full:
            self._end_full(choice, events)
        if schedule.work:
            self._run(schedule.work, events)
        if self._poison is not None:
            self.cache.check(self._leases())
            self._poison.spread(self._leases())
            if not self.has_work():
                self.check_idle()
        return events

    # -- the cache, from outside --------------------------------------------------------------

    def probe(self, ids: Ids, namespace: str = "") -> int:
        """How many of ``ids`` are cached from the start; changes nothing."""
        return self.cache.match_len(ids, namespace)

    def evict(self, num_pages: int) -> int:
        return self.cache.evict(num_pages)

    def clear(self) -> int:
        """Evict all that no running request relies on; returns pages freed."""
        return self.cache.clear()

    def nodes(self) -> list[NodeView]:
        return self.cache.nodes()

    def path(self, ids: Ids, namespace: str = "") -> list[NodeView]:
        return self.cache.path(ids, namespace)

    def eviction_plan(self) -> list[Eviction]:
        return self.cache.eviction_plan()

    def check_idle(self) -> None:
        """For an idle daemon: recount everything. AssertionError = a broken invariant."""
        assert not self._scheduler.running, "not idle"
        check_idle(self.cache)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Measured speed of prompts, a moving average; None before the first measurement."""
        return self._meters.prefill_tokens_per_s if self._meters.has_measured else None

    @property
    def rows_run(self) -> int:
        """Rows sent through the model so far, by the engine's count."""
        return self._runner.rows_run

    def stats(self) -> dict[str, Any]:
        """Numbers for `cache stats` and `daemon status`; JSON values."""
        cache, meters, size = self.cache, self._meters, self.cache.page_size
        pages = {
            "total": cache.total,
            "free": cache.free,
            "evictable": cache.evictable,
            "locked": cache.total - cache.free - cache.evictable,  # running requests' own included
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
            "hit_rate": meters.hit_rate,
            "retractions": self._scheduler.retractions,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "seconds": dict(meters.seconds),
        }

    # -- one step -----------------------------------------------------------------------------

    def _choice(self, group: Group, index: int, ids: Ids) -> Choice:
        words = Words(*self._text(group.request))
        return Choice(group, index, ids, words, sampling.Seen(group.request.ids))

    def _leases(self) -> list[Lease]:
        return [choice.lease for choice in self._scheduler.running if choice.lease is not None]

    def _start(self, choice: Choice, events: list[Event]) -> None:
        group, meters = choice.group, self._meters
        assert choice.lease is not None
        group.found(choice.lease.cached_len)
        if group.started:
            return
        group.started = True
        meters.requests += 1
        meters.input_tokens += group.prompt_len
        meters.cached_tokens += group.device
        events.append(Started(group.request.id, group.prompt_len, group.device))

    def _run(self, work: list[Work], events: list[Event]) -> None:
        begin = self._clock()
        with self._meters.timed("model"):
            self._runner.copy_pages(self._leases())
            logits = self._runner.run(work)
        extend = sum(each.end - each.start for each in work if each.end - each.start > 1)
        singles = sum(each.end - each.start == 1 for each in work)
        self._meters.ran(extend, singles, self._clock() - begin)
        self._meters.steps += 1
        with self._meters.timed("sample"):
            draws, owners = self._advance(work, logits, events)
            drawn = sampling.sample(logits, draws)
            self._deliver(owners, drawn, events)

    def _advance(
        self, work: list[Work], logits: Tensor, events: list[Event]
    ) -> tuple[list[sampling.Draw], list[tuple[Choice, int]]]:
        """Count what has been computed, show it, and say which tokens to draw for whom."""
        draws: list[sampling.Draw] = []
        owners: list[tuple[Choice, int]] = []
        row = 0
        for each in work:
            choice, group, lease = each.choice, each.choice.group, each.choice.lease
            assert lease is not None
            rows = wanted_rows(each)
            if choice.is_scoring:
                self._score(choice, logits[row : row + len(rows)], rows)
            lease.computed_len = max(lease.computed_len, each.end)
            if each.start < group.prompt_len:
                group.ran(each.end)
                done = min(each.end, group.prompt_len)
                events.append(Progress(group.request.id, done, group.prompt_len))
            if each.end - each.start > 1 or (each.draws and choice.num_out == 0):
                self.cache.show(lease)
            row += len(rows)
            if each.draws:
                for index in (choice.index, *choice.unborn):
                    number = group.request.first_choice + index
                    params = group.request.params
                    draws.append(sampling.Draw(row - 1, params, each.end, number, choice.seen))
                    owners.append((choice, index))
        return draws, owners

    def _score(self, choice: Choice, logits: Tensor, rows: range) -> None:
        """Log probabilities of the prompt's tokens behind the rows that have just run."""
        group = choice.group
        assert group.prompt_logprobs is not None
        following = list(group.request.ids[rows.start + 1 : rows.stop + 1])
        if following:
            num_top = group.request.params.logprobs or 0
            scores = sampling.token_logprobs(logits[: len(following)], following, num_top)
            group.prompt_logprobs.extend(scores)
        choice.scored = rows.stop

    def _deliver(
        self,
        owners: list[tuple[Choice, int]],
        drawn: Sequence[sampling.Drawn | RadchatError],
        events: list[Event],
    ) -> None:
        """Each drawn token to its choice. Siblings are born before their parent may end."""
        parents: list[tuple[Choice, sampling.Drawn | RadchatError]] = []
        for (choice, index), token in zip(owners, drawn, strict=True):
            if index == choice.index:
                parents.append((choice, token))
            else:
                self._bear(choice, index, token, events)
        for choice, token in parents:
            choice.unborn = ()
            self._take(choice, token, events)

    def _bear(
        self, parent: Choice, index: int, token: sampling.Drawn | RadchatError, events: list[Event]
    ) -> None:
        """A sibling: if its first token does not end it, it forks here, or waits for room."""
        assert parent.lease is not None
        child = self._choice(parent.group, index, array("I", parent.ids))
        if not self._take(child, token, events):
            return
        running = len(self._scheduler.running)
        if running < self.options.max_running:
            child.lease = self.cache.fork(parent.lease, child.ids)
        if child.lease is None:
            self._scheduler.add(child)
        else:
            self._scheduler.adopt(child)

    def _take(
        self, choice: Choice, token: sampling.Drawn | RadchatError, events: list[Event]
    ) -> bool:
        """Append a drawn token; False: the choice has ended with it."""
        group, params = choice.group, choice.request.params
        if isinstance(token, RadchatError):
            self._end(choice, FinishReason.ERROR, events, str(token))
            return False
        choice.ids.append(token.id)
        choice.num_out += 1
        self._meters.output_tokens += 1
        choice.seen.add(token.id)
        is_stop = token.id in params.stop_ids
        text = ""
        try:
            if is_stop:
                choice.words.skip()
            else:
                text = choice.words.push(token.id)
        except (RadchatError, ValueError, LookupError) as error:
            choice.ids.pop()  # nobody has been told of it
            choice.num_out -= 1
            self._end(choice, FinishReason.ERROR, events, f"id {token.id} has no text: {error}")
            return False
        logprobs = () if token.logprob is None else (token.logprob,)
        events.append(Tokens(group.request.id, choice.index, (token.id,), text, logprobs))
        if is_stop or choice.words.matched:
            self._end(choice, FinishReason.STOP, events, stopped=is_stop)
        elif choice.remaining == 0:
            self._end(choice, FinishReason.LENGTH, events)
        else:
            return True
        return False

    # -- endings ------------------------------------------------------------------------------

    def _end_full(self, choice: Choice, events: list[Event]) -> None:
        pool = self.cache.total * self.cache.page_size
        message = f"the KV pool is full: it holds {pool} tokens (kv_device)"
        self._end(choice, FinishReason.LENGTH, events, message)

    def _end(
        self,
        choice: Choice,
        reason: FinishReason,
        events: list[Event],
        error: str | None = None,
        *,
        stopped: bool = False,
    ) -> None:
        """One Finished for the choice and for each sibling that it carries unborn."""
        group = choice.group
        text, kept = "", choice.num_out
        if reason is not FinishReason.ERROR:
            text = choice.words.end()
            kept = choice.words.kept()
        self._scheduler.forget(choice)
        if choice.lease is not None:
            # of a failed request only what it has shown stays; ids behind a stop string go
            n = 0 if reason is FinishReason.ERROR else group.prompt_len + kept
            self.cache.finish(choice.lease, min(n, choice.lease.computed_len))
            choice.lease = None
        scores = group.prompt_logprobs
        complete = scores is not None and len(scores) == group.prompt_len
        for index in (choice.index, *choice.unborn):
            group.live -= 1
            events.append(
                Finished(
                    request_id=group.request.id,
                    choice=index,
                    reason=reason,
                    text=text,
                    kept=kept,
                    stopped=stopped,
                    usage=group.usage(choice.num_out),
                    error=error,
                    last=group.live == 0,
                    prompt_logprobs=tuple(scores) if scores and complete else None,
                )
            )
        if group.live == 0:
            del self._groups[group.request.id]
