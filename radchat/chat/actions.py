"""What each slash command does. Each takes the chat and the words after its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from radchat.chat import (
    cache_actions,
    commands,
    compare_actions,
    context_view,
    limits,
    prompt_actions,
    take_out,
    what_if,
)
from radchat.chat.files import load
from radchat.chat.footer import count, place, size
from radchat.chat.keyboard import as_found
from radchat.chat.options import DTYPE, parse_option
from radchat.chat.sessions_view import LISTED, listing
from radchat.chat.status_view import device_rows
from radchat.chat.text import clean, one_line
from radchat.chat.transcript import branches_listing, transcript
from radchat.chat.tree_view import render
from radchat.chat.view import end_of
from radchat.config import DTYPES
from radchat.errors import InvalidInput, NotFound, UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

Action = Callable[["Chat", str], None]


def shell(command: str) -> None:
    """`!command`: the user's own, with the user's shell and terminal."""
    sys.stdout.flush()
    with as_found():
        code = subprocess.run(command, shell=True, check=False).returncode  # noqa: S602 - asked for
    if code:
        print(f"(ended with {code})", file=sys.stderr)


def _help(chat: Chat, rest: str) -> None:  # noqa: ARG001
    for line in commands.help_lines():
        chat.host.out(line)


def _bye(chat: Chat, rest: str) -> None:  # noqa: ARG001
    chat.is_over = True


def _new(chat: Chat, rest: str) -> None:
    client = chat.ready()
    place_ = chat.host.here()["where"]
    opened = client.call(
        "sessions.open",
        where=place_,
        session=None,
        new=True,
        name=rest or None,
        ephemeral=chat.is_ephemeral,
        model=chat.arguments.get("model"),
    )
    chat.enter(opened, made=True)
    chat.host.note(f"new session {one_line(str(opened.get('name') or opened['id']))}")


def _model(chat: Chat, rest: str) -> None:
    client = chat.ready()
    if not rest:
        model = chat.arguments.get("model") or chat.session.get("model") or "not chosen yet"
        chat.host.out(one_line(str(model)))
        return
    from radchat.models.pull import ensure
    from radchat.models.stores import is_ref

    if rest.partition(" ")[2] in DTYPES:
        raise UsageError(DTYPE)
    dtype = {k: chat.arguments[k] for k in ("dtype", "exact") if chat.arguments.get(k)}
    if is_ref(rest):  # what another program has is converted here, once
        host = chat.host
        try:
            found = ensure(host.places, rest, lambda step: host.status(step.text), note=host.note)
        finally:
            host.status("")
        rest = found.name
    stream = client.stream("models.load", model=rest, **dtype)
    done = end_of(stream, chat.host.note, chat.host.status)
    chat.arguments["model"] = done.get("model") or rest
    chat.loaded = done
    chat.host.note(f"model {one_line(str(chat.arguments['model']))}")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.arguments["system"] = rest
        chat.host.note("the system prompt changes with the next message")
        return
    said = chat.arguments.get("system")
    if said is None:
        said = next(
            (m["text"] for m in chat.call("log")["messages"] if m["role"] == "system"), None
        )
    chat.host.out("no system prompt" if said is None else clean(str(said)))


def _set(chat: Chat, rest: str) -> None:
    options = chat.arguments.setdefault("options", {})
    words = rest.removeprefix("parameter ").strip()  # as ollama has it
    if not words:
        for key, value in options.items():
            chat.host.out(f"{key} = {one_line(str(value))}")
        if not options:
            chat.host.out("nothing set: the model's own settings are in force")
        return
    key, value = parse_option(words if "=" in words else words.replace(" ", "=", 1))
    options[key] = [value] if key == "stop" else value
    chat.host.note(f"{key} = {one_line(str(value))}")


def _show(chat: Chat, rest: str) -> None:  # noqa: ARG001
    chat.ready()
    session, head = chat.session, chat.head or {}
    lines = {
        "session": session.get("name") or session.get("id"),
        "kept": "nothing of this session is on disk" if chat.is_ephemeral else None,
        "at": place(head.get("branch"), head.get("message")),
        "model": chat.arguments.get("model") or session.get("model"),
        "system": chat.arguments.get("system"),
        "think": chat.arguments.get("think"),
        **(chat.arguments.get("options") or {}),
    }
    for key, value in lines.items():
        if value is not None:
            chat.host.out(f"{key:<12}{one_line(str(value))}")


def _file(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("/file wants a path")
    file = load(rest)
    chat.files.append(file)
    letters = len(file["text"])
    chat.host.note(f"{one_line(file['name'])}, {count(letters)} characters: with the next message")


def _retry(chat: Chat, rest: str) -> None:
    number = rest.removeprefix("-N").strip() or "1" * (not rest)
    if not (number.isdigit() and int(number) > 0):
        raise UsageError("/retry [K]: how many answers")
    chat.answer(kind="retry", n=int(number))


def _edit(chat: Chat, rest: str) -> None:
    ref, _, text = rest.partition(" ")
    log = chat.call("log", ref=commands.ref(ref)) if ref else chat.call("log")
    turns = [m for m in log["messages"] if m["role"] == "user"]
    if not turns:
        raise InvalidInput("no turn of yours to edit here")
    own = log["session"] == chat.session.get("id")
    turn = str(turns[-1]["id"]) if own else f"{log['session']}:{turns[-1]['id']}"
    if text.strip():
        chat.answer(kind="edit", ref=turn, text=text.strip())
        return
    chat.default, chat.editing = str(turns[-1]["text"]), turn
    chat.editing_turn = int(turns[-1].get("turn") or len(turns))
    chat.host.note("change it and press Enter; Ctrl+C leaves it as it is")


def _continue(chat: Chat, rest: str) -> None:  # noqa: ARG001
    chat.answer(kind="continue")


def _undo(chat: Chat, rest: str) -> None:
    if rest and not (rest.isdigit() and int(rest) > 0):
        raise UsageError("/undo [N]: how many turns")
    chat.moved(chat.call("undo", n=int(rest or 1)))


def _redo(chat: Chat, rest: str) -> None:  # noqa: ARG001
    chat.moved(chat.call("redo"))


def _fork(chat: Chat, rest: str) -> None:
    ref, _, name = rest.partition(" ")
    chat.moved(chat.call("fork", ref=commands.ref(ref) if ref else None, name=name.strip() or None))


def _branches(chat: Chat, rest: str) -> None:  # noqa: ARG001
    for line in branches_listing(chat.call("branch.list")["branches"], chat.host.columns):
        chat.host.out(line)


def _switch(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("/switch wants a REF, or - for the branch before")
    try:
        chat.moved(chat.call("switch", ref=commands.ref(rest)))
    except NotFound as error:
        try:
            where = chat.host.here()["where"]
            chat.ready().call("sessions.show", where=where, session=rest)
        except NotFound:
            raise error from None
        raise NotFound(f"{rest} is a session: /sessions {rest}") from error


def _tree(chat: Chat, rest: str) -> None:
    if not rest and chat.host.shows_screens:
        from radchat.chat.picker import pick

        pick(chat)
        return
    cache = rest.lstrip("-") in ("cache", "show-cache", "lru")
    result = chat.call("tree", show_cache=cache, lru=cache)
    for line in render(result, columns=chat.host.columns, cache=cache, paint=chat.host.paint):
        chat.host.out(line)


def _log(chat: Chat, rest: str) -> None:  # noqa: ARG001
    messages = chat.call("log")["messages"]
    columns = chat.host.columns if chat.renders else None
    for line in transcript(messages, markdown=False, columns=columns, paint=chat.host.paint):
        chat.host.out(line)


def _context(chat: Chat, rest: str) -> None:  # noqa: ARG001
    while not chat.loaded and not chat.opening.is_loaded(0.1):
        chat.host.status(chat.opening.text)
    chat.host.status("")
    given = {k: v for k, v in chat.arguments.items() if k in ("model", "think", "options") and v}
    for line in context_view.lines(chat.call("context", **given), chat.host.columns):
        chat.host.out(line)


def _sessions(chat: Chat, rest: str) -> None:
    if rest:
        client = chat.ready()
        place_ = chat.host.here()["where"]
        opened = client.call("sessions.open", where=place_, session=rest, new=False)
        chat.enter(opened)
        chat.tell(chat.where_lines(opened))
        return
    result = chat.call("sessions.list", begun=True, limit=LISTED)
    for line in listing(result["sessions"], chat.host.columns):
        chat.host.out(line)
    if more := result["total"] - len(result["sessions"]):
        chat.host.note(f"{count(more)} more: radchat sessions ls --all")


def _rename(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("/rename wants a name")
    result = chat.call("sessions.rename", name=rest)
    chat.session["name"] = result.get("name") or rest
    chat.host.note(f"renamed to {one_line(str(chat.session['name']))}")


def _status(chat: Chat, rest: str) -> None:  # noqa: ARG001
    status = chat.ready().call("status")
    rows = [(key, status.get(key)) for key in ("state", "pid", "model", "running", "waiting")]
    rows[3:3] = device_rows(status)
    for name, value in rows:
        if value is not None:
            chat.host.out(f"{name:<10}{one_line(str(value))}")
    for tier, name in (("device", "kv"), ("disk", "on disk")):
        kv = (status.get("kv") or {}).get(tier) or {}
        if kv.get("bytes") is not None:
            chat.host.out(f"{name:<10}{size(kv['bytes'])} of {size(kv['budget_bytes'])}")


def _of_an_agent(chat: Chat, rest: str) -> None:  # noqa: ARG001
    raise UsageError("this is a chat without tools: radchat agent -c goes on with them")


ACTIONS: dict[str, Action] = {
    **dict.fromkeys(("tools", "permissions", "mcp"), _of_an_agent),
    "help": _help,
    "bye": _bye,
    "new": _new,
    "model": _model,
    "system": _system,
    "set": _set,
    "show": _show,
    "file": _file,
    "multiline": prompt_actions.multiline,
    "editor": prompt_actions.editor,
    "retry": _retry,
    "what-if": what_if.what_if,
    "edit": _edit,
    "continue": _continue,
    "undo": _undo,
    "redo": _redo,
    "fork": _fork,
    "branches": _branches,
    "switch": _switch,
    "tree": _tree,
    "log": _log,
    "compare": compare_actions.compare,
    "diff": compare_actions.diff,
    "think": prompt_actions.think,
    "cache": cache_actions.cache,
    "why": cache_actions.why,
    "pin": cache_actions.pin,
    "context": _context,
    "compact": limits.compact,
    "sessions": _sessions,
    "rename": _rename,
    "export": take_out.export,
    "copy": take_out.copy,
    "status": _status,
}
