"""An engine on its way out: what is kept is written first, while others' steps go on between."""

from __future__ import annotations

import gc
import logging
import threading
import time
from concurrent.futures import Future

from radchat.daemon.engine_like import EngineLike
from radchat.engine.block_store import LOOK_S

log = logging.getLogger(__name__)

PIECE_S = 0.005  # of copying, between two steps of others


class Leaving:
    """``gone``: settled when its memory is free; True if nothing was left unwritten."""

    def __init__(self, engine: EngineLike, within_s: float, gone: Future[bool]) -> None:
        self.engine: EngineLike | None = engine
        self._deadline = time.monotonic() + within_s
        self._gone = gone
        self._is_first = True
        self.at = 0.0  # when to go on

    def go_on(self) -> bool:
        """Copy what comes next, on the engines' thread. False: it has ended."""
        try:
            is_written = self._copy()
        except Exception:
            log.exception("an engine that goes can't say what is to be written")
            is_written = False
        if is_written is None:
            return True
        self.end(is_written=is_written)
        return False

    def end(self, *, is_written: bool) -> threading.Thread:
        """On a thread of its own: who waits for a disk that hangs is not the engines' thread."""
        thread = threading.Thread(target=self._end, args=(is_written,), name="leaving", daemon=True)
        thread.start()
        return thread

    def _copy(self) -> bool | None:
        """Whether all is written; None: not yet."""
        assert self.engine is not None
        seconds: float | None = 0.0
        until = time.monotonic() + PIECE_S
        while seconds == 0 and time.monotonic() < until:
            seconds = self.engine.save(now=self._is_first)
            self._is_first = False
        now = time.monotonic()
        if seconds is None:
            return True
        if now >= self._deadline or seconds > LOOK_S:  # the store has refused some
            return False
        self.at = min(now + seconds, self._deadline)
        return None

    def _end(self, is_written: bool) -> None:
        assert self.engine is not None
        try:
            self.engine.close()
        finally:
            self.engine = None
            gc.collect()  # an engine's parts know each other
            if not self._gone.cancelled():
                self._gone.set_result(is_written)
