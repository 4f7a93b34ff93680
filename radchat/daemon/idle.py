"""What engines do while nothing runs: recount themselves once, and copy what is to be kept."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from radchat.daemon.engine_like import EngineLike

CHECK_AFTER_S = 5.0  # engines idle this long recount themselves once
SAVE_AFTER_S = 2.0  # and this long: they copy what is to be kept, for the disk …
SAVE_EVERY_S = 0.01  # … a block at a time


class Idle:
    """Keys of engines to which something has happened since. All of it on the engines' thread."""

    def __init__(self, check_after_s: float, save_after_s: float) -> None:
        self._check_after_s, self._save_after_s = check_after_s, save_after_s
        self._since = 0.0
        self.unchecked: set[str] = set()
        self.unsaved: dict[str, float] = {}  # with the time at which they want to be asked

    def ran(self, key: str) -> None:
        """A step."""
        self.unchecked.add(key)
        self._since = time.monotonic()

    def heard(self, keys: Iterable[str]) -> None:
        """Of a path to be kept, perhaps."""
        self.unsaved = dict.fromkeys(keys, 0.0)

    def forget(self, key: str) -> None:
        self.unchecked.discard(key)

    def work(self, engines: Mapping[str, EngineLike]) -> None:
        """What is due now."""
        now = time.monotonic()
        if self.unchecked and now >= self._since + self._check_after_s:
            for key in self.unchecked:
                engines[key].check_idle()
            self.unchecked.clear()
        if now >= self._since + self._save_after_s:
            for key in [key for key, at in self.unsaved.items() if now >= at]:
                self._save(key, engines[key], now)

    def due(self) -> list[float]:
        """When there is something to do again."""
        save_at = self._since + self._save_after_s
        check = [self._since + self._check_after_s] if self.unchecked else []
        return [*check, *(max(save_at, at) for at in self.unsaved.values())]

    def _save(self, key: str, engine: EngineLike, now: float) -> None:
        seconds = engine.save()
        if seconds is None:
            del self.unsaved[key]
        else:
            self.unsaved[key] = now + max(seconds, SAVE_EVERY_S)
