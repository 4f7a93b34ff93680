"""Files as they are before and after each call that may change some; so each step can be undone.

Of a call that names its files, those are looked at. Of a command, which may change any, the whole
folder: by size, time and inode first, and what is new is copied. What is SKIPPED, too large or too
much is not kept, and that is told: a rewind leaves it as it is.

    {"before": call, "message", "states": {path: state}}      or "manifest": the hash of all of them
    {"checkpoint": call, "message", "changes": [{"path", "before", "after"}]}
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.agent.files.states import MAX_FILE, NOTHING, Contents, State, look
from radchat.agent.files.workspace import Folder, walk
from radchat.agent.types import Call, Entries, Preview

MAX_FILES = 20_000
MAX_BYTES = 256 * 1024 * 1024  # of copies that one look at a folder makes


@dataclass(frozen=True, slots=True)
class Change:
    path: str  # relative to the folder, or absolute
    before: State
    after: State

    def to_json(self) -> dict[str, Any]:
        after = self.after.to_json()
        return {"path": self.path, "before": self.before.to_json(), "after": after}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Change:
        before, after = State.of_json(found["before"]), State.of_json(found["after"])
        return cls(str(found["path"]), before, after)


States = dict[str, State]


class FileCheckpoints:
    """Of one session in one folder. What a kill left without its end is ended when this is made."""

    def __init__(
        self,
        workspace: Folder,
        entries: Entries,
        tell: Callable[[str], None] = lambda _text: None,
        private: Collection[Path] = (),
    ) -> None:
        """``private``: folders that are none of the agent's, this journal's among them."""
        self._workspace, self._entries, self._tell = workspace, entries, tell
        self._private = (*private, Path(os.path.realpath(entries.folder)))
        self._is_cut = False  # the last look at the folder did not see all of it
        self._skipped: dict[str, int] = {}  # inodes of folders that it did not look into
        self.contents = Contents(entries.folder / "files")
        self._known: dict[str, tuple[tuple[int, ...], State]] = {}  # by what stat said
        self._open: tuple[str, str, States, bool] | None = None  # call, message, before, whole
        self._told: set[str] = set()
        self._end_what_is_open()

    def before(self, call: Call, message: str, preview: Preview) -> None:
        is_whole = not preview.writes
        self._is_cut, self._skipped = False, {}
        states = self._folder() if is_whole else self._named(preview.writes)
        entry: dict[str, Any] = {"before": call.id, "message": message}
        if is_whole:
            entry["manifest"] = self.contents.keep(_dumped(states))
        else:
            entry["states"] = {path: state.to_json() for path, state in states.items()}
        self._entries.append(entry)
        self._open = (call.id, message, states, is_whole)

    def after(self, call: Call, message: str) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        assert self._open is not None
        opened, self._open = self._open, None
        return self._end(*opened)

    def _end(self, call: str, message: str, before: States, is_whole: bool) -> tuple[str, ...]:
        skipped = self._skipped
        if is_whole:
            now = self._folder()
            self._see_moved(before, now, skipped)
        else:
            now = {path: look(self._path(path), self.contents) for path in before}
        changes = [
            Change(path, before.get(path, NOTHING), now.get(path, NOTHING))
            for path in sorted({*before, *now})
            if not before.get(path, NOTHING).may_be(now.get(path, NOTHING))
        ]
        told = [change.to_json() for change in changes]
        self._entries.append({"checkpoint": call, "message": message, "changes": told})
        return tuple(change.path for change in changes if "folder" not in
                     (change.before.kind, change.after.kind))  # fmt: skip

    def _see_moved(self, before: States, now: States, skipped: Mapping[str, int]) -> None:
        """What only seems to have come or gone is neither: beyond what a cut look sees, and a
        folder that was not looked into and has another name now.
        """
        if self._is_cut:
            for path in before.keys() - now.keys():
                if os.path.lexists(self._path(path)):
                    now[path] = before[path]
            for path in now.keys() - before.keys():
                del now[path]
        gone = {inode for path, inode in skipped.items() if path not in self._skipped}
        for path in sorted(now.keys() - before.keys()) if gone else ():
            state = now.get(path)
            if state is None or state.kind != "folder":
                continue
            with contextlib.suppress(OSError):
                if self._path(path).lstat().st_ino in gone:
                    self._tell(f"{path} was moved here and is not kept: a rewind leaves it")
                    for below in [p for p in now if p == path or p.startswith(f"{path}/")]:
                        del now[below]

    def _end_what_is_open(self) -> None:
        """A call that began and whose end nobody saw: what is different now is counted as its."""
        opened: dict[str, dict[str, Any]] = {}
        for entry in self._entries.read():
            if "before" in entry and "checkpoint" not in entry:
                opened[str(entry["before"])] = entry
            elif "checkpoint" in entry:
                opened.pop(str(entry["checkpoint"]), None)
        for call, entry in opened.items():
            with contextlib.suppress(OSError, ValueError, KeyError):
                is_whole = "manifest" in entry
                if is_whole:
                    found = json.loads(self.contents.read(entry["manifest"]))
                else:
                    found = entry["states"]
                before = {path: State.of_json(state) for path, state in found.items()}
                self._end(call, str(entry.get("message", "")), before, is_whole)

    # -- looking -----------------------------------------------------------------------------------

    def _path(self, path: str) -> Path:
        return self._workspace.root / path

    def _named(self, paths: Iterable[Path]) -> States:
        """These, and the folders that would have to be made for them."""
        states: States = {}
        for path in paths:
            states[self._workspace.shown(path)] = look(path, self.contents)
            for folder in path.parents:
                if folder.exists():
                    break
                states[self._workspace.shown(folder)] = NOTHING
        return states

    def _folder(self) -> States:
        """All there is, as far as it is kept."""
        states: States = {}
        room = MAX_BYTES
        skipped: dict[str, int] = {}

        def skip(entry: os.DirEntry[str]) -> None:
            skipped[os.path.relpath(entry.path, self._workspace.root)] = entry.inode()

        self._skipped = skipped
        for entry in walk(self._workspace.root, without=self._private, on_skipped=skip):
            if len(states) >= MAX_FILES:
                self._is_cut = True
                self._once(f"more than {MAX_FILES:,} files: those beyond are not restored")
                break
            name = os.path.relpath(entry.path, self._workspace.root)
            state, copied = self._state(entry, name, room)
            if state is not None:
                states[name] = state
            room -= copied
        return states

    def _state(self, entry: os.DirEntry[str], name: str, room: int) -> tuple[State | None, int]:
        """And how many bytes were read for it."""
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            return None, 0
        stamp = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode)
        known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known[1], 0
        is_file = stat.S_ISREG(found.st_mode)
        if is_file and (found.st_size > MAX_FILE or found.st_size > room):
            large = "large files" if found.st_size > MAX_FILE else "files beyond 256 MiB"
            self._once(f"{large} are not kept, such as {name}: a rewind leaves them as they are")
            return State("file", stat.S_IMODE(found.st_mode), None, size=found.st_size), 0
        state = look(Path(entry.path), self.contents)
        self._known[name] = (stamp, state)
        return state, found.st_size if is_file else 0

    def _once(self, text: str) -> None:
        kind = text.partition(":")[0].partition(",")[0]
        if kind not in self._told:
            self._told.add(kind)
            self._tell(text)


def _dumped(states: States) -> bytes:
    found = {path: state.to_json() for path, state in states.items()}
    return json.dumps(found, sort_keys=True).encode()
