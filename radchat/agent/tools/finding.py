"""Tools that look for files: glob, by name, and grep, by what is in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from radchat.agent.files.workspace import walk
from radchat.agent.tools.reading import previewed
from radchat.agent.tools.schema import arguments, boolean, string
from radchat.agent.types import Call, Context, Kind, Outcome, Preview

MOST_FOUND = 1000
MOST_STARS = 4  # of a pattern: each takes as many tries as a name has characters
GREP_S = 20.0
GREP = Path(__file__).with_name("grep_child.py")


def glob_regex(pattern: str) -> re.Pattern[str]:
    """``**`` is any number of folders, ``*`` and ``?`` are within one, ``{a,b}`` is either."""
    out, at = [], 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] == "*":
            out.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            out.append("[^/]")
            at += 1
        elif pattern[at] == "{" and "}" in pattern[at:]:
            end = pattern.index("}", at)
            either = (re.escape(word) for word in pattern[at + 1 : end].split(","))
            out.append(f"(?:{'|'.join(either)})")
            at = end + 1
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return re.compile("".join(out), re.DOTALL)


def glob_problem(pattern: str) -> str | None:
    """Of a model's: one with many stars may take for ever, and no more than these are known."""
    if pattern.replace("**", "*").count("*") > MOST_STARS:
        return f"the pattern {pattern!r:.80} has more than {MOST_STARS} stars"
    return "no [...] in a pattern: use *, ?, ** and {a,b}" if "[" in pattern else None


class Glob:
    name = "glob"
    description = (
        "Find files by name: src/**/*.py, *.md. Folders such as .git and node_modules are left "
        "out, or read with all=true."
    )
    parameters = arguments(
        {"pattern": string("of paths")},
        path=string("folder to look in (.)"),
        all=boolean("in every folder"),
    )
    kind: Kind = "read"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        pattern = str(call.arguments.get("pattern"))
        return previewed(
            call,
            context,
            "path",
            lambda path, shown: Preview(f"glob {pattern} in {shown}", reads=(path,)),
        )

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        (root,) = preview.reads
        pattern = str(call.arguments["pattern"]).removeprefix("./")
        if problem := glob_problem(pattern):
            return Outcome(problem, "error")
        wanted = glob_regex(pattern if "/" in pattern else f"**/{pattern}")
        found = []
        for entry in walk(root, all_folders=bool(call.arguments.get("all"))):
            if context.cancel.is_set():
                return Outcome("stopped", "interrupted")
            path = os.path.relpath(entry.path, root)
            if wanted.fullmatch(path) and not entry.is_dir(follow_symlinks=False):
                found.append(context.workspace.shown(Path(entry.path)))
        lines = found[:MOST_FOUND]
        if len(found) > MOST_FOUND:
            lines.append(f"[and {len(found) - MOST_FOUND:,} more]")
        return Outcome("\n".join(lines) or "none", details={"files": len(found)})


class Grep:
    name = "grep"
    description = (
        "Find lines by a regular expression (Python's). Lines are told as path:number:line."
    )
    parameters = arguments(
        {"pattern": string("regular expression")},
        path=string("file or folder to look in (.)"),
        glob=string("only in files named so: *.py"),
        ignore_case=boolean("of letters"),
        all=boolean("in every folder"),
    )
    kind: Kind = "read"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        pattern = str(call.arguments.get("pattern"))
        return previewed(
            call,
            context,
            "path",
            lambda path, shown: Preview(f"grep {pattern!r} in {shown}", reads=(path,)),
        )

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        """In a child: a pattern may take for ever."""
        (root,) = preview.reads
        pattern = str(call.arguments["pattern"])
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return Outcome(f"the pattern {pattern!r:.100} is none: {error}", "error")
        wanted = call.arguments.get("glob")
        asked = {
            "pattern": pattern,
            "root": str(root),
            "shown": context.workspace.shown(root),
            "glob": None if wanted is None else glob_regex(_anywhere(str(wanted))).pattern,
            "ignore_case": bool(call.arguments.get("ignore_case")),
            "all": bool(call.arguments.get("all")),
        }
        try:
            child = subprocess.run(
                [sys.executable, "-I", "-S", str(GREP)],
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=GREP_S,
                check=False,
                env={},
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Outcome(f"grep took more than {GREP_S:.0f} s: try a simpler pattern", "timeout")
        if child.returncode:
            return Outcome(child.stderr.decode("utf-8", "replace")[-200:], "error")
        text = child.stdout.decode("utf-8", "replace")
        return Outcome(text.rstrip("\n") or "none", details={"lines": text.count("\n")})


def _anywhere(pattern: str) -> str:
    return pattern if "/" in pattern else f"**/{pattern}"
