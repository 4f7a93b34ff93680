"""The branches that one command made side by side, by number: ``switch 2`` picks the second.

A number means a branch as long as whoever says it stands where the command was given, or at one of
its answers; then it is a turn again. Only the last such command of a session is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radchat_sessions.heads import Heads
from radchat_sessions.messages import Head


class Picks(Heads):
    def number_branches(
        self, session_id: str, made: Sequence[tuple[str, str]], at: str | None
    ) -> None:
        """From now on 1, 2 … are these: each a branch, and the message that its answer follows.

        ``at``: where whoever asked for them stands.
        """
        with self._db.write():
            self._db.do("DELETE FROM picks WHERE session = ?", session_id)
            for number, (branch, asked) in enumerate(made, 1):
                self._db.do(
                    "INSERT INTO picks VALUES (?, ?, ?, ?, ?)",
                    *(session_id, number, branch, asked, at),
                )

    def numbered_branches(self, session_id: str, head: Head | None = None) -> Mapping[int, str]:
        """What numbers mean to one who stands at ``head``; empty where they mean turns."""
        here = (head or self.head(session_id)).message
        above = self._db.one("SELECT parent FROM messages WHERE id = ?", here)
        places = {here} if above is None else {here, above["parent"]}
        rows = self._db.all("SELECT * FROM picks WHERE session = ?", session_id)
        if not any(row["at"] == here or row["asked"] in places for row in rows):
            return {}
        return {row["number"]: row["branch"] for row in rows}
