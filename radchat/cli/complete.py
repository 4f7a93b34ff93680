"""What a shell's Tab means here: the words so far in, what may come next out. Nothing is run.

What can be typed follows from the commands themselves: an option's or argument's metavar says what
it wants (``REF``, ``SESSION``, ``MODEL``, ``FILE``, ``a|b|c``), so a new command is completed
without a line here. Where the values come from: ``values.py``. How a shell has it: ``shells.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.cli.argv import GLOBAL_FLAGS, GLOBAL_VALUES, OPTIONAL
from radchat.cli.table import ALIASES, BY_NAME, GLOBAL_OPTIONS

_CHOICES = re.compile(r"\[?([a-z0-9-]+(?:\|[a-z0-9-]+)+)\]?")
_WORDS = re.compile(r"(?:^|\|)([a-z-]+:?)(?=[A-Z|]|$)")  # `REGEX|json:PATH|last-line`
_WANTS = (  # what a metavar asks for; several may fit
    ("refs", re.compile(r"\bREF\b")),
    ("sessions", re.compile(r"\b(?:SESSION|ID)\b")),
    ("models", re.compile(r"\bMODEL\b")),
    ("branches", re.compile(r"\bBRANCH\b")),
    ("settings", re.compile(r"\bSETTING\b")),
    ("options", re.compile(r"\bk=v\b")),
    ("tasks", re.compile(r"\bgame24\b")),
    ("files", re.compile(r"(?<!@)FILE|PATH|SOCK|WHEEL|GGUF|FOLDER|DIR\b")),
    ("at_files", re.compile(r"@FILE")),
)
_GLOBAL_WANTS = {"--session": "sessions", "--daemon": "files", "--config": "files"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """``value``: the whole word as the command would get it; ``more``: it is to be gone on with."""

    value: str
    text: str = ""
    more: bool = False


@dataclass(slots=True)
class Wanted:
    """What may stand where the cursor is: fixed words, and kinds of values."""

    words: list[Candidate] = field(default_factory=list)
    kinds: tuple[str, ...] = ()
    prefix: str = ""  # of the value, as far as it is typed
    before: str = ""  # of the word, before the value: ``--at=``
    given: dict[str, str] = field(default_factory=dict)  # global options with their values


def wanted(words: Sequence[str], current: str) -> Wanted:
    """``words``: those after ``radchat`` and before the one with the cursor."""
    line = _Read()
    for word in words:
        line.take(word)
    found = line.wants(current)
    found.given = line.given
    return found


@dataclass(slots=True)
class _Read:
    """The words read so far."""

    command: Any = None  # Typer's
    name: str = ""  # of the command, a space before that of a sub-command
    positional: int = 0
    last: str = ""  # of the positional words
    given: dict[str, str] = field(default_factory=dict)
    _open: tuple[str, Any, int] | None = None  # an option that has not all its values
    _is_text: bool = False  # after --

    def take(self, word: str) -> None:
        if self._open is not None and self._takes_value(word):
            return
        if self._is_text:
            self._count(word)
        elif word == "--":
            self._is_text = True
        elif word.startswith("-") and word != "-":
            self._take_option(word)
        elif not self.name:
            self._enter(word)
        elif getattr(self.command, "commands", None) and word in self.command.commands:
            self.command, self.name = self.command.commands[word], f"{self.name} {word}"
        else:
            self._count(word)

    def _count(self, word: str) -> None:
        self.positional, self.last = self.positional + 1, word

    def _takes_value(self, word: str) -> bool:
        assert self._open is not None
        name, option, left = self._open
        if self._may_lack(name) and (word.startswith("-") or any(c.isspace() for c in word)):
            self._open = None
            return False
        self.given[name] = word
        self._open = (name, option, left - 1) if left > 1 else None
        return True

    def _take_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if name in GLOBAL_VALUES and equals:
            self.given[name] = value
        elif name in GLOBAL_VALUES:
            self._open = (name, None, 1)
        elif word not in GLOBAL_FLAGS and not equals:
            option = _option(self._commands(), name)
            if option is not None and not option.is_flag:
                self._open = (name, option, option.nargs)

    def _enter(self, word: str) -> None:
        """The first word that is no option: a command, else the beginning of a prompt."""
        for step in ALIASES.get(word, (word,)):
            if self.name:
                self.take(step)
            elif step in BY_NAME or step == "help":
                self.name = step
                self.command = _command(step) if step in BY_NAME else None
            else:
                self.name, self.command, self.positional = "chat", _command("chat"), 1

    def _commands(self) -> Any:
        """The command whose options these are; a bare line is a chat."""
        return self.command or _command("chat")

    def _may_lack(self, name: str) -> bool:
        command = self.name.split(" ")[0] or "chat"
        return name == "--think" or command in OPTIONAL.get(name, ())

    # -- what comes next -------------------------------------------------------------------------

    def wants(self, current: str) -> Wanted:
        if self._open is not None:
            name, option, left = self._open
            found = _value(self.name, name, option, left, current)
            if self._may_lack(name) and current.startswith("-"):
                return Wanted(self._options(), prefix=current)
            return found
        if not self._is_text and current.startswith("--") and "=" in current:
            name, _, value = current.partition("=")
            option = None if name in GLOBAL_VALUES else _option(self._commands(), name)
            found = _value(self.name, name, option, 0, value)
            found.before = f"{name}="
            return found
        if not self._is_text and current.startswith("-") and current != "-":
            return Wanted(self._options(), prefix=current)
        if not self.name:
            return Wanted(_command_words(), prefix=current)
        if self.name == "help":
            return Wanted(_command_words() if not self.positional else [], prefix=current)
        if getattr(self.command, "commands", None):
            subs = self.command.commands.items()
            return Wanted([Candidate(n, _first(c.help)) for n, c in subs], prefix=current)
        return self._argument(current)

    def _options(self) -> list[Candidate]:
        found = [
            Candidate(name, option.help or "")
            for option in self._commands().params
            if option.param_type_name == "option" and not option.hidden
            for name in option.opts
        ]
        for names, text in GLOBAL_OPTIONS:
            found += [Candidate(name.split(" ")[0], text) for name in names.split(", ")]
        return found

    def _argument(self, current: str) -> Wanted:
        if self.name == "config set" and self.positional == 1:
            return Wanted([Candidate(word) for word in _values_of(self.last)], prefix=current)
        arguments = [p for p in self.command.params if p.param_type_name == "argument"]
        for index, argument in enumerate(arguments):
            if argument.nargs < 0:
                return _of(self.name, argument, self.positional - index, current)
            if index == self.positional:
                return _of(self.name, argument, 0, current)
        return Wanted(prefix=current)


def _value(command: str, name: str, option: Any, left: int, current: str) -> Wanted:
    """The value of an option; ``left``: how many of its values are missing."""
    if name == "--color":
        return Wanted([Candidate(c) for c in ("auto", "always", "never")], prefix=current)
    if option is None:
        return Wanted(kinds=(_GLOBAL_WANTS[name],) if name in _GLOBAL_WANTS else (), prefix=current)
    return _of(command, option, max(option.nargs, 1) - max(left, 1), current)


def _of(command: str, parameter: Any, index: int, current: str) -> Wanted:
    """What the ``index``-th value of a parameter may be, by its metavar."""
    metavar = str(parameter.metavar or parameter.name.upper())
    choices = _CHOICES.fullmatch(metavar)
    if choices:
        return Wanted([Candidate(word) for word in choices[1].split("|")], prefix=current)
    if "|" in metavar and (words := _WORDS.findall(metavar)):
        found = [Candidate(word, more=word.endswith(":")) for word in words]
        return Wanted(found, prefix=current)
    if command == "branch" and parameter.name in ("rename", "delete"):
        return Wanted(kinds=("branches",) if index == 0 else (), prefix=current)
    if command in ("config get", "config set", "config unset") and parameter.name == "name":
        return Wanted(kinds=("settings",), prefix=current)
    if command == "models pull" and parameter.name == "source":
        return Wanted(kinds=("sources", "files"), prefix=current)
    repeats = metavar.removesuffix("]").endswith("...") and " " not in metavar
    if index > 0 and not repeats:
        return Wanted(prefix=current)
    first = metavar if repeats or "|" in metavar else metavar.split(" ", maxsplit=1)[0]
    return Wanted(kinds=tuple(kind for kind, says in _WANTS if says.search(first)), prefix=current)


def _values_of(setting: str) -> tuple[str, ...]:
    """The words a setting may be, where they are few."""
    from radchat.config import SETTINGS

    return next((each.choices for each in SETTINGS if each.name == setting), ())


def _option(command: Any, name: str) -> Any:
    if len(name) > 2 and not name.startswith("--"):
        name = f"-{name[-1]}"  # -cN: the last of several letters
    for each in command.params:
        if each.param_type_name == "option" and name in each.opts:
            return each
    return None


def _command(name: str) -> Any:
    import typer

    from radchat.cli.app import assemble

    group: Any = typer.main.get_command(assemble([BY_NAME[name]]))
    return group.commands[name]


def _command_words() -> list[Candidate]:
    """Commands, then their other names."""
    found = [Candidate(entry.name, entry.help) for entry in BY_NAME.values()]
    return found + [Candidate(name, " ".join(words)) for name, words in ALIASES.items()]


def _first(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


def subcommands(name: str) -> Iterator[tuple[str, Any]]:
    """A command, or each of a group's, with its whole name. Also for the manual."""
    command = _command(name)
    nested = getattr(command, "commands", None)
    if nested is None:
        yield name, command
        return
    for sub, each in nested.items():
        yield f"{name} {sub}", each
