"""Values to complete: what a running daemon knows, and what stands in files. Starts nothing.

A daemon is asked only while it holds its lock, and is not waited for: a shell's Tab is no moment
to learn that one hangs. What can't be had is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from radchat.cli.complete import Candidate, Wanted
from radchat.errors import RadchatError

if TYPE_CHECKING:
    from radchat.cli.common import Cli

PATIENCE_S = 1.0  # for a daemon that computes; it answers from another thread in milliseconds


def candidates(cli: Cli, wanted: Wanted) -> tuple[list[Candidate], bool]:
    """All that fits what is typed, in order, and whether files do too."""
    found = list(wanted.words)
    for kind in wanted.kinds:
        if kind in VALUES:
            found += VALUES[kind](cli, wanted.prefix)
    fitting = {
        wanted.before + each.value: Candidate(wanted.before + each.value, each.text, each.more)
        for each in found
        if each.value.startswith(wanted.prefix) and is_typable(each.value)
    }
    return list(fitting.values()), "files" in wanted.kinds


def is_typable(value: str) -> bool:
    """One line of characters that print: nothing else can go through a terminal safely."""
    return bool(value) and value.isprintable()


def ask(cli: Cli, method: str, **args: Any) -> Mapping[str, Any]:
    """One question to the daemon that runs, or the one named; nothing where there is none."""
    from pathlib import Path

    from radchat.daemon.lock import is_held, read_info
    from radchat.wire import Exchange, result

    path = str(Path(cli.daemon).expanduser()) if cli.daemon else None
    if path is None and is_held(cli.places.lock):
        info = read_info(cli.places.lock)
        path = None if info is None else info.socket
    if path is None:
        return {}
    try:
        exchange = Exchange(path)
        try:
            exchange.send("POST", f"/rpc/{method}", args)
            exchange.receive_head(timeout=PATIENCE_S)
            return result(exchange)
        finally:
            exchange.close()
    except (OSError, RadchatError):
        return {}


def _refs(cli: Cli, prefix: str) -> Iterable[Candidate]:
    before = prefix[: prefix.rfind(":") + 1]
    for row in ask(cli, "refs", **cli.here(), prefix=prefix).get("refs") or ():
        yield Candidate(before + str(row["ref"]), str(row["text"]))
    if prefix and not before:  # in another session
        for each in _sessions(cli, prefix):
            yield Candidate(f"{each.value}:", each.text, more=True)


def _branches(cli: Cli, prefix: str) -> Iterable[Candidate]:
    for row in ask(cli, "refs", **cli.here(), prefix=prefix).get("refs") or ():
        if row["kind"] == "branch":
            yield Candidate(str(row["ref"]), str(row["text"]))


def _sessions(cli: Cli, prefix: str) -> Iterable[Candidate]:
    """By name; by id where it begins so, or the name can't be typed; with a REF after a colon."""
    if ":" in prefix:
        yield from _refs(cli, prefix)
        return
    from radchat.chat.sessions_view import day_of, messages

    for row in ask(cli, "sessions.list", **cli.here(), begun=True).get("sessions") or []:
        name, text = str(row["name"]), f"{day_of(row['used'])}, {messages(row['messages'])}"
        if is_typable(name):
            yield Candidate(name, text)
        if not is_typable(name) or (prefix and row["id"].startswith(prefix)):
            yield Candidate(str(row["id"])[: max(8, len(prefix))], f"{name}, {text}")


def _models(cli: Cli, prefix: str) -> Iterable[Candidate]:  # noqa: ARG001 - as all of these
    from radchat.chat.footer import size
    from radchat.models import registry

    for entry in registry.list_models(cli.places):
        yield Candidate(entry.name, entry.problem or size(entry.bytes))


def _sources(cli: Cli, prefix: str) -> Iterable[Candidate]:  # noqa: ARG001
    from radchat.models.sources import ALIASES

    for name in ALIASES:
        yield Candidate(name, "to fetch")


def _settings(cli: Cli, prefix: str) -> Iterable[Candidate]:  # noqa: ARG001
    from radchat.config import SETTINGS

    for setting in SETTINGS:
        yield Candidate(setting.name, setting.help)


def _options(cli: Cli, prefix: str) -> Iterable[Candidate]:  # noqa: ARG001
    from radchat.chat.options import OPTIONS

    for name in OPTIONS:
        yield Candidate(f"{name}=", more=True)


def _at_files(cli: Cli, prefix: str) -> Iterable[Candidate]:  # noqa: ARG001
    """Files behind an @, which no shell knows to be one's beginning."""
    from pathlib import Path

    if not prefix.startswith("@"):
        return
    folder = prefix[1 : prefix.rfind("/") + 1]
    try:
        found = sorted(Path(folder).expanduser().iterdir())
    except (OSError, RuntimeError):  # no such folder; no such user's
        return
    for path in found:
        if not path.name.startswith(".") or prefix[len(folder) + 1 :].startswith("."):
            name = f"@{folder}{path.name}"
            yield Candidate(f"{name}/", more=True) if path.is_dir() else Candidate(name)


def _tasks(_cli: Cli, _prefix: str) -> Iterable[Candidate]:
    from radchat.programs.search.task_file import BUILT_IN

    return [Candidate(name) for name in BUILT_IN]


VALUES: dict[str, Callable[[Cli, str], Iterable[Candidate]]] = {
    "refs": _refs,
    "branches": _branches,
    "sessions": _sessions,
    "models": _models,
    "sources": _sources,
    "settings": _settings,
    "options": _options,
    "at_files": _at_files,
    "tasks": _tasks,
}
