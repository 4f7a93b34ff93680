"""Where a chat stands: its session and its own HEAD, which every call is made from, so that a
``switch`` from a shell never moves an open chat.
"""

from __future__ import annotations

from typing import Any

from radchat.chat.footer import place, where
from radchat.chat.host import Host
from radchat.chat.opening import Opening, Start
from radchat.chat.turn import was_kept
from radchat.chat.view import Answer
from radchat.client import Client
from radchat.wire import EventStream

# the calls that look from where one stands, and so take the chat's own HEAD
HEADED = frozenset(
    {"tree", "log", "fork", "switch", "undo", "redo", "branch.list", "context"}
    | {"cache.evict", "cache.why", "cache.pin", "cache.unpin"}
    | {"sessions.export", "branch.advance"}
)


class Position:
    opening: Opening  # made by who opens the session

    def __init__(self, host: Host, start: Start) -> None:
        self.host = host
        self.arguments = dict(start.arguments)  # of every answer
        self.session: dict[str, Any] = {}  # the answer of sessions.open
        self.head: dict[str, Any] | None = None  # ours: {"branch", "message"}
        self.at = start.at  # a REF that the first message is said at, not at HEAD
        self.files: list[dict[str, str]] = []  # for the next message
        self.default = ""  # text offered at the next prompt
        self.answered: dict[str, Any] = {}  # what was told of the answer one stands at
        self.loaded: dict[str, Any] = {}  # {"model", "dtype"}, as last told
        self.has_talked = False
        self.made: set[str] = set()  # sessions of this chat's in which nothing was said yet
        self._begins_ephemeral = start.ephemeral
        self._unsure: Answer | None = None  # cut off; the daemon may still be writing it down

    @property
    def is_ephemeral(self) -> bool:
        """Of the session one is in, not of the chat: one may go from a kept one to another."""
        return bool(self.session.get("ephemeral", self._begins_ephemeral))

    # --- asking from there ---

    def ready(self) -> Client:
        """Wait until the session is open, showing what it waits for; raises its error."""
        while not self.opening.wait(0.1):
            self.host.status(self.opening.text)
        self.host.status("")
        assert self.opening.client is not None
        return self.opening.client

    def settled(self) -> Client:
        """The daemon, once an answer that was cut off has ended: this chat stands at it, or, where
        nothing of it was kept, at its question.
        """
        client = self.ready()
        answer = self._unsure
        if answer is None:
            return client
        asked = {"where": self.host.here()["where"], "session": self.session.get("id")}
        self.host.status("waiting for the last answer to end")
        is_kept = was_kept(client, asked, answer)
        self.host.status("")
        if is_kept:
            self.head = answer.begun
        elif answer.heard:
            self.head = answer.asked
            at = place(self.head["branch"], self.head["message"])
            self.host.note(f"nothing of the last answer was kept: going on from {at}")
        self._unsure = None
        return client

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """One question about this chat's session, asked from its own HEAD."""
        client = self.settled()
        if method in HEADED:
            args["head"] = self.head
        where = self.host.here()["where"]
        try:
            return dict(client.call(method, where=where, session=self.session.get("id"), **args))
        finally:
            self.host.status("")

    def stream(self, method: str, *keys: str, **args: Any) -> EventStream:
        """As ``call``, for what comes in events; ``keys``: of what the chat's answers are made."""
        client = self.settled()
        given = {key: self.arguments[key] for key in keys if self.arguments.get(key)}
        where = self.host.here()["where"]
        session = self.session.get("id")
        return client.stream(method, where=where, session=session, head=self.head, **given, **args)

    # --- going elsewhere ---

    def enter(self, session: dict[str, Any], *, made: bool = False) -> None:
        """Talk in this session from now on, at its HEAD; ``made``: for this chat, just now."""
        self.session = session
        if made:
            self.made.add(str(session["id"]))
        self.head = {"branch": session.get("branch"), "message": session.get("head")}
        self.answered = session.get("answered") or {}
        self._unsure = None
        self.has_talked = bool(session.get("messages"))

    def moved(self, result: dict[str, Any]) -> None:
        """Go where an answer of fork, switch, undo or redo says, and offer its text."""
        self._adopt(result.get("session"))
        self.head = {"branch": result.get("branch"), "message": result.get("head")}
        self.answered, self.at = result.get("answered") or {}, None
        if result.get("text"):
            self.default = str(result["text"])
        self.host.note(where(result))
        if result.get("recompute"):
            self.host.note(str(result["recompute"]["text"]))

    def follow(self, answer: Answer) -> bool:
        """Stand where this answer does. False: none was begun."""
        if answer.head is None:
            return False
        told = answer.done or answer.init
        if not answer.stays:
            self._adopt(told.get("session"))
            self.head, self.at = answer.head, None
            self.answered = answer.done
            self._unsure = None if answer.done else answer
        if told.get("session") == self.session.get("id"):
            self.session["name"] = told.get("name")  # its first words
            self.session["model"] = answer.init.get("model") or self.session.get("model")
            self.loaded = {key: answer.init.get(key) for key in ("model", "dtype")}
            self.has_talked = True
            self.made.discard(str(self.session.get("id")))
        self.files = []
        self.arguments.pop("files", None)
        return True

    def _adopt(self, session: str | None) -> None:
        """A REF into another session led there: it is this chat's from now on."""
        if session is not None and session != self.session.get("id"):
            where = self.host.here()["where"]
            self.enter(self.ready().call("sessions.open", where=where, session=session))
