"""Tools that only read: read_file, list, read_output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from radchat.agent.files.workspace import SKIPPED, read_bytes, reason
from radchat.agent.tools.schema import arguments, integer, string
from radchat.agent.tools.shaping import as_text, is_binary
from radchat.agent.types import Call, Context, Kind, Outcome, Preview
from radchat.errors import RadchatError

LINES = 400  # of a file that is read, where no number is given
MOST_ENTRIES = 1000  # of a list


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def previewed(
    call: Call, context: Context, name: str, make: Callable[[Path, str], Preview]
) -> Preview:
    """``make`` of the real path that the argument ``name`` means, and of how it is shown."""
    text = str(call.arguments.get(name) or ".")
    try:
        path = context.workspace.resolve(text)
    except RadchatError as error:
        return Preview(f"{call.name} {text!r:.80}", error=error.message)
    return make(path, context.workspace.shown(path))


class ReadFile:
    name = "read_file"
    description = (
        "Read a text file. Lines are numbered; a long file is read in parts by offset and limit."
    )
    parameters = arguments(
        {"path": string("of the file, relative to the folder")},
        offset=integer("first line, from 1"),
        limit=integer(f"number of lines ({LINES})"),
    )
    kind: Kind = "read"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        return previewed(
            call, context, "path", lambda path, shown: Preview(f"read_file {shown}", reads=(path,))
        )

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        (path,) = preview.reads
        shown = context.workspace.shown(path)
        try:
            data = read_bytes(path)
        except OSError as error:
            return Outcome(f"{shown}: {reason(error)}", "error")
        context.seen[path] = digest(data)
        if is_binary(data):
            return Outcome(f"{shown}: binary, {len(data):,} bytes", details={"bytes": len(data)})
        first, num = int(call.arguments.get("offset", 1)), int(call.arguments.get("limit", LINES))
        lines = lines_of(data.decode("utf-8", "replace"))
        part = lines[first - 1 : first - 1 + num]
        if not part:
            about = "empty" if not lines else f"it has {len(lines):,} lines"
            return Outcome(f"{shown}: {about}", details={"lines": 0})
        text = "\n".join(f"{first + i}\t{line}" for i, line in enumerate(part))
        last = first - 1 + len(part)
        if last < len(lines):
            text += f"\n[lines {first} to {last} of {len(lines):,}; offset={last + 1} reads on]"
        return Outcome(text, details={"lines": len(part)})


def lines_of(text: str) -> list[str]:
    """As an edit counts them: a line ends with a newline, and with nothing else."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


class List:
    name = "list"
    description = "List a folder: names, sizes in bytes; folders end in /."
    parameters = arguments({}, path=string("of the folder (.)"))
    kind: Kind = "read"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        return previewed(
            call, context, "path", lambda path, shown: Preview(f"list {shown}", reads=(path,))
        )

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:  # noqa: ARG002
        (path,) = preview.reads
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            return Outcome(f"{context.workspace.shown(path)}: {reason(error)}", "error")
        lines = [_entry(entry) for entry in found[:MOST_ENTRIES]]
        if len(found) > MOST_ENTRIES:
            lines.append(f"[and {len(found) - MOST_ENTRIES:,} more]")
        return Outcome("\n".join(lines) or "empty", details={"entries": len(found)})


def _entry(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_symlink():
            return f"{entry.name} -> {Path(entry.path).readlink()}"
        if entry.is_dir():
            return f"{entry.name}/" + (" (not looked into)" if entry.name in SKIPPED else "")
        return f"{entry.name}  {entry.stat(follow_symlinks=False).st_size:,}"
    except OSError as error:
        return f"{entry.name} ({reason(error)})"


class ReadOutput:
    name = "read_output"
    description = "Read on in a result that was cut: its id is named where it was cut."
    parameters = arguments(
        {"id": string("o1, o2, ...")},
        offset=integer("first character, from 0", least=0),
        limit=integer("number of characters"),
    )
    kind: Kind = "ask"  # of what this session has shown already: nothing is to be permitted
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:  # noqa: ARG002
        return Preview(f"read_output {str(call.arguments.get('id'))!r:.20}")

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:  # noqa: ARG002
        try:
            text = as_text(context.outputs.read(str(call.arguments["id"])))
        except RadchatError as error:
            return Outcome(error.message, "error")
        first = int(call.arguments.get("offset", 0))
        # so much that it is not cut again: characters may have four bytes
        most = context.limits.result_bytes // 2
        num = min(int(call.arguments.get("limit", most)), most)
        part = text[first : first + num]
        while len(part.encode()) > context.limits.result_bytes - 80:
            part = part[: len(part) // 2]
        if not part:
            return Outcome(f"it has {len(text):,} characters")
        end = first + len(part)
        more = f"\n[of {len(text):,} characters; offset={end} reads on]" if end < len(text) else ""
        return Outcome(part + more)
