"""The command line before Typer sees it. Words in, words out; nothing is run.

Three things Typer cannot do: options whose value may be left out (``-r``, ``--new-session``,
``--think``), global options on either side of the command, and a bare ``radchat PROMPT`` that is a
chat but never a mistyped command.
"""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass, field

from radchat.chat.options import nearest
from radchat.cli import habits
from radchat.cli.table import ALIASES, BY_NAME
from radchat.errors import UsageError

GLOBAL_FLAGS = frozenset(
    ("-q", "--quiet", "-v", "--verbose", "--plain", "--json", "-V", "--version")
)
GLOBAL_VALUES = frozenset(("--color", "--session", "--daemon", "--engine", "--config"))
HELP = frozenset(("-h", "--help"))
THINK_LEVELS = frozenset(("off", "on", "low", "medium", "high"))

# options of commands whose next word is their value: it must not be taken for something else
VALUE_OPTIONS = frozenset(
    (
        "-m",
        "--model",
        "-s",
        "--system",
        "-f",
        "--file",
        "-o",
        "--option",
        "--temp",
        "--top-p",
        "--top-k",
        "--min-p",
        "--seed",
        "--seed-base",
        "--stop",
        "--max-tokens",
        "--schema",
        "--regex",
        "--grammar",
        "--choice",
        "--ctx",
        "--dtype",
        "--at",
        "--output-format",
        "--stdin-timeout",
        "-n",
        "-N",
        "--name",
        "--filter",
        "--depth",
        "--by",
        "--tokens",
        "--tier",
        "--for",
        "--compare",
        "--from-file",
        "--folder",
        "--format",
        "--output",
        "-d",
        "--delete",
        "--move",
        "--label",
        "--arg",
        "--input",
        "--at-once",
        "--save",
        "--method",
        "--generate",
        "--evaluate",
        "--select",
        "-k",
        "--branch",
        "-b",
        "--beam",
        "--n-eval",
        "--stop-score",
        "--budget",
        "--thought-tokens",
        "--task",
        "--tools",
        "--allowed-tools",
        "--permission-mode",
        "--max-turns",
        "--mcp-config",
        "--tries",
        "--check",
        "--host",
        "--port",
        "--api-key",
        "--allow-host",
        "--allow-origin",
        "--tokenizer",
    )
)
# where one of these is a plain flag, and where another is one of these
FLAGS = {"daemon": frozenset(("-f",))}
VALUES = {"vote": frozenset(("--extract",))}
# the commands that take an option whose value may be left out; elsewhere `-r` is a plain flag
TALKING = frozenset(("chat", "ask", "vote", "agent"))
OPTIONAL: dict[str, frozenset[str]] = {
    "-r": TALKING,
    "--resume": TALKING | {"think"},
    "--new-session": TALKING | {"fork", "think"},
}
THINKING = TALKING | {"fork", "what-if", "retry", "edit", "continue", "think"}


@dataclass(slots=True)
class Line:
    """A parsed command line: what to run, and the words for Typer."""

    command: str  # a name of table.COMMANDS, "help" or "version"
    words: list[str] = field(default_factory=list)  # after the command
    options: list[str] = field(default_factory=list)  # global ones, before the command
    json: bool = False

    @property
    def argv(self) -> list[str]:
        return [*self.options, self.command, *self.words]


def wants_json(argv: list[str]) -> bool:
    """True if a failure must be a JSON document, known before anything else is."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    pairs = itertools.pairwise(words)
    return (
        "--json" in words
        or "--output-format=json" in words
        or any(pair == ("--output-format", "json") for pair in pairs)
    )


def parse(argv: list[str]) -> Line:
    """Sort the words; raise UsageError for a word that is no command."""
    options, rest = _hoist(argv)
    line = _command(rest)
    line.options = options
    line.json = wants_json(argv)
    if "-V" in options or "--version" in options:
        return Line("version", json=line.json)
    if line.command in BY_NAME:
        line.words = _fill_optional(line.command, line.words)
    return line


def _hoist(argv: list[str]) -> tuple[list[str], list[str]]:
    """Global options and the other words, each in order; after ``--`` all is text."""
    options: list[str] = []
    rest: list[str] = []
    i = 0
    while i < len(argv):
        word = argv[i]
        i += 1
        if word == "--":
            rest += argv[i - 1 :]
            break
        name = word.split("=", 1)[0]
        if word in GLOBAL_FLAGS or (name in GLOBAL_VALUES and "=" in word):
            options.append(word)
        elif word in GLOBAL_VALUES:
            if i == len(argv):
                raise UsageError(f"{word} needs a value")
            options += [word, argv[i]]
            i += 1
        else:
            rest.append(word)
            if _takes_value(rest[0], word) and i < len(argv):
                rest.append(argv[i])
                i += 1
    return options, rest


def _takes_value(command: str, word: str) -> bool:
    """Whether the next word is this option's value."""
    if word in VALUES.get(command, ()):
        return True
    return word in VALUE_OPTIONS and word not in FLAGS.get(command, ())


def _command(words: list[str]) -> Line:
    """Which command the words are for; the rest of the words, without it."""
    first = words[0] if words else None
    if first in HELP or first == "help":
        return Line(words[1], ["--help"]) if words[1:2] and words[1] in BY_NAME else Line("help")
    if first in ALIASES:
        name, *more = ALIASES[first]
        return Line(name, [*more, *words[1:]])
    if first in BY_NAME:
        return Line(str(first), words[1:])
    printing = [w for w in words[: _text_at(words)] if w in ("-p", "--print")]
    if printing:
        return Line(
            "ask", [w for i, w in enumerate(words) if w not in printing or _is_text(words, i)]
        )
    _refuse_mistyped(words)
    if any(word in HELP for word in words[: _text_at(words)]):
        return Line("chat", ["--help"])
    return Line("chat", words)


def _text_at(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)


def _is_text(words: list[str], i: int) -> bool:
    return i > _text_at(words)


def _refuse_mistyped(words: list[str]) -> None:
    """A lone unknown word, or a first word that all but names a command, is no prompt."""
    texts = _positional(words)
    if not texts or words[:1] == ["--"]:
        return
    word = texts[0]
    if any(c.isspace() for c in word) or not word:
        return
    habits.refuse(texts)
    near = nearest(word, (*BY_NAME, *ALIASES))
    if len(texts) > 1 and (near is None or len(texts) > 3 or word.lower() in habits.QUESTIONS):
        return
    if word == near and word in THINKING:  # options of the command's, before it
        at = words.index(word)
        told = shlex.join([word, *words[:at], *words[at + 1 :]])
        raise UsageError(f"options go after the command: radchat {told}. {habits.to_say(texts)}")
    hint = f"did you mean `radchat {near}`?" if near else "see `radchat --help`."
    raise UsageError(f"unknown command {word!r}: {hint} {habits.to_say(texts)}")


def _positional(words: list[str]) -> list[str]:
    texts: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word == "--":
            return texts + words[i:]
        if word in VALUE_OPTIONS:
            i += 1
        elif word in OPTIONAL:
            i += _has_value(words, i)
        elif word == "-" or not word.startswith("-"):
            texts.append(word)
    return texts


def _has_value(words: list[str], i: int) -> bool:
    """Whether word i is the value of the optional-value option before it: no option, no prompt."""
    if i >= len(words):
        return False
    word = words[i]
    return bool(word) and not word.startswith("-") and not any(c.isspace() for c in word)


def _fill_optional(command: str, words: list[str]) -> list[str]:
    """Give each option with an optional value one with ``=``; empty where it was left out."""
    out: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word == "--":
            return out + words[i - 1 :]
        if command in OPTIONAL.get(word, ()):
            name = "--resume" if word == "-r" else word
            given = _has_value(words, i)
            out.append(f"{name}={words[i] if given else ''}")
            i += given
        elif word.startswith("-r") and not word.startswith("--") and command in OPTIONAL["-r"]:
            out.append(f"--resume={word[2:].removeprefix('=')}")
        elif word == "--think" and command in THINKING:
            given = i < len(words) and words[i] in THINK_LEVELS
            out.append(f"--think={words[i] if given else 'on'}")
            i += given
        else:
            out.append(word)
            if _takes_value(command, word) and i < len(words):
                out.append(words[i])
                i += 1
    return out
