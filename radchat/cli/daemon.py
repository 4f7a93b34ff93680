"""``radchat daemon``: start, stop, restart, status, logs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from radchat.cli.common import Cli, of
from radchat.daemon.lock import is_held
from radchat.daemon.starting import log_tail
from radchat.errors import NotFound, Unreachable

daemon_app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
# of a status; null while there is no daemon to ask, or it has only just started
STATUS = (
    "state", "pid", "build", "model", "device", "executor", "executor_why", "kv", "running",
    "waiting",
)  # fmt: skip
FOLLOW_S = 0.2  # between looks at a log that is followed


@daemon_app.callback()
def group() -> None:
    """The process that owns the engine and the sessions; commands start it when they need it."""


@daemon_app.command()
def start(
    ctx: typer.Context,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="stay here, and log to stderr too")
    ] = False,
) -> int:
    """Start it, unless it runs."""
    cli = of(ctx)
    if foreground:
        # By name: no import of a command reaches the engine but through this door.
        code: int = importlib.import_module("radchat.daemon.main").start(cli.places)
        return code
    running = is_held(cli.places.lock)
    health = cli.client.health
    cli.note(f"{'already running' if running else 'started'}, pid {health['pid']}")
    if cli.json:
        cli.data(health)
    return 0


@daemon_app.command()
def stop(
    ctx: typer.Context,
    force: Annotated[
        bool, typer.Option("--force", help="cut running answers; kill it if it hangs")
    ] = False,
) -> None:
    """Stop it; what was said so far is kept."""
    from radchat.stop import stop_daemon

    cli = of(ctx)
    stopped = stop_daemon(cli.places, force)
    cli.note("stopped" if stopped else "not running")
    if cli.json:
        cli.data({"stopped": stopped})


@daemon_app.command()
def restart(ctx: typer.Context) -> None:
    """Stop it and start it again."""
    from radchat.stop import stop_daemon

    cli = of(ctx)
    stop_daemon(cli.places)
    cli.note(f"started, pid {cli.client.health['pid']}")
    if cli.json:
        cli.data(cli.client.health)


@daemon_app.command()
def status(ctx: typer.Context) -> None:
    """What it does now. Starts nothing."""
    cli = of(ctx)
    try:
        found = cli.connect(start=False).call("status")
    except Unreachable as error:
        if error.data.get("running", True):
            raise
        found = {"state": "stopped"}
    found = {**dict.fromkeys(STATUS), **found}
    if cli.json:
        cli.data(found)
        return
    for line in status_lines(found):
        print_clean(cli, line)


def status_lines(found: dict[str, Any]) -> list[str]:
    """The status for a reader: what is known, a line a fact."""
    from radchat.chat.status_view import device_rows

    if found["state"] == "stopped":
        return ["not running"]
    loading = found.get("loading")
    state = found["state"]
    if loading:
        state = f"loading {loading['model']}"
        if loading.get("total"):
            state += f" {100 * loading['done'] // loading['total']}%"
    rows: list[tuple[str, Any]] = [
        ("state", state),
        ("pid", f"{found['pid']}, up {found['uptime_s']:.0f} s"),
        ("build", found["build"]),
        ("model", " ".join(str(found[k]) for k in ("model", "dtype") if found.get(k))),
        *device_rows(found),
        ("requests", _requests(found)),
        *(("API", url) for url in found.get("listening") or ()),
        ("socket", found["socket"]),
        ("log", found["log"]),
        *(("code", place) for place in found.get("locations") or ()),
    ]
    return [f"{name:<10}{value}" for name, value in rows if value]


def _requests(found: dict[str, Any]) -> str | None:
    if found.get("running") is None:
        return None
    return f"{found['running']} running, {found.get('waiting') or 0} waiting"


@daemon_app.command()
def logs(
    ctx: typer.Context,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on as it grows")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, help="how many lines")] = 50,
) -> None:
    """The last lines of its log."""
    cli = of(ctx)
    log = cli.places.log
    if not log.exists() and not follow:
        raise NotFound(f"no log yet: {log}")
    here = _end(log)  # what is written from now on is followed, and nothing is lost between
    for line in log_tail(log, lines, until=here[1]):
        print_clean(cli, line)
    if follow:
        for line in followed(log, here):
            print_clean(cli, line)
            sys.stdout.flush()


def print_clean(cli: Cli, line: str) -> None:
    from radchat.chat.text import clean

    cli.out(clean(line))


def followed(log: Path, here: tuple[int, int]) -> Iterator[str]:
    """Lines as they are written behind ``here`` (which file, and where in it), for ever, also
    across a rotation. Never half a line.
    """
    inode, position = here
    rest = b""
    while True:
        with contextlib.suppress(FileNotFoundError):
            now, size = _end(log)
            if now != inode or size < position:
                inode, position = now, 0
            with log.open("rb") as file:
                file.seek(position)
                rest += file.read()
                position = file.tell()
        *whole, rest = rest.split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
        if not whole:
            time.sleep(FOLLOW_S)


def _end(log: Path) -> tuple[int, int]:
    """Which file it is and where it ends."""
    try:
        info = log.stat()
    except FileNotFoundError:
        return -1, 0
    return info.st_ino, info.st_size
