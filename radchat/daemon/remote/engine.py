"""An engine that is another program's, behind a URL: requests in, events out, as engine.py's own.

Each sample is an HTTP stream on an event loop of this engine's own thread; its events wait until
the daemon's engine thread takes them with ``step``. Nothing is asked for again once a token has
come; before that a server that is busy, or not there yet, is tried a few times.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from radchat.daemon.remote.dialect import Asked, Dialect, Piece, Served
from radchat.daemon.remote.said import Said
from radchat.daemon.remote.stream import Lost, events, message, refusal
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Request,
    Tiers,
    Tokens,
    Usage,
)
from radchat.errors import InvalidInput, RadchatError, Unreachable, context_overflow

if TYPE_CHECKING:
    import httpx2

    from radchat.engine.meters import PromptCost
    from radchat.engine.tokenizer import Tokenizer

log = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line a request is too many

TRIES = 4
FIRST_PAUSE_S = 0.5  # before the second try; each next is twice as long
LONGEST_PAUSE_S = 20.0  # that a server may ask for
CONNECT_S = 10.0
FIRST_S = 600.0  # to the first event: a long prompt, a queue
BETWEEN_S = 120.0
LAST_S = 2.0  # in all, for what a server says after an answer's end: its counts
MAX_STREAMS = 64


class RemoteEngine:
    """``wake`` is called from this engine's thread when there is something to take."""

    is_remote = True
    has_disk = False
    prompt_cost: PromptCost | None = None
    bytes_per_token = 0

    def __init__(
        self,
        served: Served,
        dialect: Dialect,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        context_length: int,
        wake: Callable[[], None] = lambda: None,
        key: str | None = None,
        pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.served, self.dialect = served, dialect
        self.vocab_size, self.context_length = vocab_size, context_length
        self.cache = PrefixCache(2, 16)  # nothing of it is here
        self._tokenizer, self._wake, self._key, self._pause_s = tokenizer, wake, key, pause_s
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._running: dict[str, dict[int, asyncio.Task[FinishReason] | None]] = {}
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("requests", "input_tokens", "cached_tokens", "output_tokens", "tries"), 0
        )
        self._told: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._client: httpx2.AsyncClient | None = None
        self._thread = threading.Thread(target=self._run, name="remote", daemon=True)
        self._thread.start()

    # -- as the daemon's engine thread sees it -----------------------------------------------------

    def has_work(self) -> bool:
        return not self._events.empty()

    def submit(self, request: Request) -> None:
        self.check_request(request)
        self._counts["requests"] += 1
        self._counts["input_tokens"] += len(request.ids)
        if request.fill != "answer":  # there is nothing to have ready, and nothing to load
            self._put(self._finished(request, 0, FinishReason.STOP, self._said(request)))
            return
        with self._lock:
            self._running[request.id] = dict.fromkeys(range(request.n))
        self._loop.call_soon_threadsafe(self._start, request)

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        with self._lock:
            found = list(self._running.get(request_id) or ())
        mine = [index for index in found if choice in (None, index)]
        if mine:
            self._loop.call_soon_threadsafe(self._cancel, request_id, mine)
        return bool(mine)

    def step(self) -> list[Event]:
        events = []
        while True:
            try:
                events.append(self._events.get_nowait())
            except Empty:
                return events

    def check_idle(self) -> None:
        """Nothing to do for this thread is no sign that nothing runs: it runs elsewhere."""

    def save(self, now: bool = False, only: str | None = None) -> float | None:  # noqa: ARG002
        return None

    def keep(self, name: str, ids: Ids) -> None:
        """KV is the server's to keep."""

    def unkeep(self, name_prefix: str) -> None:
        """As for ``keep``."""

    def drain(self, timeout_s: float) -> bool:  # noqa: ARG002
        return True

    def close(self) -> None:
        """End its thread, and what still runs on it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    # -- as the daemon asks of any engine ----------------------------------------------------------

    def check_request(self, request: Request) -> None:
        request.params.validate(self.vocab_size)
        num = len(request.ids)
        if not num:
            raise InvalidInput("the prompt is empty", field="ids")
        if request.scores:
            raise InvalidInput(
                f"{self.served.model} is at {self.served.url}: log probabilities of what it reads "
                "can't be had from there; a model on this machine tells them"
            )
        if num >= self.context_length:
            raise context_overflow(num, self.context_length)
        if request.fill == "answer":
            self.dialect.call(self.served, self._asked(request, 0))  # raises what can't be asked

    def remarks(self, request: Request) -> list[str]:
        """What is to be said of a request before it is made: of each thing once."""
        url, params, told = self.served.url, request.params, []
        if not self.dialect.takes_ids:
            told.append(
                f"{url} takes text, not token ids: what it reads may differ from what is kept "
                "here, and its cache finds less again"
            )
            if params.top_k or params.min_p or params.repetition_penalty != 1.0:
                told.append(
                    f"{url} is not sent top_k, min_p, repetition_penalty: no text server is"
                )
        if request.grammar is not None and request.grammar.grammar.kind == "tools":
            told.append(f"{url} is not held to the form of tool calls: they are read as they come")
        new = [each for each in told if each not in self._told]
        self._told.update(new)
        return new

    def pin(self, name: str, ids: Ids) -> None:  # noqa: ARG002
        raise InvalidInput(self.not_here)

    def forget(self, ids: Ids, start: int) -> int:  # noqa: ARG002
        return 0

    def forgettable(self, paths: Sequence[tuple[Ids, int]]) -> int:  # noqa: ARG002
        return 0

    @property
    def not_here(self) -> str:
        """Why nothing can be done with its KV."""
        return (
            f"{self.served.model} runs at {self.served.url}: its KV is there, and what stays of it "
            "is that server's to decide"
        )

    @property
    def rows_run(self) -> int:
        """None here."""
        return 0

    def probe(self, ids: Ids, namespace: str = "") -> int:  # noqa: ARG002
        return 0

    def probe_tiers(self, ids: Ids) -> Tiers:  # noqa: ARG002
        return Tiers(0, 0)

    def load_seconds(self, tokens: int) -> float:  # noqa: ARG002
        return 0.0

    def stats(self) -> dict[str, Any]:
        """In the shape of the engine's own: its KV is not here, and what it does is its own."""
        none = dict.fromkeys(("total", "free", "evictable", "pinned", "locked"), 0)
        running = sum(len(each) for each in list(self._running.values()))
        read = self._counts["input_tokens"]
        return {
            "page_size": 16,
            "pages": dict(none),
            "tokens": dict(none),
            "bytes": dict(none),
            "bytes_per_token": 0,
            "running": running,
            "waiting": 0,
            "steps": 0,
            "rows_run": 0,
            "forced_tokens": 0,
            "hit_rate": self._counts["cached_tokens"] / read if read else 0.0,
            "retractions": 0,
            "device_full": 0,
            "disk": None,
            "prefill_tokens_per_s": None,
            "seconds": {"schedule": 0.0, "model": 0.0, "sample": 0.0},
            **self._counts,
        }

    # -- one sample, on the loop -------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(asyncio.sleep(0))  # what was handed in has a task
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            if self._client is not None:
                self._loop.run_until_complete(self._client.aclose())
            self._loop.close()

    def _put(self, *events: Event) -> None:
        for event in events:
            self._events.put(event)
        self._wake()

    def _start(self, request: Request) -> None:
        tasks = self._running[request.id]
        for index in range(request.n):
            said = self._said(request)
            task = self._loop.create_task(self._hear(request, index, said))
            task.add_done_callback(partial(self._end, request, index, said))
            tasks[index] = task

    def _cancel(self, request_id: str, choices: Sequence[int]) -> None:
        """Behind ``_start``, so that each has a task; one that never ran ends like any other."""
        tasks = self._running.get(request_id) or {}
        for task in [tasks.get(index) for index in choices]:
            if task is not None:
                task.cancel()

    def _end(
        self, request: Request, index: int, said: Said, task: asyncio.Task[FinishReason]
    ) -> None:
        reason, error = FinishReason.ABORT, None
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            reason, error = FinishReason.ERROR, str(failure)
            if not isinstance(failure, RadchatError):
                log.error("%s failed", self.served.url, exc_info=failure)
                error = f"{self.served.url} failed: {type(failure).__name__}"
        elif not task.cancelled():
            reason = task.result()
        with self._lock:
            going = self._running[request.id]
            del going[index]
            is_last = not going
            if is_last:
                del self._running[request.id]
        self._counts["output_tokens"] += len(said.ids)
        if index == 0:  # as the prompt of all of them counts once
            self._counts["cached_tokens"] += said.cached or 0
        self._put(self._finished(request, index, reason, said, error, is_last=is_last))

    async def _hear(self, request: Request, index: int, said: Said) -> FinishReason:
        asked = self._asked(request, index)
        pause = self._pause_s
        for number in range(TRIES):
            try:
                await self._read(request, index, said, self._pieces(asked))
                if said.reason is not None:
                    return said.reason
                raise Lost("it ended in the midst of the answer")  # noqa: TRY301
            except Lost as lost:
                if said.ids or number == TRIES - 1:
                    kept = " (what came of the answer is kept)" if said.ids else ""
                    raise Unreachable(
                        f"{self.served.url} is lost: {lost}{kept}; see whether it runs, or take "
                        "another model with -m"
                    ) from lost
                self._counts["tries"] += 1
                log.warning("%s: %s; it is asked again", self.served.url, lost)
                wait = pause if lost.after_s is None else lost.after_s
                await asyncio.sleep(min(wait, LONGEST_PAUSE_S))
                pause *= 2
        raise AssertionError

    async def _read(
        self, request: Request, index: int, said: Said, pieces: AsyncGenerator[Piece]
    ) -> None:
        """Up to the end of the stream, for a server tells its counts last. But one that does not
        know that the answer has ended is heard no longer than for them.
        """
        last, is_over = None, False
        try:
            while last is None or is_over or said.cached is None:
                wait = BETWEEN_S if said.ids else FIRST_S
                if last is not None:
                    wait = last - self._loop.time()
                piece = await asyncio.wait_for(anext(pieces), wait)
                is_over = is_over or piece.finish is not None
                text, ids, logprobs = said.take(piece)
                if ids:
                    self._put(Tokens(request.id, index, tuple(ids), text, tuple(logprobs)))
                if said.reason is not None and last is None:
                    last = self._loop.time() + LAST_S
        except StopAsyncIteration:
            return
        except (TimeoutError, Lost) as error:
            if said.reason is None:
                if isinstance(error, Lost):
                    raise
                raise Lost("it has said nothing for too long") from error
        finally:
            await pieces.aclose()

    async def _pieces(self, asked: Asked) -> AsyncGenerator[Piece]:
        import httpx2

        client = self._client
        if client is None:
            headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
            client = self._client = httpx2.AsyncClient(
                base_url=self.served.url,
                headers=headers,
                timeout=httpx2.Timeout(FIRST_S, connect=CONNECT_S, pool=None),
                limits=httpx2.Limits(max_connections=MAX_STREAMS),
            )
        path, body = self.dialect.call(self.served, asked)
        reading = self.dialect.reading()
        try:
            async with client.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise refusal(self.served.url, answer)
                async for data in events(answer):
                    if data.get("error"):
                        raise RadchatError(f"{self.served.url}: {message(data['error'])}")
                    yield reading.read(data)
        except (httpx2.TransportError, TimeoutError) as error:
            raise Lost(str(error) or type(error).__name__) from error

    def _said(self, request: Request) -> Said:
        return Said(self._tokenizer, self.vocab_size, request)

    def _asked(self, request: Request, index: int) -> Asked:
        params, grammar = request.params, None
        if request.grammar is not None and request.grammar.grammar.kind != "tools":
            grammar = request.grammar.grammar
            if grammar.after:
                raise InvalidInput(
                    f"{self.served.url} can't be held to a form behind free reasoning: --think off"
                )
        room = self.context_length - len(request.ids)
        text = "" if self.dialect.takes_ids else self._tokenizer.decode(request.ids)
        return Asked(
            request.ids,
            params,
            (params.seed + request.first_choice + index) % 2**31,
            room if params.max_tokens is None else min(room, params.max_tokens),
            grammar,
            text,
            request.messages,
        )

    def _finished(
        self,
        request: Request,
        index: int,
        reason: FinishReason,
        said: Said,
        error: str | None = None,
        *,
        is_last: bool = True,
    ) -> Finished:
        num, cached = len(request.ids), said.cached
        usage = Usage(
            num,
            cached or 0,
            len(said.ids),
            computed=num - (cached or 0),
            is_remote=True,
            remote=cached,
        )
        return Finished(
            request.id,
            index,
            reason,
            said.words.end(),
            said.words.kept(),
            said.is_stopped,
            usage,
            error,
            is_last,
        )
