"""The chat: a loop of prompt, turn and slash command over one session.

Where it stands is in position.py, a turn in generating.py, what a slash command does in actions.py.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from radchat.chat import actions, commands, limits, status_bar
from radchat.chat.completer import Menu
from radchat.chat.generating import generate
from radchat.chat.host import Host
from radchat.chat.known import Known
from radchat.chat.opening import Opening, Start
from radchat.chat.position import Position
from radchat.chat.prompt import Prompt, WantsTree
from radchat.chat.say import say
from radchat.chat.sessions_view import last_line, last_words, opened_line
from radchat.chat.sources import sources
from radchat.chat.text import clean, one_line
from radchat.chat.view import DIM, RESET, shows_markdown
from radchat.errors import ContextOverflow, RadchatError

FIRST_LOOK_S = 0.08  # a daemon that is up has opened the session by then: its lines come first


class Chat(Position):
    command = "radchat chat"  # what goes on with it

    def __init__(
        self,
        host: Host,
        start: Start,
        prompt: Prompt | None = None,
        *,
        more: Mapping[str, actions.Action] | None = None,
    ) -> None:
        """``more``: what slash commands do that take more than a chat knows."""
        super().__init__(host, start)
        self._actions = {**actions.ACTIONS, **(more or {})}
        self.editing: str | None = None  # the turn the next message replaces
        self.editing_turn = 0  # and its number
        self.is_over = False
        self.hides_thoughts = False
        self.standing: set[str] = set()  # notices told already
        self._start = start
        self._known = Known(sources(self), lambda: self.prompt.has_come())  # noqa: PLW0108 - made below
        self.prompt = prompt or Prompt(
            history=None if start.ephemeral else host.places.history,
            toolbar=self._toolbar if host.shows_screens else None,
            completer=Menu(self._known) if host.shows_screens else None,
            colors=host.paints(sys.stdout),
        )
        self.prompt.keep_history(None)
        self.opening = self._open(start)

    # --- opening ---

    def _open(self, start: Start) -> Opening:
        where = self.host.here()["where"]
        keys = ("model", "dtype", "exact")
        return Opening(
            # the thread that connects has a prompt below it: it writes nothing of its own accord
            lambda: self.host.connect(on_wait=self._waiting, on_notice=self._say),
            session={
                **({} if start.at is None else {"at": start.at}),
                "where": where,
                "session": start.session,
                "new": start.is_new,
                "name": start.name,
                "ephemeral": start.ephemeral,
                "model": self.arguments.get("model"),
            },
            model={k: self.arguments[k] for k in keys if self.arguments.get(k)},
            on_open=self._opened,
            on_change=self.prompt.refresh,
            say=self._say,
        )

    def _waiting(self, text: str) -> None:
        """For the daemon: below the prompt while the chat opens; later, for a new one, where there
        is no prompt.
        """
        if threading.current_thread() is threading.main_thread():
            self.host.status(text)
        else:
            self.opening.show(text)

    def _opened(self, session: dict[str, Any]) -> None:
        """Told by the opening thread; the loop reads these only after ``ready``."""
        self.enter(session, made=self._start.is_new)
        if self.is_ephemeral:
            self._say("ephemeral: nothing said here is kept on disk")
        if not self._start.is_new:
            lines = self.where_lines(session, is_opening=True)
            self.prompt.say(lambda: self.tell(lines))
        elif session.get("last"):
            self._say(last_line(session["last"]))

    def where_lines(self, session: dict[str, Any], *, is_opening: bool = False) -> list[str]:
        """Which session this is, what going on costs, and the last words of it. What a chat that
        opens restores is told as it begins to.
        """
        lines, forecast = [opened_line(session)], session.get("recompute")
        if forecast and not (is_opening and forecast.get("code") == "restore"):
            lines.append(str(forecast["text"]))
        is_begun = session.get("messages") and session.get("at", True) is not None
        if self.opening.client is not None and is_begun:
            asked = {"where": self.host.here()["where"], "session": session["id"], "n": 1}
            asked |= {"ref": session["at"]} if "at" in session else {}
            with contextlib.suppress(RadchatError):
                log = self.opening.client.call("log", **asked)
                lines += last_words(log["messages"], self.host.columns)
        return lines

    def tell(self, lines: list[str]) -> None:
        """A note, and what belongs to it, dimmed."""
        self.host.note(lines[0])
        style = (DIM, RESET) if self.host.paints(sys.stderr) else ("", "")
        for line in lines[1:] if not self.host.quiet else ():
            say(line, self.host.error_columns(), style)

    def enter(self, session: dict[str, Any], *, made: bool = False) -> None:
        super().enter(session, made=made)
        self.prompt.keep_history(not self.is_ephemeral, str(session["id"]))

    @property
    def renders(self) -> bool:
        """Are answers shown as Markdown?"""
        return shows_markdown(self.host, raw=self._start.raw)

    def _toolbar(self, columns: int) -> str:
        loaded, head = {**self.opening.loaded, **self.loaded}, self.head or {}
        asked, own = self.arguments.get("model"), self.session.get("model")
        if not asked and own and own != loaded.get("model", own):
            loaded = {"model": own}  # another session's; whether it is loaded nobody has said
        return status_bar.line(
            status_bar.Facts(
                doing=self.opening.text,
                model=loaded.get("model") or asked or own,
                dtype=loaded.get("dtype"),
                is_loaded=bool(loaded),
                branch=head.get("branch"),
                message=head.get("message"),
                done=self.answered,
            ),
            columns,
        )

    def _say(self, text: str) -> None:
        self.prompt.say(lambda: self.host.note(text))

    # --- the loop ---

    def run(self) -> int:
        self.opening.start()
        self.opening.first_look(FIRST_LOOK_S)
        if self._start.prompt:
            self._safely(self._start.prompt)
        while not self.is_over:
            with contextlib.suppress(KeyboardInterrupt):  # one that came between two prompts
                text = self._read()
                if text is not None:
                    self._safely(text)
        self._goodbye()
        return 0

    def _read(self) -> str | None:
        default, self.default = self.default, ""
        self._known.forget()
        try:
            text = self.prompt.read(self._mark(), default)
        except WantsTree:
            return "/tree"
        except EOFError:
            self.is_over = True
            return None
        except KeyboardInterrupt:
            self.editing = None
            if not self.prompt.had_text:
                self.on_idle_interrupt()
            return None
        if text.strip():
            return text
        if self.editing is not None:
            self.editing = None
            self.host.note("left as it is")
        return None

    def _mark(self) -> str:
        if self.editing is not None:
            return f"edit {self.editing_turn}> "
        branch = (self.head or {}).get("branch") or "main"
        return "> " if branch == "main" else f"{one_line(branch)}> "

    def _safely(self, text: str) -> None:
        """One message or command; what goes wrong is told, and the chat goes on."""
        self._attempt(lambda: self._handle(text))

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KeyboardInterrupt:
            self.hold()
            self.host.status("")
            self.host.note("cancelled")
        except RadchatError as error:
            self.hold()
            self.host.status("")
            say(f"error: {clean(error.message)}", self.host.error_columns())
            if isinstance(error, ContextOverflow) and self.default and self.editing is None:
                self._attempt(lambda: limits.way_out(self))
        sys.stdout.flush()

    def hold(self) -> None:
        """Something went wrong: nothing that was typed in the meantime is sent into it."""
        self.prompt.take()
        self.prompt.hold()

    def _handle(self, text: str) -> None:
        ref, self.editing = self.editing, None
        if text.startswith("!") and text[1:].strip():
            actions.shell(text[1:])
        elif commands.is_command(text):
            name, rest = commands.parse(text)
            self._actions[name](self, rest)
        elif ref is not None:
            self.answer(kind="edit", ref=ref, text=text)
        else:
            self.answer(kind="turn", text=text)

    def answer(self, **args: Any) -> None:
        """To a message, an edited one, one more, or the rest of one: what comes is shown."""
        generate(self, **args)

    def on_idle_interrupt(self) -> None:
        """Ctrl+C at an empty prompt."""
        self.host.note("Ctrl+D or /bye to exit")

    def _goodbye(self) -> None:
        """How to go on; sessions in which nothing was said are not kept."""
        name = self.session.get("name") or self.session.get("id")
        if name and self.has_talked and not self.is_ephemeral:
            self.host.note(f"Continue: {self.command} -r {one_line(str(name))}")
        if self.made and self.opening.client is not None:
            where = self.host.here()["where"]
            with contextlib.suppress(RadchatError):
                self.opening.client.call("sessions.rm", where=where, sessions=sorted(self.made))
