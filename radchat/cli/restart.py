"""Stopping the daemon and starting it again, for a command that shows what outlives it."""

from __future__ import annotations

import time

from radchat.cli.common import Cli


def why_not(cli: Cli) -> str | None:
    """Why the daemon is left alone: what would end with it is somebody's. None: it may go."""
    if cli.daemon is not None:
        return "this daemon was named with --daemon"
    if cli.client.call("status").get("answers"):
        return "another answer is running"
    sessions = cli.client.call("sessions.list", where=cli.here()["where"])["sessions"]
    if any(session.get("ephemeral") for session in sessions):
        return "an ephemeral session would be gone"
    return None


def persist_off(cli: Cli) -> str | None:
    """Why KV does not outlive the daemon; None: it does."""
    why = cli.client.call("cache.stats").get("persist_off")
    return None if why is None else str(why)


def restart(cli: Cli) -> float:
    """Seconds until another daemon answers; it has no model loaded yet."""
    from radchat.stop import stop_daemon

    began = time.monotonic()
    stop_daemon(cli.places)
    cli.client.call("health")  # starts it
    return time.monotonic() - began
