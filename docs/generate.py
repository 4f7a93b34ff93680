"""The command reference in docs/cli.md, from the commands themselves: `make docs`, which also
records the screens (record.py).

python docs/generate.py            write it
python docs/generate.py --check    exit 1 if the page is out of date

What stands between the two marks of the page is made here; the rest is written by hand. Examples
are the lines of docs/examples.txt: each is shown with the command that it runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE, EXAMPLES = DOCS / "cli.md", DOCS / "examples.txt"
BEGIN = "<!-- made by `make docs` from here -->"
END = "<!-- to here -->"
FLAGS = "generation flags"
SHARED = 12  # a command with so many of the generation flags has them all

for source in (DOCS.parent, DOCS.parent / "kernels", DOCS.parent / "sessions"):
    sys.path.insert(0, str(source))


def reference() -> list[str]:
    """All commands, in the order and the sections of `radchat --help`."""
    from radchat.cli import table

    lines = [*globals_table(), *generation_table()]
    section = ""
    for entry in sorted(table.COMMANDS, key=lambda each: table.SECTIONS.index(each.section)):
        if entry.section != section:
            section = entry.section
            lines += [f"### {section}", ""]
        lines += of_entry(entry.name)
    return lines


def of_entry(name: str) -> list[str]:
    from radchat.cli.complete import subcommands

    lines = []
    for whole, command in subcommands(name):
        if not command.hidden:
            lines += of_command(whole, command)
    return lines


def of_command(name: str, command: Any) -> list[str]:
    from radchat.cli.table import ALIASES

    shared = generation_flags() if len(own_flags(command)) >= SHARED else set()
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    rest = [p for p in options if p.opts[0] not in shared]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([f"radchat {name}", *(metavar(a) for a in arguments)])
    usage += " [OPTIONS]" if options else ""
    also = [alias for alias, words in ALIASES.items() if " ".join(words) == name]
    lines = [f"#### radchat {name}", "", f"`{usage}`", ""]
    text = " ".join((command.help or "").split())
    text += f" (also: {', '.join(f'`radchat {a}`' for a in also)})" if also else ""
    lines += [text, ""]
    rows = [row(f"`{escaped(metavar(a))}`", a) for a in arguments if a.help]
    rows += [row(spelled(option), option) for option in rest]
    if shared:
        rows.append(f"| the [{FLAGS}](#{FLAGS.replace(' ', '-')}) | | |")
    lines += [*table_head("argument or option"), *rows, ""] if rows else []
    examples = examples_of().get(name, [])
    lines += ["```", *examples, "```", ""] if examples else []
    return lines


def row(name: str, parameter: Any) -> str:
    return f"| {name} | {escaped(parameter.help or '')} | {default_of(parameter)} |"


def spelled(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    return names if option.is_flag else f"{names} `{escaped(metavar(option))}`"


def metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "option":
        return "N" if "INT" in type_of(parameter) or "FLOAT" in type_of(parameter) else "TEXT"
    name = parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def type_of(parameter: Any) -> str:
    return str(getattr(parameter.type, "name", "")).upper()


def default_of(parameter: Any) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) else f"`{value}`"


def escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table_head(first: str) -> list[str]:
    return [f"| {first} | what it does | default |", "| --- | --- | --- |"]


def globals_table() -> list[str]:
    from radchat.cli.table import GLOBAL_OPTIONS

    lines = ["### Options of every command", "", "Before or after the command.", ""]
    lines += ["| option | what it does |", "| --- | --- |"]
    for names, text in GLOBAL_OPTIONS:
        lines.append(f"| `{escaped(names)}` | {escaped(text)} |")
    return [*lines, ""]


def generation_flags() -> set[str]:
    from radchat.cli.complete import subcommands

    return set(own_flags(dict(subcommands("retry"))["retry"]))


def own_flags(command: Any) -> list[str]:
    """Of this command's options, those that say how an answer is made."""
    from dataclasses import fields

    from radchat.cli.generation import Generation

    names = {field.name for field in fields(Generation)}
    return [p.opts[0] for p in command.params if p.name in names]


def generation_table() -> list[str]:
    from radchat.cli.complete import subcommands

    shared = generation_flags()
    lines = [f"### {FLAGS.capitalize()}", "", "Of every command that makes an answer.", ""]
    lines += table_head("option")
    for option in dict(subcommands("retry"))["retry"].params:
        if option.opts[0] in shared:
            lines.append(row(spelled(option), option))
    return [*lines, ""]


@cache
def examples_of() -> dict[str, list[str]]:
    """Each example under the command it runs, as it is written."""
    from radchat.cli.argv import parse
    from radchat.cli.complete import subcommands

    found: dict[str, list[str]] = {}
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        read = parse(words_of(line))
        names = [name for name, _ in subcommands(read.command)]
        whole = f"{read.command} {next((w for w in read.words if w[:1] != '-'), '')}"
        name = read.command if names == [read.command] else whole
        found.setdefault(name, []).append(line)
    return found


def words_of(line: str) -> list[str]:
    """The words after `radchat` of the one that the line runs."""
    import shlex

    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    words = words[words.index("radchat") + 1 :]
    ends = [i for i, word in enumerate(words) if set(word) <= set("();<>|&")]
    return words[: ends[0]] if ends else words


def page(text: str) -> str:
    """The page with its reference made anew."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has lost its marks {BEGIN} and {END}")
    made = re.sub(r"\n{3,}", "\n\n", "\n".join(["", "", *reference()]))
    return f"{before}{BEGIN}{made}{END}{after}"


def main(argv: list[str]) -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in argv:
        changed = list(differing(old, new))
        if changed:
            print(f"{PAGE} is out of date: make docs\n" + "\n".join(changed), file=sys.stderr)
        return bool(changed)
    PAGE.write_text(new, encoding="utf-8")
    return 0


def differing(old: str, new: str) -> Iterator[str]:
    import difflib

    yield from difflib.unified_diff(old.splitlines(), new.splitlines(), "page", "made", n=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
