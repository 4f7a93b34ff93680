"""Methods that take sessions out of the store and into it: export and import."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

from radchat.daemon.arguments import ChatHead
from radchat.daemon.desk import translate
from radchat.daemon.keeping_methods import KeepingMethods
from radchat.errors import InvalidInput, UsageError
from radchat.protocol import Where
from radchat_sessions import imports
from radchat_sessions.drafts import Draft, Imported
from radchat_sessions.errors import StoreError
from radchat_sessions.reading import Document
from radchat_sessions.rendering import Format, render
from radchat_sessions.store import Store


class ImportFile(TypedDict, total=False):
    """A file on this machine by its path, or the text of a pipe; ``name`` is for messages."""

    name: str
    path: str
    text: str


class ExchangeMethods(KeepingMethods):
    async def sessions_export(
        self,
        where: Where,
        session: str | None = None,
        format: Format = "md",  # noqa: A002 - the flag's name
        at: str | None = None,
        every: bool = False,
        head: ChatHead | None = None,
    ) -> dict[str, Any]:
        """The session as the text of a file. Markdown and OpenAI messages are the path to HEAD or
        ``at``, or (``every``) all branches; JSON and JSON lines the whole tree, or the path to
        ``at``.
        """
        if at is not None and every:
            raise UsageError("one path or all branches: give one of --at and --all")

        def work() -> dict[str, Any]:
            if at is not None:
                store, place, target = self._target(where, session, head, at)
                document = store.export(place.session.id, target.message)
            else:
                store, place = self._place(where, session, head)
                is_path = format in ("md", "openai") and not every
                document = store.export(place.session.id, place.message if is_path else None)
            return {
                "session": place.session.id,
                "name": place.session.name,
                "format": format,
                "messages": len(document["messages"]),
                "text": render(document, format, every=every),
            }

        return await self._desk.run(work)

    async def sessions_import(self, where: Where, files: list[ImportFile]) -> dict[str, Any]:
        """Sessions out of files, all of them or none; the last becomes the current one here."""
        found = await asyncio.to_thread(lambda: [(_name(f), _load(f)) for f in files])

        def work() -> dict[str, Any]:
            store = self._desk.stored
            every = [(name, each) for name, sessions in found for each in sessions]
            taken = store.take_in(each for _, each in every)
            if taken:
                last = taken[-1].session
                store.use(last, terminal=where["terminal"], folder=where["folder"])
            rows = [
                {**_imported_json(store, each), "file": name}
                for (name, _), each in zip(every, taken, strict=True)
            ]
            return {"sessions": rows, "left_out": imports.left_out([each for _, each in every])}

        return await self._desk.run(work)


def _imported_json(store: Store, imported: Imported) -> dict[str, Any]:
    session = store.session(imported.session)
    return {
        "id": session.id,
        "name": session.name,
        "messages": imported.messages,
        "branches": len(store.branches(session.id)),
        "renewed": imported.renewed,
    }


def _name(file: ImportFile) -> str:
    return file.get("name") or Path(file.get("path", "stdin")).name


def _load(file: ImportFile) -> list[Document | Draft]:
    name, path = _name(file), file.get("path")
    try:
        if path is not None:
            return imports.load(Path(path))
        return imports.parse(file.get("text", "").encode(), Path(name).stem)
    except StoreError as error:
        raise translate(type(error)(f"{name}: {error.message}")) from error
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror or error}") from error
