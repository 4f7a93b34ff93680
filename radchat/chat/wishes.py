"""What may be typed where the cursor is: which kind of thing, and how much of it stands there.

Follows from the commands themselves: an argument says what it wants (``REF``, ``PATH``, ``a|b``),
so a new command is completed without a line here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from radchat.chat import commands
from radchat.chat.options import OPTIONS

# arguments that do not say it by their name
_KINDS = {"model": "models", "sessions": "sessions"}
_WORDS = {
    "think": ("off", "on", "low", "medium", "high", "show", "hide"),
    "set": tuple(OPTIONS),
}
_WORD = re.compile(r"[a-z][a-z-]*")
_NAMED = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"]*)|(?P<bare>[^\s"]*))$')


@dataclass(frozen=True, slots=True)
class Wish:
    kind: str  # commands, words, files, refs, models, sessions
    typed: str  # of it
    length: int  # of what it replaces, before the cursor
    words: tuple[str, ...] = ()  # to choose from, of the kind words
    is_named: bool = False  # a file in a message: behind an @


def wish(before: str) -> Wish | None:
    """``before`` the cursor; None: nothing to choose from."""
    line = before.rpartition("\n")[2]
    if before.startswith("/") and line == before:
        name, space, rest = before[1:].partition(" ")
        if not space:
            return None if "/" in name else Wish("commands", name, len(before))
        slash = commands.BY_WORD.get(name.lower())
        return None if slash is None else _argument(slash, rest)
    named = _NAMED.search(line)
    if named is None:
        return None
    typed = named["bare"] if named["quoted"] is None else named["quoted"]
    return Wish("files", typed, len(named[0]), is_named=True)


def _argument(slash: commands.Slash, rest: str) -> Wish | None:
    wanted = slash.args.replace("[", "").replace("]", "").split()
    if wanted and wanted[0] in ("PATH", "FILE"):  # all of the line, spaces too
        return Wish("files", rest, len(rest))
    *done, typed = rest.split(" ")
    if not done and slash.name in _KINDS:
        return Wish(_KINDS[slash.name], typed, len(typed))
    if not done and slash.name in _WORDS:
        return Wish("words", typed, len(typed), _WORDS[slash.name])
    if wanted and wanted[-1].endswith("..."):  # as many as one likes
        wanted[-1] = wanted[-1].removesuffix("...")
        wanted += wanted[-1:] * len(done)
    if len(done) >= len(wanted):
        return None
    choices = wanted[len(done)].split("|")
    before = wanted[len(done) - 1].split("|") if done else []
    if len(before) > 1 and done[-1] != before[-1]:  # `ls|tree|evict REF`: of the last alone
        return None
    if "REF" in choices:
        return Wish("refs", typed, len(typed))
    words = tuple(word for word in choices if _WORD.fullmatch(word))
    return Wish("words", typed, len(typed), words) if words else None
