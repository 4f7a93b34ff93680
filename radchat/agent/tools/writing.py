"""Tools that change files: write_file and edit. A person approves the difference they make.

Both work on bytes: what is not touched stays as it is, whatever its encoding and line ends.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from radchat.agent.files.workspace import read_bytes, reason, write_bytes
from radchat.agent.tools.reading import digest, previewed
from radchat.agent.tools.schema import arguments, boolean, string
from radchat.agent.tools.shaping import is_binary
from radchat.agent.types import Call, Context, Kind, Outcome, Preview

MOST_PLACES = 10  # of a text that is there several times
MOST_DIFF = 400_000  # characters of a file whose difference is shown line by line
MOST_LINES = 20_000  # of it: comparing takes longer the more there are alike


class WriteFile:
    name = "write_file"
    description = "Write a whole file: it is made, or replaced. To change a part, use edit."
    parameters = arguments(
        {"path": string("of the file, relative to the folder"), "content": string("all of it")}
    )
    kind: Kind = "write"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        def make(path: Path, shown: str) -> Preview:
            old = _before(path)
            if isinstance(old, OSError):
                return Preview(f"write_file {shown}", error=f"{shown}: {reason(old)}")
            return _of_change(f"write_file {shown}", shown, path, old, _content(call))

        return previewed(call, context, "path", make)

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        (path,) = preview.writes
        shown = context.workspace.shown(path)
        old = _before(path)
        if isinstance(old, OSError):
            return Outcome(f"{shown}: {reason(old)}", "error")
        if difference(shown, old, _content(call)) != preview.body:
            return Outcome(f"{shown} has changed since this was approved: read it again", "error")
        return _written(path, _content(call), context)


class Edit:
    name = "edit"
    description = (
        "Replace a text in a file by another. old must be in it exactly once, to the last space "
        "(or all=true replaces every one)."
    )
    parameters = arguments(
        {
            "path": string("of the file, relative to the folder"),
            "old": string("the text that is there"),
            "new": string("the text in its place"),
        },
        all=boolean("every place, not one"),
    )
    kind: Kind = "write"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        def make(path: Path, shown: str) -> Preview:
            title = f"edit {shown}"
            try:
                old = read_bytes(path)
            except OSError as error:
                return Preview(title, error=f"{shown}: {reason(error)}")
            changed = _changed(call, old, path, shown, context)
            if isinstance(changed, str):
                return Preview(title, error=changed)
            return _of_change(title, shown, path, old, changed)

        return previewed(call, context, "path", make)

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        (path,) = preview.writes
        shown = context.workspace.shown(path)
        try:
            old = read_bytes(path)
        except OSError as error:
            return Outcome(f"{shown}: {reason(error)}", "error")
        changed = _changed(call, old, path, shown, context)
        if isinstance(changed, str):
            return Outcome(changed, "error")
        if difference(shown, old, changed) != preview.body:
            return Outcome(f"{shown} has changed since this was approved: read it again", "error")
        return _written(path, changed, context)


def _content(call: Call) -> bytes:
    return str(call.arguments["content"]).encode("utf-8", "replace")


def _before(path: Path) -> bytes | OSError | None:
    """What is there; None: nothing."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error


def _written(path: Path, data: bytes, context: Context) -> Outcome:
    shown = context.workspace.shown(path)
    try:
        write_bytes(path, data)
    except OSError as error:
        return Outcome(f"{shown}: {reason(error)}", "error")
    context.seen[path] = digest(data)
    return Outcome(f"{shown}: written, {len(data):,} bytes", details={"bytes": len(data)})


def _changed(call: Call, data: bytes, path: Path, shown: str, context: Context) -> bytes | str:
    """The file with its text replaced, or why it can't be."""
    seen = context.seen.get(path)
    if seen is not None and seen != digest(data):
        return f"{shown} has changed since it was read: read it again"
    old, new = (str(call.arguments[key]).encode("utf-8", "replace") for key in ("old", "new"))
    if not old:
        return "old is empty: write_file makes a file"
    if old == new:
        return "old and new are the same: nothing would change"
    if old not in data and b"\r\n" in data and b"\r" not in old:
        old, new = (text.replace(b"\n", b"\r\n") for text in (old, new))
    places = _places(data, old)
    if not places:
        return f"{shown}: old is not in it, to the last space{_nearest(data, old)}"
    if len(places) > 1 and not call.arguments.get("all"):
        lines = ", ".join(str(data.count(b"\n", 0, at) + 1) for at in places[:MOST_PLACES])
        more = ", ..." if len(places) > MOST_PLACES else ""
        return (
            f"{shown}: old is in it {len(places)} times (lines {lines}{more}): give more of the "
            "lines around it, or all=true"
        )
    return data.replace(old, new)


def _places(data: bytes, old: bytes) -> list[int]:
    found, at = [], data.find(old)
    while at >= 0:
        found.append(at)
        at = data.find(old, at + len(old))
    return found


def _nearest(data: bytes, old: bytes) -> str:
    """Where a line stands that is most like the first one of ``old``."""
    wanted = next((line.strip() for line in old.decode("utf-8", "replace").splitlines()
                   if line.strip()), "")  # fmt: skip
    lines = data.decode("utf-8", "replace").splitlines()
    stripped = [line.strip() for line in lines[:5000]]
    close = difflib.get_close_matches(wanted[:200], set(stripped), n=1, cutoff=0.6)
    if not close:
        return ""
    number = stripped.index(close[0])
    return f" (line {number + 1} is {lines[number]!r:.200})"


# -- what a person approves ------------------------------------------------------------------------


def _of_change(title: str, shown: str, path: Path, old: bytes | None, new: bytes) -> Preview:
    return Preview(title, difference(shown, old, new), "diff", writes=(path,))


def difference(shown: str, old: bytes | None, new: bytes) -> str:
    """As a unified diff; of bytes that are no text, or of very many, how many."""
    if is_binary(old or b"") or is_binary(new):
        return f"binary: {len(old or b''):,} bytes become {len(new):,}\n"
    texts = [(data or b"").decode("utf-8", "backslashreplace") for data in (old, new)]
    if max(map(len, texts)) > MOST_DIFF or max(text.count("\n") for text in texts) > MOST_LINES:
        return f"{len(texts[0]):,} characters become {len(texts[1]):,}: too many to compare\n"
    names = ("/dev/null" if old is None else f"a/{shown}", f"b/{shown}")
    before, after = (text.splitlines(keepends=True) for text in texts)
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n"
        for line in difflib.unified_diff(before, after, *names)
    ]
    return "".join(lines) or "nothing changes\n"
