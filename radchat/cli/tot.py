"""`/tot` in a chat: a search from where it stands, whose answer is the chat's next turn."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radchat.chat.files import files_of
from radchat.chat.generating import generate
from radchat.cli.searching import (
    FREE,
    Asked,
    check_answer,
    of_thoughts,
    search_view,
    searching,
    show_answer,
    with_files,
)
from radchat.errors import RadchatError, UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

USAGE = "/tot [--budget N] [-k N] [-d N] [-b N] [--task NAME] PROBLEM, or /tot resume [s1]"
NUMBERS = {
    "-k": "branch",
    "-d": "depth",
    "-b": "beam",
    "--n-eval": "n_eval",
    "--budget": "budget",
    "--thought-tokens": "thought_tokens",
    "--stop-score": "stop_score",
    "--branch": "branch",
    "--depth": "depth",
    "--beam": "beam",
}
_SEARCH = re.compile(r"(s[1-9]\d*)?")
WORDS = {f"--{name}": name for name in ("method", "generate", "evaluate", "select", "task")}


def parse(rest: str) -> Asked:
    """The flags of `radchat think` that begin it, then the problem; or `resume`."""
    settings: dict[str, Any] = {}
    first, _, more = rest.partition(" ")
    is_resumed = first in ("resume", "--resume")
    left = more if is_resumed else rest
    while left.startswith("-"):
        name, value, left = [*left.split(maxsplit=2), "", ""][:3]
        if name in NUMBERS:
            settings[NUMBERS[name]] = _number(name, value)
        elif name in WORDS and value:
            settings[WORDS[name]] = value
        else:
            raise UsageError(f"{name}: {USAGE}")
    left = left.strip()
    if is_resumed:
        if "task" in settings or not _SEARCH.fullmatch(left):
            raise UsageError(USAGE)
        return Asked(resume=left or True, settings=settings)
    if not left:
        raise UsageError(USAGE)
    return Asked(left, settings.pop("task", FREE), settings)


def _number(name: str, value: str) -> float | int:
    try:
        return float(value) if name == "--stop-score" else int(value)
    except ValueError:
        raise UsageError(f"{name} wants a number (got {value!r}): {USAGE}") from None


def tot(chat: Chat, rest: str) -> None:
    asked, host = parse(rest), chat.host
    check_answer(chat.arguments.get("options") or {})
    client = chat.settled()
    if asked.problem is not None:
        asked = replace(asked, problem=_with_files(chat, asked.problem))
    place = _place(chat, asked)
    with searching(lambda: client, asked, place, search_view(host), host.status) as search:
        try:
            outcome = search.run()
        except KeyboardInterrupt:
            chat.hold()
            host.note(search.stopped("/tot resume"))
            return
        except RadchatError:
            if search.view.num_thoughts:
                host.note(search.stopped("/tot resume"))
            raise
        finally:
            if search.view.num_thoughts:  # something was said in it
                chat.made.discard(str(chat.session.get("id")))
                chat.has_talked = True
        _forget_files(chat)
        if outcome.answered is not None:
            show_answer(host, search, outcome.answered, renders=chat.renders)
            return
        moved = search.advance(outcome, chat.head)
        if moved is not None:
            chat.head, chat.at = {"branch": moved["branch"], "message": moved["head"]}, None
        options = chat.arguments.get("options") or {}
        generate(chat, typed="/tot resume", **search.turn(outcome, options))


def _place(chat: Chat, given: Asked) -> dict[str, Any]:
    """The arguments of ``search.open``."""
    asked = {**chat.host.here(), "session": chat.session.get("id"), "head": chat.head}
    asked["ephemeral"] = chat.is_ephemeral
    if given.problem is None:
        return {**asked, "resume": given.resume}
    _require_system(chat)
    keys = ("model", "dtype", "exact", "think")
    asked |= {key: chat.arguments[key] for key in keys if chat.arguments.get(key)}
    asked["options"] = of_thoughts(chat.arguments.get("options") or {})
    return asked | ({"at": chat.at} if chat.at is not None else {})


def _require_system(chat: Chat) -> None:
    """A system prompt that was set goes with a message of the chat's own."""
    wanted = chat.arguments.get("system")
    if wanted is None:
        return
    messages = chat.call("log")["messages"] if chat.session.get("messages") else []
    if not any(m["role"] == "system" and m["text"] == wanted for m in messages):
        raise UsageError("the system prompt begins with a message: say one, then /tot")


def _with_files(chat: Chat, problem: str) -> str:
    given = [*chat.arguments.get("files", ()), *chat.files, *files_of([problem])]
    return with_files(problem, given)


def _forget_files(chat: Chat) -> None:
    """They went with the problem."""
    chat.files = []
    chat.arguments.pop("files", None)
