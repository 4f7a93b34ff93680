"""The way back, and forth: the files as they were at a message.

What the agent has done to the files is the changes of the calls whose results stand on the path to
a message, in the order of the journal. To go from one message to another, calls that are not on the
path to it are undone, newest first, and those that are on it and are not done now are done again.
A file that is not as the agent left it is left alone, and named.

    {"rewind": id, "undone": [call], "redone": [call]}   before the first file      {"rewound": id}
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.agent.files.checkpoints import Change
from radchat.agent.files.states import NOTHING, Contents, State, look, put
from radchat.agent.files.workspace import reason
from radchat.agent.types import Entries


@dataclass(frozen=True, slots=True)
class Rewound:
    """Paths, relative to the folder."""

    restored: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # changed by others since, or not kept; each with why
    num_undone: int = 0  # calls
    num_redone: int = 0


@dataclass
class Past:
    """What the journal says of the files."""

    changes: dict[str, list[Change]] = field(default_factory=dict)  # by call
    order: list[str] = field(default_factory=list)  # calls
    done: list[str] = field(default_factory=list)  # of them, what is in the folder now
    unfinished: dict[str, Any] | None = None  # a rewind that a kill cut off

    @classmethod
    def read(cls, entries: Entries) -> Past:
        past = cls()
        for entry in entries.read():
            if "checkpoint" in entry:
                call = str(entry["checkpoint"])
                if call not in past.changes:
                    past.order.append(call)
                past.changes[call] = [Change.of_json(each) for each in entry["changes"]]
                if not entry.get("elsewhere"):  # in a copy: tries/entries.py brings it here
                    past.done.append(call)
            elif "rewind" in entry:
                past.unfinished = entry
            elif "rewound" in entry and past.unfinished is not None:
                past._apply(past.unfinished)
                past.unfinished = None
        return past

    def _apply(self, entry: dict[str, Any]) -> None:
        self.done = [call for call in self.done if call not in entry["undone"]]
        self.done += entry["redone"]

    def now(self) -> dict[str, State]:
        """Each path as the agent left it."""
        return _after(self.changes[call] for call in self.done)


def _after(all_changes: Any) -> dict[str, State]:
    states: dict[str, State] = {}
    for changes in all_changes:
        for change in changes:
            states[change.path] = change.after
    return states


def files_of(entries: Entries, calls: Collection[str]) -> list[str]:
    """The files that these calls have changed."""
    past = Past.read(entries)
    found = {
        change.path
        for call in calls
        for change in past.changes.get(call, ())
        if "folder" not in (change.before.kind, change.after.kind)
    }
    return sorted(found)


def rewind_to(
    root: Path,
    entries: Entries,
    calls: Sequence[str],
    *,
    at_file: Callable[[str], None] = lambda _path: None,
) -> Rewound:
    """The files of ``root`` as they are where the results of ``calls``, and no others, have come.
    ``at_file``: told before each file is touched, for tests.
    """
    past = Past.read(entries)
    wanted = [call for call in past.order if call in set(calls)]
    undone = [call for call in past.done if call not in wanted]
    redone = [call for call in wanted if call not in past.done]
    if not undone and not redone:
        return Rewound()
    entry = {"rewind": secrets.token_hex(4), "undone": undone, "redone": redone}
    entries.append(entry)
    return _go(root, entries, past, entry, at_file)


def finish(root: Path, entries: Entries) -> Rewound | None:
    """A rewind that was cut off is brought to its end. None: there was none."""
    past = Past.read(entries)
    if past.unfinished is None:
        return None
    return _go(root, entries, past, past.unfinished, lambda _path: None, is_second=True)


def _go(
    root: Path,
    entries: Entries,
    past: Past,
    entry: dict[str, Any],
    at_file: Callable[[str], None],
    *,
    is_second: bool = False,
) -> Rewound:
    """``is_second``: the first was cut off, so a file may be on its way."""
    contents = Contents(entries.folder / "files")
    before = past.now()
    wanted: dict[str, State] = {}
    others: dict[str, State] = {}  # what somebody else made of a file between two calls
    for call in reversed(past.done):
        if call in entry["undone"]:
            for change in past.changes[call]:
                later = wanted.get(change.path)
                if later is not None and later.kind and not later.may_be(change.after):
                    others.setdefault(change.path, later)
                wanted[change.path] = change.before
    for call in entry["redone"]:
        for change in past.changes[call]:
            before.setdefault(change.path, change.before)
            wanted[change.path] = change.after
    restored, left = [], []
    for path in _in_order(wanted):
        at_file(path)
        expected = before.get(path, NOTHING)
        problem = _restore(root / path, expected, wanted[path], contents, is_second=is_second)
        if problem is None:
            restored.append(path)
        elif problem:
            left.append(f"{path}: {problem}")
    left += [_kept_beside(root, path, state, contents) for path, state in sorted(others.items())]
    entries.append({"rewound": entry["rewind"]})
    return Rewound(tuple(restored), tuple(left), len(entry["undone"]), len(entry["redone"]))


def _in_order(wanted: dict[str, State]) -> list[str]:
    """What goes, the deepest first; then what comes, folders before what is in them."""
    gone = sorted((p for p, s in wanted.items() if not s.kind), key=lambda p: -p.count("/"))
    come = sorted((p for p, s in wanted.items() if s.kind), key=lambda p: p.count("/"))
    return gone + come


def _kept_beside(root: Path, path: str, state: State, contents: Contents) -> str:
    """What somebody else had written between two calls is not lost with them: a line that says
    where it is.
    """
    name = f"{path}.kept-{(state.sha or state.kind)[:8]}"
    try:
        if not state.is_unkept:
            put(root / name, state, contents)
    except OSError as error:
        return f"{path}: changed by others between two steps, which can't be kept: {reason(error)}"
    return f"{path}: changed by others between two steps: that is kept as {name}"


def _restore(
    path: Path, expected: State, wanted: State, contents: Contents, *, is_second: bool
) -> str | None:
    """Why it is left as it is; "": it is as it should be already."""
    now = look(path, contents, keep=False)
    if now == wanted:
        return ""
    if now.is_unkept or expected.is_unkept or wanted.is_unkept:
        return "too large to have been kept"  # to be removed or replaced, too: it could not return
    is_half_done = is_second and now.kind in ("", "folder")
    if now != expected and not is_half_done:
        return "changed since the agent left it"
    try:
        put(path, wanted, contents)
    except OSError as error:
        return reason(error)
    return None
