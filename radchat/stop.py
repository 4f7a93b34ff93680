"""Stopping this home's daemon: asked and waited for, and killed where that is wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from radchat.client import PATIENCE, Client, wait_free
from radchat.daemon.lock import is_held, read_info
from radchat.errors import RadchatError, Unreachable
from radchat.paths import Places


def stop_daemon(places: Places, force: bool = False) -> bool:
    """Stop this home's daemon and wait until it is gone. False: there was none.

    Asks over the socket; running answers get a few seconds to end, then are cut (their text is
    kept). ``force`` cuts them at once and, when asking doesn't help, kills the pid that the lock
    file names, and only while the lock is held. Raises Unreachable when it doesn't go.
    """
    if not is_held(places.lock):
        return False
    client = Client(places, start=False)
    try:
        client.ask_to_stop(force=force)
        if wait_free(places, 5.0 if force else PATIENCE):
            return True
    except (RadchatError, OSError):
        if not is_held(places.lock):
            return True
        if not force:
            raise
    if not force or not _kill(places):
        raise Unreachable(client.silence())
    return True


def _kill(places: Places) -> bool:
    """SIGKILL the holder of the lock.

    The file must say the same twice while the lock is held: in the instant after a new daemon took
    the lock it may still hold the pid of an older one.
    """
    before = read_info(places.lock)
    time.sleep(0.1)
    if before is None or read_info(places.lock) != before or not is_held(places.lock):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(before.pid, signal.SIGKILL)
    return wait_free(places, 5.0)
