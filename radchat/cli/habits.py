"""First words that people bring from ollama, git, llm and other chats, and what to type here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from radchat.errors import UsageError

# a word, and the commands it may mean; what followed it stands in the place of {}
HABITS: dict[str, tuple[str, ...]] = {
    "list": ("sessions ls", "models ls"),
    "ls": ("sessions ls", "models ls"),
    "show": ("sessions show {}", "models show {}"),
    "rm": ("sessions rm {}", "models rm {}"),
    "rename": ("sessions rename {}",),
    "resume": ("chat -r {}",),
    "new": ("chat --new-session {}",),
    "history": ("log",),
    "logs": ("log", "daemon logs"),
    "status": ("daemon status",),
    "start": ("daemon start",),
    "restart": ("daemon restart",),
    "load": ("models load {}",),
    "stats": ("cache stats",),
    "evict": ("cache evict {}",),
    "clear": ("cache clear",),
    "reset": ("undo {}",),
    "rewind": ("undo {}",),
    "why": ("cache why {}",),
    "pin": ("cache pin {}",),
    "unpin": ("cache unpin {}",),
}
QUESTIONS = frozenset(("what",))  # begin one, near as they are to a command
SENTENCE_WORDS = 4  # `list three odd animals` is for the model; `list it all` may be either


def refuse(words: Sequence[str]) -> None:
    """Raise UsageError, with what to type, where the first word is a command elsewhere."""
    first, rest = words[0], list(words[1:])
    if first not in HABITS or _is_sentence(words):
        return
    given = shlex.join(rest)
    meant = [f"`radchat {form.format(given).rstrip()}`" for form in HABITS[first]]
    raise UsageError(f"no command {first!r} here: type {' or '.join(meant)}. {to_say(words)}")


def to_say(words: Sequence[str]) -> str:
    said = " ".join(words)
    if any(c in said for c in '"$`\\!'):  # what a shell reads between double quotes
        return f"To say it to the model: radchat chat {shlex.quote(said)}"
    return f'To say it to the model: radchat chat "{said}"'


def _is_sentence(words: Sequence[str]) -> bool:
    spaced = any(any(c.isspace() for c in word) for word in words)
    return spaced or len(words) >= SENTENCE_WORDS or words[-1].endswith((".", "?", "!"))
