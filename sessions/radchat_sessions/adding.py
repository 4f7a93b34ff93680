# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""Messages and prompts into the tables; and prompts out that nothing has any more."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from radchat_sessions.content import Json, Part, clean, digest, dumps, pack_ids, searchable
from radchat_sessions.database import Database
from radchat_sessions.errors import Refused
from radchat_sessions.messages import NewMessage, NewPrompt, Role, as_role
from radchat_sessions.picks import Picks


def random_id() -> str:
    return secrets.token_hex(16)


class Adding(Picks):
    """All of it runs inside ``write()``."""

    def __init__(self, db: Database, clock: Callable[[], float], new_id: Callable[[], str]) -> None:
        super().__init__(db, clock)
        self._new_id = new_id

    def _add_messages(
        self, session_id: str, parent: str | None, new: Sequence[NewMessage]
    ) -> tuple[str, ...]:
        ids = []
        for message in new:
            message_id = message.id or self._new_id()
            self._insert(
                session_id,
                message_id,
                parent,
                as_role(message.role),
                message.parts,
                created=self._clock(),
                extra=message.extra,
            )
            ids.append(message_id)
            parent = message_id
        return tuple(ids)

    def _insert(
        self,
        session_id: str,
        message_id: str,
        parent: str | None,
        role: Role,
        parts: Sequence[Part],
        *,
        created: float,
        extra: Mapping[str, Json],
        ids: bytes | None = None,
        answer: Mapping[str, object] | None = None,
    ) -> None:
        cleaned: list[Part] = clean(list(parts))
        above = self._db.one("SELECT digest FROM messages WHERE id = ?", parent)
        values = {
            "id": message_id,
            "parent": parent,
            "origin": session_id,
            "role": role,
            "parts": dumps(cleaned),
            "text": searchable(cleaned),
            "created": created,
            "digest": digest(above and above["digest"], role, cleaned, ids),
            "out": ids,
            "extra": dumps(clean(extra)),
            **(answer or {}),
        }
        marks = ", ".join("?" * len(values))
        self._db.do(
            f"INSERT INTO messages ({', '.join(values)}) VALUES ({marks})", *values.values()
        )

    def _prompt_for(self, last: str, prompt: NewPrompt | str, *, is_retry: bool) -> str:
        if isinstance(prompt, NewPrompt):
            return self._add_prompt(last, prompt)
        if not is_retry or self.prompt(prompt).message != last:
            raise Refused("a prompt can be asked again only where it ends, with nothing new")
        return prompt

    def _add_prompt(self, last: str, prompt: NewPrompt) -> str:
        available = 0
        if prompt.base_message is not None:
            span = self.span(prompt.base_message)
            if span is None or self.out(prompt.base_message) is None:
                raise Refused("the base of a prompt is an answer with ids, or a prompt")
            available = span.stop
        elif prompt.base_prompt is not None:
            available = self.prompt(prompt.base_prompt).length
        if not 0 <= prompt.kept <= available:
            raise Refused(f"a prompt can't keep {prompt.kept} of {available} ids")
        prompt_id = self._new_id()
        length = prompt.kept + len(prompt.tail)
        self._db.do(
            "INSERT INTO prompts (id, message, base_message, base_prompt, kept, tail, length, "
            "tokenizer, settings, points, extra, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            prompt_id,
            last,
            prompt.base_message,
            prompt.base_prompt,
            prompt.kept,
            pack_ids(prompt.tail),
            length,
            prompt.tokenizer,
            prompt.settings,
            dumps(clean(prompt.points)),
            dumps(clean(prompt.extra)),
            self._clock(),
        )
        message: str | None = last
        for start, stop in reversed(prompt.shares):
            if message is None:
                raise Refused(f"{len(prompt.shares)} shares are more than its path has messages")
            if not 0 <= start <= stop <= length:
                raise Refused(f"a share of {start} to {stop} in a prompt of {length} ids")
            self._db.do("INSERT INTO shares VALUES (?, ?, ?, ?)", message, prompt_id, start, stop)
            message = self.parent(message)
        return prompt_id

    def _drop_unused_prompts(self, prompt_id: str | None = None) -> int:
        """Delete prompts that no answer, running answer or later prompt has; all, or this one."""
        deleted = 0
        while True:  # a base may be free once what stood on it is gone
            rows = self._db.do(
                "DELETE FROM prompts WHERE (?1 IS NULL OR id = ?1) "
                "AND NOT EXISTS (SELECT 1 FROM messages WHERE prompt = prompts.id) "
                "AND NOT EXISTS (SELECT 1 FROM running WHERE prompt = prompts.id) "
                "AND NOT EXISTS (SELECT 1 FROM prompts p WHERE p.base_prompt = prompts.id)",
                prompt_id,
            )
            deleted += rows
            if rows == 0 or prompt_id is not None:
                return deleted
