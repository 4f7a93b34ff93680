"""An answer asked for in a chat: from where it stands, with all that was set in it, and shown; the
chat then stands at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from radchat.chat.files import files_of
from radchat.chat.footer import where
from radchat.chat.many import many_view
from radchat.chat.turn import may_pass, run_turn
from radchat.chat.view import View, is_many
from radchat.errors import RadchatError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat


def generate(chat: Chat, *, typed: str = "", view: View | None = None, **args: Any) -> None:
    """One turn, from where this chat stands; its HEAD follows, also where it ends in an error:
    what came so far is kept by the daemon, or found again by the next one. ``typed``: what is
    offered again where nothing was begun, if it is not the turn's text. ``view``: of what is no
    turn.
    """
    view, was = view or _view(chat, args), chat.head
    try:
        client = chat.settled()
        payload = _payload(chat, args)
        chat.host.status("waiting")
        _, cancelled = run_turn(client, payload, view)
    except (RadchatError, KeyboardInterrupt) as error:
        view.finish()
        if not chat.follow(view.answer) and may_pass(error):
            _offer(chat, args, typed)
        raise
    chat.host.status("")
    is_begun = chat.follow(view.answer)
    if cancelled:
        chat.prompt.hold()
        if not is_begun:
            _offer(chat, args, typed)
        chat.host.note(view.cancelled())
    if is_begun and args["kind"] in ("retry", "edit"):
        chat.host.note(where(view.answer.done or {**chat.session, "head": chat.head}, was))


def _payload(chat: Chat, args: Mapping[str, Any]) -> dict[str, Any]:
    payload = {
        **chat.host.here(),
        "options": {},
        "n": 1,
        **chat.arguments,
        **args,
        "session": chat.session.get("id"),
        "head": chat.head,
        "ephemeral": chat.is_ephemeral,
    }
    payload.pop("files", None)
    if args["kind"] in ("turn", "edit", "what-if"):
        named = files_of(args.get("texts") or [str(args.get("text") or "")])
        payload["files"] = [*chat.arguments.get("files", ()), *chat.files, *named]
    if chat.at is not None and args["kind"] in ("turn", "what-if"):
        payload.setdefault("at", chat.at)
    return payload


def how_shown(chat: Chat) -> dict[str, Any]:
    """What a view is made of."""
    host = chat.host
    return {
        "out": sys.stdout,
        "err": sys.stderr,
        "note": host.note,
        "status": host.status,
        "shows_reasoning": not (host.quiet or chat.hides_thoughts),
        "shows_footer": not host.quiet,
        "paints": host.paints(sys.stderr),
        "columns": host.error_columns,
        "renders": chat.renders,
        "continues": "/continue",
        "at_end": chat.prompt.take,
        "standing": chat.standing,
    }


def _view(chat: Chat, args: Mapping[str, Any]) -> View:
    if is_many(args):
        return many_view(args, chat.host, chat.ready, how_shown(chat), command="/")
    return View(**how_shown(chat))


def _offer(chat: Chat, args: Mapping[str, Any], typed: str) -> None:
    """The words again, of a turn that was not begun; an edit is still one."""
    chat.default = typed or str(args.get("text") or "")
    chat.editing = args.get("ref") if args["kind"] == "edit" else None
