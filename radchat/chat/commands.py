"""The words a chat understands after a slash: one line each, parsed, not run."""

from __future__ import annotations

from dataclasses import dataclass

from radchat.chat.options import DTYPE, nearest
from radchat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Slash:
    name: str
    args: str
    help: str
    aliases: tuple[str, ...] = ()


SLASHES = (
    Slash("help", "", "this list", ("?",)),
    Slash("bye", "", "leave (also Ctrl+D)", ("exit", "quit")),
    Slash("new", "[NAME]", "a new session"),
    Slash("model", "[NAME]", "show or change the model"),
    Slash("system", "[TEXT]", "show or set the system prompt"),
    Slash("set", "[KEY VALUE]", "a setting: temperature, seed, max_tokens, ..."),
    Slash("show", "", "session, model and settings in force"),
    Slash("file", "PATH", "send it with the next message (also @PATH in it)"),
    Slash("multiline", "", "Enter is a newline; once more: it sends again"),
    Slash("editor", "[TEXT]", "write in your editor, then send it (also Ctrl+G)"),
    Slash("retry", "[K]", "another answer; K of them"),
    Slash("what-if", '"TEXT" "TEXT"', "several at once; you stay here", ("whatif",)),
    Slash("tot", "[resume|PROBLEM]", "an answer by a search over thoughts"),
    Slash("vote", "[-N K] TEXT", "K answers, and what most say; also --extract HOW"),
    Slash("edit", "[REF [TEXT]]", "say an earlier turn differently"),
    Slash("continue", "", "go on with a cut-off answer"),
    Slash("undo", "[N]", "go back N turns", ("rewind",)),
    Slash("redo", "", "take back an undo"),
    Slash("fork", "[REF] [NAME]", "a new branch, and go there", ("branch",)),
    Slash("branches", "", "list the branches"),
    Slash("switch", "REF | -", "go to a branch or message", ("checkout",)),
    Slash("tree", "[print|cache]", "walk in the tree; print it; cache: where KV is"),
    Slash("log", "", "the conversation up to here"),
    Slash("compare", "REF REF...", "what branches say, beside each other"),
    Slash("diff", "REF [REF]", "what differs; also words, stat"),
    Slash("think", "[LEVEL|hide]", "the model's reasoning: off, on, low, medium, high"),
    Slash("cache", "[ls|top|evict REF]", "what is kept; also save, load, warm, clear"),
    Slash("why", "[REF]", "what of a prompt was reused, and why no more"),
    Slash("pin", "[REF] [24h]", "keep the KV of the path to a message"),
    Slash("tools", "", "the tools of an agent"),
    Slash("permissions", "[allow RULE]", "an agent's mode and rules; also deny, rm, mode"),
    Slash("mcp", "", "an agent's MCP servers"),
    Slash("context", "", "what fills the context, in tokens"),
    Slash("compact", "[INSTRUCTIONS]", "go on from a summary, on a branch of its own"),
    Slash("sessions", "[NAME]", "list sessions, or go on with one", ("resume",)),
    Slash("rename", "NAME", "name this session"),
    Slash("export", "[FILE]", "this conversation as a file: .md, .json, .jsonl"),
    Slash("copy", "", "the last answer into the clipboard"),
    Slash("status", "", "the daemon: state, model, memory"),
)
HABITS = {  # of other chats and shells, and what does that here
    "clear": "/new begins a session, Ctrl+L clears the screen",
    "regenerate": "/retry answers anew",
    "delete": "in /tree d marks messages, x deletes them; `radchat sessions rm` deletes a session",
    "prune": "`radchat prune` does that in a shell; in /tree d marks messages and x deletes them",
    "label": "in /tree l labels a message; in a shell `radchat branch label`",
}
LEAST_PREFIX = 2  # letters of a command that is meant if no other begins so
MANY_LINES = frozenset(("/what-if", "/whatif", "/vote"))  # the others are said in one line
BY_WORD = {word: slash for slash in SLASHES for word in (slash.name, *slash.aliases)}

KEYS = (
    ("Ctrl+J, Alt+Enter", "newline (Shift+Enter where the terminal tells it)"),
    ('"""', "begin and end a text of several lines"),
    ("/, @", "commands, files: Tab, arrows choose, Enter takes"),
    ("!COMMAND", "run a shell command"),
    ("Esc Esc", "at an empty prompt: the tree"),
    ("Ctrl+C", "cancel the answer (what came stays), or the line"),
    ("Ctrl+G, Ctrl+X Ctrl+E", "write in your editor"),
    ("Up, Ctrl+R", "what was typed before; search it"),
    ("Ctrl+L, Ctrl+Z", "clear the screen; suspend (fg goes on)"),
    ("Ctrl+D", "leave"),
    ("while an answer comes", "type on: Enter sends when it has ended"),
)


def is_command(text: str) -> bool:
    """A slash and a word; not a path like /usr/bin, not a lone slash."""
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    is_one = "\n" not in text or word.lower() in MANY_LINES
    return text.startswith("/") and len(word) > 1 and "/" not in word[1:] and is_one


def parse(text: str) -> tuple[str, str]:
    """`/fork 4 price` -> ("fork", "4 price"), and so `/for 4 price`; UsageError names the nearest
    for an unknown one.
    """
    word, rest = [*text[1:].split(maxsplit=1), ""][:2]
    slash = BY_WORD.get(word.lower()) or _begun(word.lower())
    if slash is None:
        near = nearest(word, tuple(BY_WORD))
        hint = f"did you mean /{near}?" if near else "/help lists them"
        hint = {**HABITS, "dtype": DTYPE}.get(word.lower(), hint)
        raise UsageError(f"unknown command /{word}: {hint}")
    return slash.name, rest.strip()


def _begun(word: str) -> Slash | None:
    """The one command that begins so."""
    if len(word) < LEAST_PREFIX or word in HABITS:
        return None
    names = {slash.name: slash for name, slash in BY_WORD.items() if name.startswith(word)}
    return next(iter(names.values())) if len(names) == 1 else None


def ref(text: str) -> str:
    """A REF as written in a chat: `#4` is turn 4, `~2` two turns back."""
    if text.startswith("#") and text[1:].isdigit():
        return text[1:]
    return f"HEAD{text}" if text.startswith("~") else text


def help_lines() -> list[str]:
    names = [(" ".join([f"/{s.name}", s.args]).strip(), s.help, s.aliases) for s in SLASHES]
    lines = [
        f"{name:<30}{text}" + (f" (also {', '.join('/' + a for a in also)})" if also else "")
        for name, text, also in names
    ]
    return [*lines, "", *(f"{key:<30}{text}" for key, text in KEYS)]
