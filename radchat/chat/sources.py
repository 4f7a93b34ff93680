"""Where the menu of a chat has its words from: the daemon this chat talks to, files, models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from radchat.chat.known import Candidate, Source, files

if TYPE_CHECKING:
    from radchat.chat.repl import Chat

PATIENCE_S = 1.0  # nobody waits for it: a later key finds what has come


def sources(chat: Chat) -> Mapping[str, Source]:
    """Asked from a thread; before the session is open nobody can say."""

    def ask(method: str, **args: Any) -> dict[str, Any] | None:
        client = chat.opening.client
        if client is None or not chat.session:
            return None
        where = chat.host.here()["where"]
        return client.glance(method, PATIENCE_S, where=where, **args)

    def refs(beginning: str) -> Iterable[Candidate] | None:
        """Branches, labels, turns, each with its words; ``beginning``: ``SESSION:``."""
        session = chat.session.get("id")
        told = ask("refs", session=session, prefix=beginning, head=chat.head)
        if told is None:
            return None
        return [Candidate(row["ref"], row["text"]) for row in told["refs"]]

    def sessions(_beginning: str) -> Iterable[Candidate] | None:
        from radchat.chat.sessions_view import day_of, messages

        told = ask("sessions.list", begun=True)
        if told is None:
            return None
        return [
            Candidate(
                str(row["name"] or row["id"][:8]),
                f"{day_of(row['used'])}, {messages(row['messages'])}",
            )
            for row in told["sessions"]
        ]

    def models(_beginning: str) -> Iterable[Candidate]:
        from radchat.chat.footer import size
        from radchat.models.registry import list_models

        found = list_models(chat.host.places)
        return [Candidate(each.name, each.problem or size(each.bytes)) for each in found]

    return {"files": files, "refs": refs, "sessions": sessions, "models": models}
