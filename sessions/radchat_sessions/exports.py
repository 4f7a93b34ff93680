"""Sessions out of the store, whole or a path: every message with its ids, names, labels.

A document is a header and a list of message records; a record of a message that was answered holds
the prompts that end at it (docs: README.md, "Documents").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from radchat_sessions.content import Json
from radchat_sessions.names import free_name
from radchat_sessions.removal import Removal

FORMAT: Final = "radchat-session"
VERSION: Final = 1
PLAIN = ("id", "parent", "role", "created", "digest")
ANSWER = ("prompt", "model", "dtype", "choice", "finish_reason", "stopped", "holds")
ANSWER_JSON = ("sampling", "usage", "timing")


class Exports(Removal):
    def export(self, session_id: str, at: str | None = None) -> dict[str, Json]:
        """The session as a document; ``at``: only the path to this message."""
        session = self.session(session_id)
        shown = self.message_ids(session_id) if at is None else list(reversed(self._up(at)))
        inside = set(shown)
        place = {message: number for number, message in enumerate(shown)}
        branches = {b.name: b.message for b in self.branches(session_id)}
        head = self.head(session_id)
        branch, message = head.branch, None if head.branch else head.message
        if at is not None:
            branches = {name: end for name, end in branches.items() if end in inside}
            ends = [name for name, end in branches.items() if end == at]
            branch = head.branch if head.branch in ends else next(iter(ends), None)
            branch = branch or free_name(head.last_branch, branches)
            branches[branch], message = at, None
        return {
            "format": FORMAT,
            "version": VERSION,
            "session": {
                "id": session.id,
                "name": session.name,
                "named": session.named,
                "model": session.model,
                "folder": session.folder,
                "settings": dict(session.settings),
                "clock": session.clock,
                "created": session.created,
                "used": session.used,
            },
            "head": {"branch": branch, "message": message},
            "branches": branches,
            "labels": [
                {"message": label.message, "kind": label.kind, "value": label.value}
                for label in sorted(
                    (
                        label
                        for label in self.labels(session_id)
                        if label.message in inside and label.kind != "pin"  # of this cache
                    ),
                    key=lambda label: (place[label.message], label.kind, label.value),
                )
            ],
            "messages": self._records(shown, inside),
        }

    def _records(self, shown: Sequence[str], inside: set[str]) -> list[dict[str, Json]]:
        prompts = self._prompt_records(shown, inside)
        records = []
        for message_id in shown:
            row = self._db.one("SELECT * FROM messages WHERE id = ?", message_id)
            assert row is not None
            record = {name: row[name] for name in PLAIN}
            record["parts"] = json.loads(row["parts"])
            extra = _extra(json.loads(row["extra"]), inside)
            if extra:
                record["extra"] = extra
            told = {name: row[name] for name in ANSWER if row[name]}
            told |= {name: json.loads(row[name]) for name in ANSWER_JSON if row[name]}
            if row["seed"] is not None:
                told["seed"] = int(row["seed"])
            if row["choice"] is not None:
                told["choice"] = row["choice"]
            if row["stopped"]:
                told["stopped"] = True
            if row["out"] is not None:
                told["out"] = list(self.out(message_id) or ())
            record |= told
            if message_id in prompts:
                record["prompts"] = prompts[message_id]
            records.append(record)
        return records

    def _prompt_records(
        self, shown: Sequence[str], inside: set[str]
    ) -> dict[str, list[dict[str, Json]]]:
        """By the message they end at: those that answers here have, and what they stand on."""
        wanted: dict[str, dict[str, Json]] = {}
        queue = [
            row["prompt"]
            for message_id in shown
            for row in self._db.all(
                "SELECT prompt FROM messages WHERE id = ? AND prompt IS NOT NULL", message_id
            )
        ]
        while queue:
            prompt_id = queue.pop()
            if prompt_id in wanted:
                continue
            prompt = self.prompt(prompt_id)
            base_message, base_prompt = prompt.base_message, prompt.base_prompt
            kept, tail = prompt.kept, prompt.tail
            if base_prompt is not None and self.prompt(base_prompt).message not in inside:
                base_prompt = None
            if base_message not in inside:
                base_message = None
            if kept and base_message is None and base_prompt is None:  # it stood on what stays here
                kept, tail = 0, self.prompt_ids(prompt_id)
            queue += [] if base_prompt is None else [base_prompt]
            wanted[prompt_id] = {
                "id": prompt_id,
                "message": prompt.message,
                "base_message": base_message,
                "base_prompt": base_prompt,
                "kept": kept,
                "tail": list(tail),
                "tokenizer": prompt.tokenizer,
                "settings": prompt.settings,
                "points": prompt.points,
                "extra": dict(prompt.extra),
                "created": prompt.created,
                "shares": [
                    [row["message"], row["start"], row["stop"]]
                    for row in self._db.all(
                        "SELECT * FROM shares WHERE prompt = ? ORDER BY start, message", prompt_id
                    )
                    if row["message"] in inside
                ],
            }
        order = {
            row["id"]: number
            for number, row in enumerate(self._db.all("SELECT id FROM prompts ORDER BY seq"))
        }
        found: dict[str, list[dict[str, Json]]] = {}
        for number, prompt_id in enumerate(sorted(wanted, key=order.__getitem__)):
            record = {**wanted[prompt_id], "order": number}
            found.setdefault(record.pop("message"), []).append(record)
        return found


def _extra(extra: dict[str, Json], inside: set[str]) -> dict[str, Json]:
    """Without the place that a compaction led away from, where that stays here."""
    came = extra.get("compacted")
    if came is None or came["message"] in inside:
        return extra
    return {name: value for name, value in extra.items() if name != "compacted"}
