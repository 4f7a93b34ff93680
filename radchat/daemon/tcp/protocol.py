"""uvicorn's HTTP/1.1 over h11, with limits for who sends slowly, or nothing at all.

h11 and not httptools: it bounds what a head may be before it is whole. One that is whole at once is
for guard.py to measure.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from radchat.daemon.tcp.limits import MAX_CONNECTIONS

HEAD_S = 10.0  # for a request's head to come, from its first byte or the connection
BODY_S = 60.0  # between two pieces of a body


class TimedProtocol(H11Protocol):
    """Ends connections that keep others waiting. Times are of the class, for tests to shorten."""

    head_s = HEAD_S
    body_s = BODY_S

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * MAX_CONNECTIONS:  # those before are told; these are too many
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """By what is waited for: all of a head has its time, each piece of a body."""
        state = self.conn.their_state
        if state is h11.IDLE and not self.conn.trailing_data[0] and self.cycle is not None:
            self._unwatch()  # between two requests: uvicorn's own time
        elif state is h11.IDLE:
            if self._waits_for is not h11.IDLE:
                self._arm(self.head_s)
        elif state is h11.SEND_BODY:
            self._arm(self.body_s)
        else:
            self._unwatch()
            return
        self._waits_for = state

    def _arm(self, seconds: float) -> None:
        self._unwatch()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _unwatch(self) -> None:
        self._waits_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self.transport.abort()
