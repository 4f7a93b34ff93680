"""Checks of what is radchat's own: folders, settings, sessions, models, daemon. They only read."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.chat.footer import size
from radchat.chat.text import one_line
from radchat.cli import values
from radchat.cli.findings import Finding, Status, nearest
from radchat.errors import RadchatError, Unreachable

if TYPE_CHECKING:
    from radchat.cli.common import Cli


def permissions(cli: Cli) -> Iterator[Finding]:
    where, worst = cli.places, False
    for folder in (where.data, where.state, where.cache):
        for finding in _folder(folder):
            worst = True
            yield finding
    for file in (where.database, where.lock, where.history, where.log, where.config_file):
        if file.is_file() and file.stat().st_mode & 0o077 and file != where.config:
            worst = True
            yield Finding("permissions", "warning", f"others can read {file}", f"chmod 600 {file}")
    if not worst:
        yield Finding("permissions", "ok", "ours alone")


def _folder(folder: Path) -> Iterator[Finding]:
    there = nearest(folder)
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        yield Finding("permissions", "broken", f"can't write {there}", f"chmod u+rwx {there}")
    elif there == folder and folder.stat().st_uid != os.getuid():
        yield Finding("permissions", "broken", f"{folder} is another's", "set RADCHAT_HOME")
    elif there == folder and folder.stat().st_mode & 0o077:
        text = f"others can look into {folder}"
        yield Finding("permissions", "warning", text, f"chmod 700 {folder}")


def settings(cli: Cli) -> Iterator[Finding]:
    try:
        assert cli.config
    except RadchatError as error:
        edit = f"edit {cli.places.config_file}"
        if name := error.data.get("setting"):
            source = error.data["source"]
            edit = (
                f"unset {source}"
                if source.startswith("RADCHAT_")
                else f"radchat config unset {name}"
            )
        yield Finding("settings", "broken", error.message, edit)
    else:
        yield Finding("settings", "ok", "sound")


def database(cli: Cli) -> Iterator[Finding]:
    path = cli.places.database
    if not path.exists():
        yield Finding("sessions", "ok", "none yet")
        return
    with path.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    if is_database or not path.stat().st_size:
        yield Finding("sessions", "ok", f"{size(path.stat().st_size)} in {path}")
    else:
        yield Finding("sessions", "broken", f"{path} is no database", f"mv {path} {path}.broken")


def models(cli: Cli) -> Iterator[Finding]:
    from radchat.models import registry

    here = registry.list_models(cli.places)
    for entry in here:
        if entry.problem:
            yield Finding("model", "warning", entry.problem, f"radchat models pull {entry.source}")
    try:
        found = registry.choose(cli.places, cli.config.model)
    except RadchatError as error:
        pull = "radchat models pull smollm2-135m"
        status: Status = "broken" if cli.config.model else "warning"
        yield Finding("model", status, error.message.split(";")[0], pull)
    else:
        yield Finding("model", "ok", f"{found.name}, {size(found.bytes)}")


def kv(cli: Cli) -> Iterator[Finding]:
    """Whether KV outlives the daemon: asked of the daemon, else seen from the folder and its lock.

    A daemon that is just opening the folder must find its lock free: it is tried only where none of
    this home runs.
    """
    from radchat.daemon.lock import is_held

    folder, told = cli.places.kv, values.ask(cli, "cache.stats")
    why, tier = told.get("persist_off"), (told.get("tiers") or {}).get("disk")
    if cli.config.persist == "off" or cli.config.kv_disk == 0:
        name = "persist" if cli.config.persist == "off" else "kv_disk"
        text = f"{name} is {'off' if name == 'persist' else 0}: a restart computes KV again"
        source = cli.config.sources[name]
        is_file = source == str(cli.places.config_file)
        mend = f"radchat config unset {name}" if is_file else f"unset {source}"
        yield Finding("kv on disk", "note", text, mend)
    elif why or told.get("disk_trouble"):
        text = one_line(str(why or told["disk_trouble"]))
        yield Finding("kv on disk", "warning", text, "radchat daemon restart, when that is mended")
    elif tier:
        text = f"{size(tier['bytes'])} of {size(tier['budget_bytes'])} in {folder}"
        yield Finding("kv on disk", "ok", f"{text}; {size(tier['free_bytes'])} free")
    elif not told and not is_held(cli.places.lock) and is_held(folder / "lock"):
        text = f"another home's daemon keeps its KV in {folder}"
        yield Finding("kv on disk", "warning", text, "set RADCHAT_CACHE_DIR to another folder")
    else:
        free = size(shutil.disk_usage(nearest(folder)).free)
        yield Finding("kv on disk", "ok", f"{kv_disk_room(cli)} in {folder}; {free} free")


def kv_disk_room(cli: Cli) -> str:
    """How much KV on disk may take: the daemon reckons the bytes when it opens the folder."""
    from radchat.config import MOST_DISK_BYTES

    if cli.config.kv_disk is not None:
        return f"up to {size(cli.config.kv_disk)}"
    return f"a tenth of free space, at most {size(MOST_DISK_BYTES)},"


def socket(cli: Cli) -> Iterator[Finding]:
    from radchat.paths import SOCKET_PATH_LIMIT

    path = cli.places.socket()
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_LIMIT:
        yield Finding(
            "socket", "broken", f"{path} is {length} bytes, a socket may have {SOCKET_PATH_LIMIT}",
            "set XDG_RUNTIME_DIR to a shorter folder",
        )  # fmt: skip
        return
    folder = path.parent
    if folder.exists() and folder.stat().st_uid != os.getuid():
        yield Finding("socket", "broken", f"{folder} is another's", "set XDG_RUNTIME_DIR")
    elif path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        yield Finding("socket", "broken", f"{path} is no socket", f"rm -r {path}")
    else:
        yield Finding("socket", "ok", str(path))


def daemon(cli: Cli) -> Iterator[Finding]:
    """Whether it answers, and is of this build; a lock that nobody holds is no trouble."""
    from radchat.daemon.lock import is_held, read_info
    from radchat.protocol import build_id

    lock = cli.places.lock
    info = read_info(lock)
    if cli.daemon is None and not is_held(lock):
        was = f"; pid {info.pid} ended without a word" if info is not None else ""
        yield Finding("daemon", "ok", f"not running{was}: a command starts it")
        return
    try:
        health = _health(cli)
    except (OSError, RadchatError) as error:
        who = "" if info is None else f"pid {info.pid} "
        text = f"{who}holds {lock} and does not answer: {error}"
        yield Finding("daemon", "broken", text, "radchat daemon stop --force")
        return
    text = f"pid {health.get('pid')}, {health.get('state')}"
    if health.get("build") != build_id():
        text += f", of another build ({health.get('build')})"
        yield Finding("daemon", "warning", text, "radchat daemon restart")
    else:
        yield Finding("daemon", "ok", text)


def _health(cli: Cli) -> dict[str, Any]:
    from radchat.daemon.lock import read_info
    from radchat.wire import Exchange, result

    info = read_info(cli.places.lock)
    path = str(Path(cli.daemon).expanduser()) if cli.daemon else info.socket if info else None
    if path is None:
        raise Unreachable("it has no socket yet")
    exchange = Exchange(path)
    try:
        exchange.send("GET", "/health")
        exchange.receive_head(timeout=1.0)
        return result(exchange)
    finally:
        exchange.close()
