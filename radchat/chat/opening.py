"""A chat opens at once: the daemon is found, the session opened and the model loaded meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radchat.chat.footer import counted
from radchat.chat.view import end_of
from radchat.client import Client
from radchat.errors import RadchatError


@dataclass
class Start:
    """How a chat begins: what the command line said."""

    session: str | None = None
    is_new: bool = True
    name: str | None = None
    at: str | None = None
    prompt: str = ""
    ephemeral: bool = False
    raw: bool = False  # answers as they are, no Markdown shown
    arguments: dict[str, Any] = field(default_factory=dict)  # of every generate call


class Opening:
    """A thread that opens the session and then loads its model; the KV of where one goes on is
    restored from disk meanwhile: of HEAD's path, or of that to the REF the session is opened at.

    ``text`` says what it is at ("" when it is done); ``on_change`` is told whenever that changes,
    ``on_open`` gets the session as soon as it is known. Both are called from the thread.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        session: dict[str, Any],
        model: dict[str, Any],
        on_open: Callable[[dict[str, Any]], None],
        on_change: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.text = "connecting"
        self.error: RadchatError | None = None
        self.client: Client | None = None
        self.loaded: dict[str, Any] = {}  # of the model, once it is: model, dtype, context
        self._connect = connect
        self._session = session
        self._model = model
        self._on_open = on_open
        self._on_change = on_change
        self._say = say
        self._is_over = False
        self._is_open = threading.Event()
        self._has_news = threading.Event()  # it is open, or something is waited for
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the session is open, or has failed to: then the error is raised."""
        done = self._is_open.wait(timeout)
        if done and self.client is None and self.error is not None:
            raise self.error
        return done

    def first_look(self, timeout: float) -> bool:
        """As ``wait``, but only for a daemon that is up: one that starts takes longer than that."""
        self._has_news.wait(timeout)
        return self.wait(0)

    def is_loaded(self, timeout: float) -> bool:
        """Whether the model is, or cannot be, after so many seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def show(self, text: str) -> None:
        """The same words again are no reason to paint; once all is open nothing is shown."""
        if text != self.text and not self._is_over:
            self.text = text
            self._has_news.set()
            self._on_change()

    def _run(self) -> None:
        try:
            client = self._connect()
            opened = client.call("sessions.open", **self._session)
            self.client = client
            self._on_open(opened)
            self._is_open.set()
            self._has_news.set()
            self._load(client, opened)
        except RadchatError as error:
            self.error = error
            if self._is_open.is_set():  # the chat is up: it is told, and goes on
                self._say(f"error: {error.message}")
        finally:
            self._is_open.set()
            self._has_news.set()
            self.show("")
            self._is_over = True

    def _load(self, client: Client, opened: dict[str, Any]) -> None:
        model = {**self._model}
        model["model"] = model.get("model") or opened.get("model")
        if not model["model"]:
            return
        done = end_of(
            client.stream("models.load", **model, **self._place(opened)),
            self._say,
            self.show,
        )
        self.loaded = done
        if done.get("restoring"):
            number = done["restoring"]
            self._say(f"{counted(number, 'token')} come{'s' if number == 1 else ''} from disk")

    def _place(self, opened: dict[str, Any]) -> dict[str, Any]:
        """Whose KV is restored while the user types. Nobody's, where nothing was said yet."""
        head = opened.get("at", opened.get("head"))
        if self._session.get("new") or head is None:
            return {}
        asked = {"where": self._session["where"], "session": opened["id"]}
        return {**asked, "head": {"branch": None, "message": head}, "restore": True}
