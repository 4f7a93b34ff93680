"""Commands that only look: allowed unasked in the sandbox, inside the folder.

A name is here when no argument makes it write or run anything, or when those that do are listed
and refused. An argument that is not known beforehand (``$X``, ``*``) may be one of those.
"""

from __future__ import annotations

from radchat.agent.permission.shell import Part

# names that take any argument
ANY = frozenset((
    "ls", "cat", "head", "tail", "wc", "pwd", "echo", "true", "false", "basename", "dirname",
    "realpath", "readlink", "stat", "cut", "tr", "nl", "rev", "tac", "comm", "diff", "cmp",
    "sha256sum", "sha1sum", "md5sum", "cksum", "du", "df", "id", "whoami", "uname", "seq",
    "sleep", "column", "expand", "unexpand", "fold", "paste", "join", "od", "strings", "grep",
    "egrep", "fgrep", "which", "type", "cd", ":", "hexdump", "tsort",
))  # fmt: skip
# names, and what of their options writes or runs something
BUT: dict[str, tuple[str, ...]] = {
    "sort": (
        "-o",
        "--output",
        "--compress-program",
        "-T",
        "--temporary-directory",
        "--files0-from",
    ),
    "date": ("-s", "--set", "-f", "--file"),
    "tree": ("-o", "--output"),
    "rg": ("--pre", "--hostname-bin", "-z", "--search-zip"),
    "file": ("-C", "--compile"),
    "find": ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fls", "-files0-from"),
    "printf": ("-v",),
}
GIT_BUT = ("--output", "--ext-diff", "--textconv", "--open-files-in-pager", "--no-index")
GIT = frozenset((
    "status", "log", "diff", "show", "rev-parse", "ls-files", "ls-tree", "blame", "shortlog",
    "describe", "cat-file", "rev-list", "merge-base", "name-rev", "grep", "whatchanged",
    "count-objects",
))  # fmt: skip
GIT_LISTS: dict[str, frozenset[str]] = {  # of these, only with nothing or with these
    "branch": frozenset(("-a", "-r", "-v", "-vv", "--list", "--all", "--show-current")),
    "tag": frozenset(("-l", "--list", "-n")),
    "remote": frozenset(("-v", "--verbose")),
    "stash": frozenset(("list",)),
}


# names whose arguments are no files
WORDS = frozenset(("echo", "true", "false", ":", "seq", "sleep", "printf", "uname", "whoami"))


def is_harmless(part: Part) -> bool:
    """Of a command. Where its files lie is for the judge."""
    name = part.name
    if name in ("test", "["):  # -v evaluates what stands in a subscript
        return part.is_static and not any("[" in word.text for word in part.words[1:])
    if name in ANY:
        return True
    if name in BUT:
        return part.is_static and not _has(part, BUT[name])
    if name == "git":
        return part.is_static and _git(part)
    return False


def _has(part: Part, options: tuple[str, ...]) -> bool:
    """One of these, also abbreviated, with its value in the same word, or among short ones."""
    return any(_is(word.text, option) for word in part.words[1:] for option in options)


def _is(word: str, option: str) -> bool:
    if not word.startswith("-"):
        return False
    if option.startswith("--"):
        given = word.partition("=")[0]
        return given.startswith("--") and len(given) > 2 and option.startswith(given)
    if len(option) == 2 and not word.startswith("--"):
        return option[1] in word[1:]
    return word.startswith(option)


def _git(part: Part) -> bool:
    words = [word.text for word in part.words[1:]]
    while words and words[0] in ("--no-pager", "-P"):
        words.pop(0)
    if not words:
        return False
    command, rest = words[0], words[1:]
    if command in GIT_LISTS:
        return all(word in GIT_LISTS[command] for word in rest)
    if command == "grep" and any(_is(word, "-O") for word in rest):
        return False
    # options before the command (-c, -C, --exec-path) change what it runs, or where
    return command in GIT and not any(_is(word, each) for word in rest for each in GIT_BUT)
