"""The clock by which what is idle or kept ages."""

from __future__ import annotations

import time


def awake_time() -> float:
    """Seconds that the machine was awake since it booted; no setting of a clock moves it.

    What is idle or kept ages on it alone, so that a laptop opened in the morning still has the
    model and the cache it was closed with (docs/adr/0011-time-awake.md).
    """
    return time.monotonic()  # Linux and macOS stop it while they sleep
