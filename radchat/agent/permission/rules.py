"""Rules of permission: ``shell(git status:*)``, ``write(src/**)``, ``mcp(server:tool)``, ``shell``.

A rule names what a call needs, not the tool: ``write`` is for write_file and edit alike. In
brackets stands which: of a command its words (``:*`` at the end: these words, and any after them),
of files a pattern of paths in the folder, or an absolute one. Without brackets it is for all.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from radchat.agent.tools.finding import glob_regex
from radchat.errors import UsageError

NAMES = ("shell", "python", "read", "write", "mcp", "network")
WHOLE = ("python", "network")  # permitted as a whole, or not
ALIASES = {
    "read_file": "read",
    "list": "read",
    "glob": "read",
    "grep": "read",
    "write_file": "write",
    "edit": "write",
    "bash": "shell",
}
MORE = ":*"
MAX_RULE = 4096  # characters
_FORM = re.compile(r"(?P<name>[A-Za-z_]+)(?:\((?P<spec>.*)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    spec: str | None = None  # None: all of it

    def __str__(self) -> str:
        return self.name if self.spec is None else f"{self.name}({self.spec})"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """UsageError names what is wrong, and the form."""
        match = _FORM.fullmatch(text.strip())
        name = match["name"] if match else ""
        name = ALIASES.get(name, name)
        if match is None or name not in NAMES or len(text) > MAX_RULE:
            raise UsageError(
                f"no rule: {text!r:.80}. One is {', '.join(NAMES)}, alone or with what it is for: "
                "shell(git status:*), write(src/**), mcp(server:tool)"
            )
        spec = match["spec"]
        if spec is not None and not spec.strip():
            raise UsageError(f"{text}: nothing stands in the brackets; {name} alone is for all")
        if spec is not None and name in WHOLE:
            raise UsageError(f"{text}: {name} is permitted as a whole, or not")
        return cls(name, spec)

    def fits_words(self, words: tuple[str, ...]) -> bool:
        """A command that begins with the rule's words; without ``:*`` it has no others."""
        if self.spec is None:
            return True
        wanted, more = _words_of(self.spec)
        return words[: len(wanted)] == wanted if more else words == wanted

    def fits_line(self, line: str) -> bool:
        """The very line."""
        return self.spec is None or self.spec.strip() == line.strip()

    def fits_path(self, path: Path, root: Path) -> bool:
        if self.spec is None:
            return True
        pattern = os.path.expanduser(self.spec)  # noqa: PTH111 - a pattern is no path
        if pattern.startswith("/"):
            return glob_regex(pattern).fullmatch(str(path)) is not None
        if path != root and root not in path.parents:
            return False
        relative = os.path.relpath(path, root)
        return glob_regex(pattern.removeprefix("./")).fullmatch(relative) is not None

    def names_path(self, path: Path) -> bool:
        """Is it this very path, and no pattern?"""
        return self.spec is not None and os.path.expanduser(self.spec) == str(path)  # noqa: PTH111


def _words_of(spec: str) -> tuple[tuple[str, ...], bool]:
    """As a shell splits them: a word with spaces in it is quoted."""
    more = spec.endswith(MORE)
    text = spec.removesuffix(MORE)
    try:
        return tuple(shlex.split(text)), more
    except ValueError:  # an apostrophe
        return tuple(text.split()), more
