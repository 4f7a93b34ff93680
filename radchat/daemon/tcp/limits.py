"""How much at once: of a listener, and of each key, so that no flood takes others' turns."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from radchat.errors import RadchatError

MAX_CONNECTIONS = 512
MAX_REQUESTS = 256  # in progress, of all keys
MAX_OF_KEY = 128
MAX_HEADERS = 100
MAX_HEAD = 32 * 1024  # bytes of them
RETRY_AFTER_S = 2


class TooMany(RadchatError):
    code = "rate_limit_exceeded"
    http_status = 429


class Full(RadchatError):
    code = "overloaded"
    http_status = 503


class TooManyHeaders(RadchatError):
    code = "too_many_headers"
    http_status = 431


class Limits:
    def __init__(self, of_all: int = MAX_REQUESTS, of_key: int = MAX_OF_KEY) -> None:
        self._of_all, self._of_key = of_all, of_key
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return self._running.total()

    @contextlib.contextmanager
    def request(self, key: str) -> Iterator[None]:
        """One in progress. Raises TooMany where there is no room for it."""
        if self._running[key] >= self._of_key or self.running >= self._of_all:
            raise TooMany(
                f"{self._running[key]} requests of this key are in progress, {self.running} in all "
                f"(at most {self._of_key} and {self._of_all}): try again when some have ended",
                retry_after_s=RETRY_AFTER_S,
            )
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
