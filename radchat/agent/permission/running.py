"""Commands that run other commands: which those are, as far as their words tell."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    text: str  # of one that is not known, as much of its beginning as is
    is_static: bool = True

    @property
    def known(self) -> str | None:
        return self.text if self.is_static else None


Words = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """``words``: a command, ``line``: a line that it runs. ``is_through``: it does nothing else, so
    that what may run may run so.
    """

    words: Words | None = None
    line: str | None = None
    is_through: bool = False


# words that change nothing of what follows them; and their options that take a value
THROUGH: dict[str, tuple[str, ...]] = {
    "nice": ("-n",),
    "nohup": (),
    "time": (),
    "command": (),
    "builtin": (),
    "timeout": ("-s", "-k", "--signal", "--kill-after"),
    "stdbuf": ("-i", "-o", "-e"),
    "env": (),
}
# those that do more: as another user, with other words, in another's place
ALSO: dict[str, tuple[str, ...]] = {
    "sudo": ("-u", "-g", "-h", "-p", "-C", "-r", "-t", "-U", "-D", "-R", "-T"),
    "doas": ("-u", "-C"),
    "xargs": ("-n", "-I", "-L", "-P", "-s", "-d", "-E", "-a"),
    "exec": ("-a",),
    "setsid": (),
    "ionice": ("-c", "-n"),
    "coproc": (),
    "strace": ("-e", "-o", "-p", "-s", "-u"),
    "watch": ("-n",),
    "env": ("-u", "-C", "-S"),
}
SHELLS = frozenset(("bash", "sh", "dash", "zsh", "ksh"))
LINES = frozenset(("eval", "trap"))
EXECS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))  # of find
# what a rule that ends in ``:*`` would be for everything of
RUNNERS = frozenset((*THROUGH, *ALSO, *SHELLS, *LINES, "source", ".", "find", "parallel", "ssh"))

# variables that programs read as data only; all others may change what runs
_HARMLESS = re.compile(r"LANG|LC_[A-Z]+|TZ|CI|NO_COLOR|FORCE_COLOR|COLUMNS|LINES|PYTHONHASHSEED")


def is_harmless_variable(name: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None


def runs(words: Words) -> Runs:
    """By its name alone: one with a folder before it may be anything, and is itself."""
    name, rest = words[0].text, words[1:]
    if name in THROUGH and (inner := _after(name, rest)) is not None:
        return Runs(words=inner, is_through=True)
    if name in SHELLS and (script := _script(rest)) is not None:
        return Runs(line=script, is_through=True)
    base = name.rpartition("/")[2]
    if base in ALSO:
        return Runs(words=_from_first(rest, ALSO[base]))
    if base in SHELLS:
        return Runs(line=next((w.known for w in rest if w.known and " " in w.text), None))
    if base in LINES and rest:
        parts = rest[:1] if base == "trap" else rest
        known = [word.known for word in parts if word.known is not None]
        return Runs(line=" ".join(known) if len(known) == len(parts) else None)
    if base == "find":
        at = next((i for i, word in enumerate(rest) if word.known in EXECS), None)
        return Runs(words=None if at is None else rest[at + 1 :] or None)
    return Runs()


def _from_first(rest: Words, with_value: tuple[str, ...]) -> Words | None:
    """From the first word that is no option, and no variable's."""
    at = 0
    while at < len(rest):
        word = rest[at].known
        if word is None:
            return None
        if word in with_value:
            at += 2
        elif word.startswith("-") or "=" in word:
            at += 1
        else:
            return rest[at:]
    return None


def _after(name: str, rest: Words) -> Words | None:
    """The command that a word before it runs; None: there is none, or it is not plain which."""
    at, with_value = 0, THROUGH[name]
    while at < len(rest):
        word = rest[at].known
        if word is None:
            return None
        if word in with_value:
            at += 2
        elif word.startswith("-"):
            if name not in ("timeout", "nice", "stdbuf", "time"):
                return None  # env -S, command -v and the like
            at += 1
        elif name == "env" and "=" in word:
            if not is_harmless_variable(word.partition("=")[0]):
                return None
            at += 1
        else:
            break
    if name == "timeout":
        at += 1  # how long
    return rest[at:] or None


def _script(rest: Words) -> str | None:
    """The line of ``bash -c LINE``, alone."""
    if len(rest) == 2 and rest[0].known in ("-c", "-ec", "-lc", "-euc", "-xc"):
        return rest[1].known
    return None
