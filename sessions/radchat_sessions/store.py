"""The session store: every conversation a tree of messages, with the ids the engine saw.

One class in ten files, each adding to the one before: ``reader`` (questions), ``token_ids``,
``branches``, ``heads`` (HEAD, labels), ``picks`` (branches by number), ``adding`` (messages,
prompts), ``turns`` (answers), ``removal``, ``exchange`` (export, import) and here: opening,
sessions as a whole.

A store belongs to the thread that opened it, and to one process: the daemon (ADR 0002). Every
method that writes is one transaction; after an exception nothing of it is there. Its errors are
those of ``radchat_sessions.errors``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from radchat_sessions.adding import random_id
from radchat_sessions.content import Json, clean, dumps
from radchat_sessions.database import Database, Synchronous
from radchat_sessions.exchange import Exchange
from radchat_sessions.messages import Found, Hit, Recovered, Session
from radchat_sessions.names import check_name, made_up_name
from radchat_sessions.running import AppendFile, OpenFile, RunningFiles
from radchat_sessions.search import search, sessions_with
from radchat_sessions.verify import Problem, verify

IN_MEMORY: Literal[":memory:"] = ":memory:"


class Store(Exchange):
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

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """All that is written inside, or nothing of it; an error in it must be let out."""
        with self._db.write():
            yield

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
                chosen = self.check_session_name(name)
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

    def set_settings(self, session_id: str, settings: Mapping[str, Json]) -> None:
        """All of them."""
        self.session(session_id)
        with self._db.write():
            told = dumps(clean(settings))
            self._db.do("UPDATE sessions SET settings = ? WHERE id = ?", told, session_id)

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

    # -- search ------------------------------------------------------------------------------------

    def search(self, asked: str, session_id: str | None = None, limit: int = 20) -> list[Hit]:
        """Messages with every word of ``asked`` (words.py), best first."""
        return search(self._db, asked, session_id, limit)

    def sessions_with(
        self, asked: str, session_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Sessions that show such messages."""
        return sessions_with(self._db, asked, session_id, limit)

    # -- health ------------------------------------------------------------------------------------

    def verify(self, session_id: str | None = None) -> list[Problem]:
        """All that is wrong (``sessions verify``), with everything or with one session."""
        return verify(self._db, session_id)
