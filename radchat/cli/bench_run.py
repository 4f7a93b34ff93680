"""The requests of `radchat bench`: turns, what-ifs and samples in ephemeral sessions of its own.

All goes through the daemon, as any command does. ``Bench`` is a context manager: when it is left,
by whatever way, its requests are cancelled, its sessions removed and their KV forgotten.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from radchat.chat.view import end_of
from radchat.cli.common import Cli
from radchat.errors import Busy, NotFound, RadchatError, Unreachable
from radchat.protocol import Where
from radchat.wire import EventStream

Ask: TypeAlias = tuple[str, str, dict[str, Any]]  # what ``Bench.ask`` takes
FORKS, ANSWER = 4, 24  # at once; tokens of each answer
PATIENCE = 10.0  # seconds for cancelled answers to end
# ordinary words, so that a text of them is about as many tokens with any tokenizer
_TEXT = """
river stone letter garden winter engine market silver window forest music bridge paper ocean table
morning doctor travel season circle honest simple yellow distant broken gentle narrow sudden quiet
early carry follow gather listen measure open promise reach settle turn wander answer under between
beyond without almost never always perhaps together against through
"""
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Said:
    """One answer as it was measured. Seconds are the daemon's, since the command came in."""

    message: str
    ids: tuple[int, ...]
    input_tokens: int
    cached_tokens: int
    disk_tokens: int  # of them
    output_tokens: int
    first_token_s: float
    total_s: float
    tokens_per_s: float | None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Said:
        usage, timing = body["usage"], body["timing"]
        if body["message"] is None or timing["first_token_s"] is None:
            raise RadchatError("an answer of the measurement was cut off: see radchat daemon logs")
        return cls(
            body["message"],
            tuple(each["id"] for each in body.get("logprobs") or ()),
            usage["input_tokens"],
            usage["cached_input_tokens"],
            body["cache"]["disk"],
            usage["output_tokens"],
            timing["first_token_s"],
            timing["total_s"],
            timing["tokens_per_s"],
        )


class Bench:
    """``exact``: ask in fp32. The sessions are those of a terminal that does not exist."""

    def __init__(self, cli: Cli, model: str | None, *, max_tokens: int) -> None:
        self._cli, self._model = cli, model
        self._max_tokens = max_tokens
        self._mark = secrets.token_hex(4)
        self._where: Where = {"terminal": f"bench:{self._mark}", "folder": str(Path.cwd())}
        self._dice = random.Random(self._mark)
        self._num_sessions = 0
        self._sessions: list[str] = []  # that there are now
        self._streams: list[EventStream] = []
        self._is_over = False
        self.exact = False

    # -- asking ----------------------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """Have the model ready: {"model", "dtype", "context"}."""
        done: dict[str, Any] = {}
        with self._cli.client.stream(
            "models.load", where=self._where, model=self._model, exact=self.exact
        ) as events:
            for event in events:
                if event.name == "progress" and event.data.get("stage") == "load":
                    self._cli.status(f"loading {event.data['text']} {event.data['done']}%")
                self._hear(event.name, event.data)
                if event.name == "done":
                    done = event.data
        return done

    def session(self) -> str:
        """The name of a session to be made."""
        self._num_sessions += 1
        self._sessions.append(f"bench-{self._mark}-{self._num_sessions}")
        return self._sessions[-1]

    def words(self, count: int) -> str:
        """Words that nobody has said in this order: nothing of them is cached."""
        return " ".join(self._dice.choice(WORDS) for _ in range(count))

    def ask(self, session: str, text: str, **args: Any) -> list[Said]:
        """A turn, and its samples; or what-ifs, ``texts``. ``new=True``: the first of its session,
        which is ephemeral where ``ephemeral=False`` does not say otherwise.
        """
        options = {"temperature": 0.0, "max_tokens": self._max_tokens, **args.pop("options", {})}
        is_new = args.pop("new", False)
        args.setdefault("ephemeral", True)
        where = {"new_session": session} if is_new else {"session": session}
        kind = {"kind": "turn", "text": text} if text else {"kind": "retry"}
        if "texts" in args:
            kind = {"kind": "what-if"}
        stream = self._cli.client.stream(
            "generate",
            where=self._where,
            model=self._model,
            exact=self.exact,
            options=options,
            **where,
            **kind,
            **args,
        )
        self._streams.append(stream)
        if self._is_over:  # meanwhile, in another thread
            stream.close()
        with stream as events:
            for event in events:
                self._hear(event.name, event.data)
                if event.name == "done":
                    self._streams.remove(stream)
                    return [Said.of(body) for body in event.data["branches"]]
        raise Unreachable("an answer of the measurement never ended: see radchat daemon logs")

    def _hear(self, name: str, data: Mapping[str, Any]) -> None:
        """What the daemon has to say, but that it computes again what it was told to forget."""
        if name == "notice" and data.get("code") == "model_swap":
            self._cli.note(data["text"])

    def together(self, asks: Sequence[Ask]) -> list[Said]:
        """All at once, answers in their order; the first failure is raised when all have ended."""
        said: list[list[Said]] = [[] for _ in asks]
        failures: list[RadchatError] = []

        def run(place: int, ask: Ask) -> None:
            session, text, args = ask
            try:
                said[place] = self.ask(session, text, **args)
            except RadchatError as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(asks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [each for some in said for each in some]

    def forget(self, session: str) -> None:
        """Evict all KV that only this session uses: what is asked next is computed anew."""
        self._cli.client.call("cache.evict", where=self._where, session=session, ref="1")

    def save(self, session: str) -> str | None:
        """Write its KV to disk; why some of it is not there."""
        stream = self._cli.client.stream("cache.save", where=self._where, session=session)
        left = end_of(stream, self._cli.note, self._cli.status)["left"]
        return None if left is None else str(left)

    # -- the end ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over = True
        self._cli.status("putting things back")
        for stream in self._streams:
            stream.close()
        self.remove_sessions()
        self._cli.status("")

    def remove_sessions(self) -> None:
        """All so far, and their KV."""
        while self._sessions:
            with contextlib.suppress(NotFound, Unreachable):  # never made; or the daemon is gone
                self._remove(self._sessions.pop())

    def _remove(self, session: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._cli.client.call("sessions.rm", where=self._where, sessions=[session])
            except Busy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # a cancelled answer is just ending
            else:
                return


def copy_speed(num_bytes: int = 1 << 26, rounds: int = 5) -> float:
    """Bytes a second, read and written, that all cores together reach when copying memory."""
    import ctypes

    def copy(source: Any, target: Any) -> None:
        ctypes.memmove(target, source, num_bytes)  # without the interpreter's lock

    cores = min(os.cpu_count() or 1, 16)
    pairs = [[ctypes.create_string_buffer(num_bytes) for _ in range(2)] for _ in range(cores)]
    best = 0.0
    for _ in range(rounds + 1):
        began = time.perf_counter()
        threads = [threading.Thread(target=copy, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, 2 * num_bytes * cores / (time.perf_counter() - began))
    return best


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in RAM; None where nobody says."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def cpu_name() -> str:
    """As the machine names it, without its marks."""
    import platform

    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1]
                return " ".join(name.replace("(R)", "").replace("(TM)", "").split())
    return platform.processor() or platform.machine()
