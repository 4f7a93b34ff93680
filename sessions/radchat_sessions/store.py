# ruff: noqa: S608 - what is put together are our own constants; every value is a parameter
"""The session store: every conversation a tree of messages, with the ids the engine saw.

One class in four files, each adding to the one before: ``reader`` (questions), ``heads`` (branches,
HEAD, labels), ``turns`` (answers) and here: opening, sessions as a whole, removal.

A store belongs to the thread that opened it, and to one process: the daemon (ADR 0002). Every
method that writes is one transaction; after an exception nothing of it is there. Its errors are
those of ``radchat_sessions.errors``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

from radchat_sessions.database import Database, Synchronous
from radchat_sessions.errors import Refused
from radchat_sessions.heads import check_name
from radchat_sessions.messages import Json, Recovered, Removed, Session, clean, dumps, pack_ids
from radchat_sessions.names import free_name, made_up_name
from radchat_sessions.reader import KEPT, SHOWN, SHOWN_BY_OTHERS
from radchat_sessions.running import AppendFile, OpenFile, RunningFiles
from radchat_sessions.schema import backups
from radchat_sessions.turns import Turns, random_id
from radchat_sessions.verify import Problem, verify

IN_MEMORY: Literal[":memory:"] = ":memory:"


class Store(Turns):
    recovered: list[Recovered]  # what the last process left unfinished; told once

    @classmethod
    def open(
        cls,
        path: Path | Literal[":memory:"],
        *,
        running_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = random_id,
        open_file: OpenFile = AppendFile,
        synchronous: Synchronous = "FULL",
    ) -> Self:
        """Open or make the database, migrate it, recover what was running.

        ``":memory:"`` and ``running_dir`` None for an ephemeral chat: nothing touches a disk.
        ``clock`` gives seconds; ids and files come from arguments so that tests choose them.
        Raises TooNew, Broken, SaveFailed.
        """
        db = Database(None if path == IN_MEMORY else Path(path), synchronous=synchronous)
        store = cls(db, clock, RunningFiles(running_dir, clock, open_file), new_id)
        try:
            store.recovered = store.recover()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Running answers stay on disk and are recovered at the next open."""
        self._files.close()
        self._db.close()

    @property
    def recreated(self) -> int:
        """How often the database was deleted under the store and put back (PS-07)."""
        return self._db.recreated

    # -- sessions ----------------------------------------------------------------------------------

    def create_session(
        self,
        *,
        name: str | None = None,
        model: str | None = None,
        folder: str | None = None,
        settings: Mapping[str, Json] | None = None,
        clock: str,
        fork_of: tuple[str, str | None] | None = None,
    ) -> Session:
        """A session with one branch, ``main``, and HEAD on it.

        ``clock`` is the date its templates will always see. ``fork_of`` = (session, message): its
        ``main`` begins at that message, which both then share. Raises Refused for a name that is
        taken or can't be one.
        """
        session_id = self._new_id()
        with self._db.write():
            if name is None:
                chosen = self._free_session_name(made_up_name(session_id))
            else:
                chosen = check_name(name, "session")
                self._refuse_taken(chosen)
            parent, at = fork_of or (None, None)
            if parent is not None:
                self._require(parent, at)
            now = self._clock()
            self._db.do(
                "INSERT INTO sessions (id, name, named, head_branch, model, folder, settings, "
                "clock, parent, fork_message, created, used) "
                "VALUES (?, ?, ?, 'main', ?, ?, ?, ?, ?, ?, ?, ?)",
                session_id,
                chosen,
                int(name is not None),
                model,
                clean(folder),
                dumps(clean(settings or {})),
                clock,
                parent,
                at,
                now,
                now,
            )
            self._new_branch(session_id, "main", at)
        return self.session(session_id)

    def rename(self, session_id: str, name: str) -> Session:
        """By a person. Raises Refused."""
        self.session(session_id)
        check_name(name, "session")
        with self._db.write():
            self._refuse_taken(name, but=session_id)
            self._db.do("UPDATE sessions SET name = ?, named = 1 WHERE id = ?", name, session_id)
        return self.session(session_id)

    def suggest_name(self, session_id: str, name: str) -> Session:
        """``auto_name`` of the first message, made unique; replaces a made-up name and no other."""
        if not name or self.session(session_id).named:
            return self.session(session_id)
        check_name(name, "session")
        with self._db.write():
            self._db.do(
                "UPDATE sessions SET name = ? WHERE id = ?",
                self._free_session_name(name, but=session_id),
                session_id,
            )
        return self.session(session_id)

    def set_settings(
        self, session_id: str, settings: Mapping[str, Json], *, model: str | None = None
    ) -> Session:
        """Replace all settings; ``model`` None leaves it."""
        self.session(session_id)
        with self._db.write():
            self._db.do(
                "UPDATE sessions SET settings = ?, model = coalesce(?, model) WHERE id = ?",
                dumps(clean(settings)),
                model,
                session_id,
            )
        return self.session(session_id)

    def use(
        self,
        session_id: str,
        *,
        terminal: str | None = None,
        folder: str | None = None,
        only_terminal: bool = False,
    ) -> None:
        """Make it current: for this terminal, this folder and at all; a one-shot ``ask``'s only
        for its terminal.
        """
        self.session(session_id)
        places = [("terminal", terminal)]
        if not only_terminal:
            places += [("folder", folder), ("any", "")]
        with self._db.write():
            for place, name in places:
                if name is not None:
                    self._db.do(
                        "INSERT OR REPLACE INTO uses (place, name, session) VALUES (?, ?, ?)",
                        place,
                        clean(name),
                        session_id,
                    )
            self._touch(session_id)

    # -- removal -----------------------------------------------------------------------------------

    def remove(self, session_id: str, *, dry_run: bool = False) -> Removed:
        """The session, its names, and all its messages that no other session shows.

        Their words are overwritten, also in the text index, the log and backups. ``dry_run`` tells
        what would go, so that the caller can first ask for the ids whose KV goes with it.
        """
        self.session(session_id)
        if self.running(session_id):
            raise Refused("an answer is running in this session: cancel it first")
        shown = self.message_ids(session_id)
        others = self._set(f"{SHOWN_BY_OTHERS} SELECT DISTINCT id FROM reach", session_id)
        doomed = [m for m in shown if m not in others]
        shared = [m for m in shown if m in others]
        if dry_run:
            return Removed(session_id, tuple(doomed), 0, len(shared))
        with self._db.write():
            self._db.do("DELETE FROM sessions WHERE id = ?", session_id)
            prompts = self._delete_messages(doomed)
            self._hand_over(shared)
        self._overwrite()
        return Removed(session_id, tuple(doomed), prompts, len(shared))

    def prune(self, session_id: str, *, dry_run: bool = False) -> Removed:
        """Delete the session's messages that no branch, label, HEAD or running answer reaches.

        Those written here that another session still shows stay, and are then its own.
        """
        self.session(session_id)
        shown = self.message_ids(session_id)
        kept = self._set(f"{KEPT} SELECT id FROM reach", session_id)
        others = self._set(f"{SHOWN_BY_OTHERS} SELECT DISTINCT id FROM reach", session_id)
        unnamed = [m for m in shown if m not in kept]
        doomed = [m for m in unnamed if m not in others]
        shared = [m for m in unnamed if m in others]
        if dry_run or not unnamed:
            return Removed(session_id, tuple(doomed), 0, len(shared))
        with self._db.write():
            prompts = self._delete_messages(doomed)
            self._hand_over(shared, away_from=session_id)
        self._overwrite()
        return Removed(session_id, tuple(doomed), prompts, len(shared))

    def _set(self, sql: str, session_id: str) -> set[str]:
        return {row["id"] for row in self._db.all(sql, session_id)}

    def _delete_messages(self, doomed: Iterable[str]) -> int:
        """Messages, their prompts and marks; the number of prompts. What stays keeps its ids."""
        self._db.do("PRAGMA defer_foreign_keys = ON")  # children and parents in any order
        doomed = list(doomed)
        going = set(doomed)
        for message_id in doomed:
            self._detach_prompts(message_id, going)
        before = self._count_prompts()
        for message_id in reversed(doomed):
            self._db.do("DELETE FROM messages WHERE id = ?", message_id)
        self._drop_unused_prompts()
        self._db.do("INSERT INTO message_text (message_text) VALUES ('optimize')")
        return before - self._count_prompts()

    def _detach_prompts(self, message_id: str, going: set[str]) -> None:
        """Prompts of messages that stay may stand on ids that go: give them those ids."""
        rows = self._db.all(
            "SELECT p.id, p.message FROM prompts p WHERE p.base_message = ?1 "
            "OR p.base_prompt IN (SELECT id FROM prompts WHERE message = ?1)",
            message_id,
        )
        for row in (row for row in rows if row["message"] not in going):
            self._db.do(
                "UPDATE prompts SET base_message = NULL, base_prompt = NULL, kept = 0, tail = ? "
                "WHERE id = ?",
                pack_ids(self.prompt_ids(row["id"])),
                row["id"],
            )

    def _count_prompts(self) -> int:
        row = self._db.one("SELECT count(*) AS n FROM prompts")
        return 0 if row is None else int(row["n"])

    def _hand_over(self, shared: Iterable[str], away_from: str | None = None) -> None:
        """Messages whose session forgets them belong to one that shows them."""
        wanted = set(shared)
        if not wanted:
            return
        for row in self._db.all(
            "SELECT id FROM sessions WHERE id IS NOT ? ORDER BY seq", away_from
        ):
            shown = self._set(f"{SHOWN} SELECT id FROM reach", row["id"])
            for message_id in wanted & shown:
                self._db.do(
                    "UPDATE messages SET origin = ?1 WHERE id = ?2 "
                    "AND (origin IS NULL OR origin IS ?3)",
                    row["id"],
                    message_id,
                    away_from,
                )
                wanted.discard(message_id)

    def _overwrite(self) -> None:
        self._db.forget_removed()
        if self._db.path is not None:
            for copy in backups(self._db.path):
                copy.unlink(missing_ok=True)

    # -- health ------------------------------------------------------------------------------------

    def verify(self) -> list[Problem]:
        """All that is wrong with the whole store (``sessions verify``); empty is good."""
        return verify(self._db)

    # -- names -------------------------------------------------------------------------------------

    def _session_names(self, but: str | None = None) -> set[str]:
        """Names that are taken; ``but``: not by this session."""
        rows = self._db.all("SELECT name FROM sessions WHERE id IS NOT ?", but)
        return {row["name"] for row in rows}

    def _free_session_name(self, base: str, but: str | None = None) -> str:
        return free_name(base, self._session_names(but))

    def _refuse_taken(self, name: str, but: str | None = None) -> None:
        if name in self._session_names(but):
            raise Refused(f"there is a session {name} already")
