"""Rows of the database as the plain data of messages.py."""

from __future__ import annotations

import json
from typing import Final

from radchat_sessions.content import Json, unpack_ids
from radchat_sessions.database import Row
from radchat_sessions.messages import Branch, Message, Prompt, Running, Session

MESSAGE: Final = """m.id, m.parent, m.role, m.parts, m.created, m.digest, m.origin, m.prompt,
    length(m.out) / 4 AS out_len, m.model, m.dtype, m.sampling, m.seed, m.choice, m.usage,
    m.timing, m.finish_reason, m.stopped, m.holds, m.extra"""


def _loads(text: str | None) -> Json:
    return None if text is None else json.loads(text)


def _seed(text: str | None) -> int | None:
    return None if text is None else int(text)


def session_of(row: Row) -> Session:
    return Session(
        id=row["id"],
        name=row["name"],
        named=bool(row["named"]),
        model=row["model"],
        folder=row["folder"],
        settings=json.loads(row["settings"]),
        clock=row["clock"],
        parent=row["parent"],
        fork_message=row["fork_message"],
        created=row["created"],
        used=row["used"],
    )


def message_of(row: Row) -> Message:
    return Message(
        id=row["id"],
        parent=row["parent"],
        role=row["role"],
        parts=json.loads(row["parts"]),
        created=row["created"],
        digest=row["digest"],
        origin=row["origin"],
        prompt=row["prompt"],
        out_len=row["out_len"],
        model=row["model"],
        dtype=row["dtype"],
        sampling=_loads(row["sampling"]),
        seed=_seed(row["seed"]),
        choice=row["choice"],
        usage=_loads(row["usage"]),
        timing=_loads(row["timing"]),
        finish_reason=row["finish_reason"],
        stopped=bool(row["stopped"]),
        holds=row["holds"],
        extra=json.loads(row["extra"]),
    )


def branch_of(row: Row) -> Branch:
    return Branch(row["session"], row["name"], row["message"], bool(row["is_head"]))


def prompt_of(row: Row) -> Prompt:
    return Prompt(
        id=row["id"],
        message=row["message"],
        base_message=row["base_message"],
        base_prompt=row["base_prompt"],
        kept=row["kept"],
        tail=unpack_ids(row["tail"]),
        length=row["length"],
        tokenizer=row["tokenizer"],
        settings=row["settings"],
        points=json.loads(row["points"]),
        extra=json.loads(row["extra"]),
        created=row["created"],
    )


def running_of(row: Row) -> Running:
    return Running(
        id=row["id"],
        session=row["session"],
        parent=row["parent"],
        prompt=row["prompt"],
        branch=row["branch"],
        expected=row["expected"],
        model=row["model"],
        dtype=row["dtype"],
        sampling=_loads(row["sampling"]),
        seed=_seed(row["seed"]),
        choice=row["choice"],
        started=row["started"],
    )
