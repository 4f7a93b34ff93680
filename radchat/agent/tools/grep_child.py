"""The child of ``finding.Grep``: stdlib only, run by its path. A question on stdin, lines out.

A file is opened without following links, an ordinary one of bounded size only.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from typing import Any

MOST_S = 30
MOST_LINES = 2000
MOST_LINE = 500  # characters
MOST_FILE = 8 * 1024 * 1024  # bytes
SKIPPED = frozenset(
    [
        *(".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache"),
    ]
)


def main() -> None:
    sys.setrecursionlimit(10_000)  # os.walk calls itself for each folder, until Python 3.12
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))  # whoever asked may be gone
    asked = json.loads(sys.stdin.buffer.read())
    flags = re.IGNORECASE if asked["ignore_case"] else 0
    pattern = re.compile(asked["pattern"], flags)
    wanted = None if asked["glob"] is None else re.compile(asked["glob"], re.DOTALL)
    left = MOST_LINES
    for path, relative in _files(asked):
        if wanted is not None and not wanted.fullmatch(relative):
            continue
        for number, line in _lines(path):
            if pattern.search(line):
                cut = line if len(line) <= MOST_LINE else f"{line[:MOST_LINE]}..."
                shown = (
                    asked["shown"] if relative == "." else os.path.join(asked["shown"], relative)
                )
                text = f"{shown.removeprefix('./')}:{number}:{cut}\n"
                sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
                left -= 1
                if left == 0:
                    sys.stdout.buffer.write(b"[and more: a narrower pattern finds less]\n")
                    return


def _files(asked: dict[str, Any]) -> Iterator[tuple[str, str]]:
    root = asked["root"]
    if os.path.isfile(root):
        yield root, "."
        return
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if asked["all"] or name not in SKIPPED)
        for name in sorted(files):
            path = os.path.join(folder, name)
            yield path, os.path.relpath(path, root)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return
        data = opened.read(MOST_FILE)
    if b"\0" not in data[:8192]:
        lines = data.decode("utf-8", "replace").split("\n")
        last = len(lines) - (lines[-1] == "")
        yield from enumerate((line.removesuffix("\r") for line in lines[:last]), 1)


if __name__ == "__main__":
    main()
