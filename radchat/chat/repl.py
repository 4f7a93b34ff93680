"""The chat: a loop of prompt, turn and slash command over one session.

The chat holds its own HEAD and sends it with every call, so that a ``switch`` from a shell never
moves an open chat. What a slash command does is in actions.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from radchat.chat import actions, commands, limits, status_bar
from radchat.chat.completer import Menu
from radchat.chat.files import files_of
from radchat.chat.footer import place, where
from radchat.chat.host import Host
from radchat.chat.known import Known
from radchat.chat.many import many_view
from radchat.chat.opening import Opening, Start
from radchat.chat.prompt import Prompt, WantsTree
from radchat.chat.say import say
from radchat.chat.sessions_view import last_line, last_words, opened_line
from radchat.chat.sources import sources
from radchat.chat.text import clean, one_line
from radchat.chat.turn import may_pass, run_turn, was_kept
from radchat.chat.view import DIM, RESET, Answer, View, is_many, shows_markdown
from radchat.client import Client
from radchat.errors import ContextOverflow, RadchatError
from radchat.wire import EventStream

FIRST_LOOK_S = 0.08  # a daemon that is up has opened the session by then: its lines come first
# the calls that look from where one stands, and so take the chat's own HEAD
HEADED = frozenset(
    {"tree", "log", "fork", "switch", "undo", "redo", "branch.list", "context"}
    | {"cache.evict", "cache.why", "cache.pin", "cache.unpin"}
    | {"sessions.export"}
)


class Chat:
    def __init__(self, host: Host, start: Start, prompt: Prompt | None = None) -> None:
        self.host = host
        self.arguments = dict(start.arguments)
        self.session: dict[str, Any] = {}  # the answer of sessions.open
        self.head: dict[str, Any] | None = None  # ours: {"branch", "message"}
        self.files: list[dict[str, str]] = []  # for the next message
        self.default = ""  # text offered at the next prompt
        self.editing: str | None = None  # the turn the next message replaces
        self.editing_turn = 0  # and its number
        self.context: dict[str, Any] = {}  # how full it was after the last answer
        self.answered: dict[str, Any] = {}  # the end of the last answer
        self.loaded: dict[str, Any] = {}  # {"model", "dtype"}, as last told
        self._unsure: Answer | None = None  # cut off; the daemon may still be writing it down
        self.is_over = False
        self.hides_thoughts = False
        self.standing: set[str] = set()  # notices told already
        self.has_talked = False
        self._made: set[str] = set()  # sessions of this chat's in which nothing was said yet
        self._start = start
        self._at = start.at
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
            lambda: self.host.connect(on_wait=self.opening.show, on_notice=self._say),
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
        """Talk in this session from now on, at its HEAD; ``made``: for this chat, just now."""
        self.session = session
        if made:
            self._made.add(str(session["id"]))
        self.prompt.keep_history(not self.is_ephemeral, str(session["id"]))
        self.head = {"branch": session.get("branch"), "message": session.get("head")}
        self.has_talked = bool(session.get("messages"))

    @property
    def is_ephemeral(self) -> bool:
        """Of the session one is in, not of the chat: one may go from a kept one to another."""
        return bool(self.session.get("ephemeral", self._start.ephemeral))

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
                done=self.answered if self.answered.get("head") == self.head else {},
            ),
            columns,
        )

    def _say(self, text: str) -> None:
        self.prompt.say(lambda: self.host.note(text))

    def ready(self) -> Client:
        """Wait until the session is open, showing what it waits for; raises its error."""
        while not self.opening.wait(0.1):
            self.host.status(self.opening.text)
        self.host.status("")
        assert self.opening.client is not None
        return self.opening.client

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
                self.host.note("Ctrl+D or /bye to exit")
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
            actions.ACTIONS[name](self, rest)
        elif ref is not None:
            self.generate(kind="edit", ref=ref, text=text)
        else:
            self.generate(kind="turn", text=text)

    def generate(self, **args: Any) -> None:
        """One turn, from where this chat stands; its HEAD follows, also where it ends in an error:
        what came so far is kept by the daemon, or found again by the next one.
        """
        view, was = self._view(args), self.head
        try:
            client = self._settled()
            payload = self._payload(args)
            self.host.status("waiting")
            _, cancelled = run_turn(client, payload, view)
        except (RadchatError, KeyboardInterrupt) as error:
            view.finish()
            if not self._follow(view.answer) and may_pass(error):
                self._offer(args)
            raise
        self.host.status("")
        is_begun = self._follow(view.answer)
        if cancelled:
            self.prompt.hold()
            if not is_begun:
                self._offer(args)
            kept = f"cancelled: what came so far is kept{view.kept_in_chat}"
            self.host.note(kept if is_begun else "cancelled")
        if is_begun and args["kind"] in ("retry", "edit"):
            self.host.note(where(view.answer.done or {**self.session, "head": self.head}, was))

    def _payload(self, args: dict[str, Any]) -> dict[str, Any]:
        payload = {
            **self.host.here(),
            "options": {},
            "n": 1,
            **self.arguments,
            **args,
            "session": self.session.get("id"),
            "head": self.head,
            "ephemeral": self.is_ephemeral,
        }
        payload.pop("files", None)
        if args["kind"] in ("turn", "edit", "what-if"):
            named = files_of(args.get("texts") or [str(args.get("text") or "")])
            payload["files"] = [*self.arguments.get("files", ()), *self.files, *named]
        if self._at is not None and args["kind"] in ("turn", "what-if"):
            payload.setdefault("at", self._at)
        return payload

    def _follow(self, answer: Answer) -> bool:
        """Stand where this answer does. False: none was begun."""
        if answer.head is None:
            return False
        told = answer.done or answer.init
        if not answer.stays:
            self._adopt(told.get("session"))
            self.head, self._at = answer.head, None
            self.context = answer.done.get("context") or self.context
            self.answered = answer.done
            self._unsure = None if answer.done else answer
        if told.get("session") == self.session.get("id"):
            self.session["name"] = told.get("name")  # its first words
            self.session["model"] = answer.init.get("model") or self.session.get("model")
            self.loaded = {key: answer.init.get(key) for key in ("model", "dtype")}
            self.has_talked = True
            self._made.discard(str(self.session.get("id")))
        self.files = []
        self.arguments.pop("files", None)
        return True

    def _offer(self, args: dict[str, Any]) -> None:
        """The words again, of a turn that was not begun; an edit is still one."""
        self.default = str(args.get("text") or "")
        self.editing = args.get("ref") if args["kind"] == "edit" else None

    def _adopt(self, session: str | None) -> None:
        """A REF into another session led there: it is this chat's from now on."""
        if session is not None and session != self.session.get("id"):
            where = self.host.here()["where"]
            self.enter(self.ready().call("sessions.open", where=where, session=session))

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """One question about this chat's session, asked from its own HEAD."""
        client = self._settled()
        if method in HEADED:
            args["head"] = self.head
        where = self.host.here()["where"]
        return dict(client.call(method, where=where, session=self.session.get("id"), **args))

    def stream(self, method: str, *keys: str, **args: Any) -> EventStream:
        """As ``call``, for what comes in events; ``keys``: of what the chat's answers are made."""
        client = self._settled()
        given = {key: self.arguments[key] for key in keys if self.arguments.get(key)}
        where = self.host.here()["where"]
        session = self.session.get("id")
        return client.stream(method, where=where, session=session, head=self.head, **given, **args)

    def _settled(self) -> Client:
        """The daemon, once an answer that was cut off is where this chat believes to stand."""
        client = self.ready()
        answer = self._unsure
        if answer is None or not answer.heard:
            return client
        asked = {"where": self.host.here()["where"], "session": self.session.get("id")}
        if not was_kept(client, asked, answer):
            self.head = {"branch": answer.init.get("branch"), "message": answer.init.get("user")}
            at = place(self.head["branch"], self.head["message"])
            self.host.note(f"nothing of the last answer was kept: going on from {at}")
        self._unsure = None
        return client

    def moved(self, result: dict[str, Any]) -> None:
        """Go where an answer of fork, switch, undo or redo says, and offer its text."""
        self._adopt(result.get("session"))
        self.head = {"branch": result.get("branch"), "message": result.get("head")}
        self._at = None
        if result.get("text"):
            self.default = str(result["text"])
        self.host.note(where(result))
        if result.get("recompute"):
            self.host.note(str(result["recompute"]["text"]))

    def _view(self, args: Mapping[str, Any]) -> View:
        shown: dict[str, Any] = {
            "out": sys.stdout,
            "err": sys.stderr,
            "note": self.host.note,
            "status": self.host.status,
            "shows_reasoning": not (self.host.quiet or self.hides_thoughts),
            "shows_footer": not self.host.quiet,
            "paints": self.host.paints(sys.stderr),
            "columns": self.host.error_columns,
            "renders": self.renders,
            "continues": "/continue",
            "at_end": self.prompt.take,
            "standing": self.standing,
        }
        if is_many(args):
            return many_view(args, self.host, self.ready, shown, command="/")
        return View(**shown)

    def _goodbye(self) -> None:
        """How to go on; sessions in which nothing was said are not kept."""
        name = self.session.get("name") or self.session.get("id")
        if name and self.has_talked and not self.is_ephemeral:
            self.host.note(f"Continue: radchat chat -r {one_line(str(name))}")
        if self._made and self.opening.client is not None:
            where = self.host.here()["where"]
            with contextlib.suppress(RadchatError):
                self.opening.client.call("sessions.rm", where=where, sessions=sorted(self._made))
