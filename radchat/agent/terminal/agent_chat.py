"""A chat whose messages an agent works on: all else of it is the chat."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from radchat.agent.loop import Agent, Bounds, Ended, Kept
from radchat.agent.prompt import SYSTEM, facts, instruction_file, read_instructions
from radchat.agent.setting_up import Place
from radchat.agent.steps import DaemonSteps
from radchat.agent.terminal import person, rewinding, settings
from radchat.agent.terminal.approval import TerminalApprover
from radchat.agent.terminal.body import Row
from radchat.agent.terminal.step_view import StepView
from radchat.agent.types import Question, Tool
from radchat.chat import commands
from radchat.chat.files import files_of
from radchat.chat.footer import where
from radchat.chat.generating import how_shown
from radchat.chat.host import Host
from radchat.chat.opening import Start
from radchat.chat.repl import Chat
from radchat.chat.text import one_line
from radchat.chat.view import View
from radchat.errors import UsageError

TWICE_S = 2.0  # between two Ctrl+C that end it


class AgentChat(Chat):
    command = "radchat agent"

    def __init__(
        self,
        host: Host,
        start: Start,
        place: Place,
        tools: Mapping[str, Tool],
        max_turns: int,
    ) -> None:
        self.place = place
        self.tools = dict(tools)
        self.servers = place.servers
        self._max_turns = max_turns
        self._kept_of: str | None = None  # the session whose journal is open
        self._agent: Agent | None = None
        self._is_working = False
        self._interrupted_at = -TWICE_S
        self.told_files: list[str] = []  # that stand otherwise than here
        super().__init__(
            host,
            start,
            more={
                "tools": lambda _chat, _rest: settings.show_tools(self),
                "permissions": lambda _chat, rest: settings.permissions(self, rest),
                "mcp": lambda _chat, _rest: settings.show_servers(self),
            },
        )
        self.approver = TerminalApprover(
            person.tell,
            self.prompt,
            person.size,
            page=self._page if host.shows_screens else None,
            in_lines=not host.shows_screens,
            paints=host.paints(person.stream()),
        )
        place.ask_user = self._ask_user

    def run(self) -> int:
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            return super().run()
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """What goes on ends; the second of two quick ones ends all, whatever is at work then."""
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_S:
            self.is_over = True
        elif self._is_working:
            self._interrupted_at = now
        raise KeyboardInterrupt

    # -- a message ---------------------------------------------------------------------------------

    def answer(self, *, kind: str = "turn", text: str = "", n: int = 1, **how: Any) -> None:
        if n > 1:
            raise UsageError("an agent gives one answer at a time: radchat agent --tries K")
        client, was = self.settled(), self.head
        asked = self._asked(text) | ({} if kind == "turn" else {"kind": kind, **how})
        if kind != "turn":
            asked.pop("at", None)
        steps = DaemonSteps(client, asked, list(self.tools.values()), head=self.head or {})
        view = self._view()
        agent = self._agent_of(steps, view)
        was_begun = False
        self._is_working = True
        try:
            ended = agent.turn(text, self._facts() if text else "", is_new=kind == "turn")
            was_begun = True
        finally:
            self._is_working = False
            view.finish()
            if steps.head:
                was_begun = was_begun or steps.head != self.head
                self.head = dict(steps.head)
            if was_begun:
                self.files, self.at, self.has_talked = [], None, True
                self.made.discard(str(self.session.get("id")))
        self._told(ended)
        if kind in ("retry", "edit"):
            self.host.note(where({**self.session, "head": self.head}, was))
            rewinding.tell_difference(self)

    def _asked(self, text: str) -> dict[str, Any]:
        asked = {
            **self.host.here(),
            "options": {},
            **self.arguments,
            "session": self.session.get("id"),
            "ephemeral": self.is_ephemeral,
            "files": [*self.arguments.get("files", ()), *self.files, *files_of([text])],
        }
        if not self.has_talked:
            asked.setdefault("system", SYSTEM)
        return asked | ({"at": self.at} if self.at is not None else {})

    def _facts(self) -> str:
        path = instruction_file(self.place.workspace.root)
        told = read_instructions(path) if path and self._trusts(path.name) else None
        return facts(self.place.workspace.root, instructions=told)

    def _trusts(self, name: str) -> bool:
        """Asked once a folder: what stands in it may be anybody's."""
        known = self.place.grants.is_trusted
        if known is None:
            known = settings.asks_trust(self, name)
        return known

    def _agent_of(self, steps: DaemonSteps, view: StepView) -> Agent:
        """The one of this session: its journal stays open from turn to turn."""
        session = str(self.session.get("id"))
        if self._agent is None or self._kept_of != session:
            self.close_agent()
            self._agent = Agent(steps, self.tools, self.place.judge, view, self.place.open_kept)
            self._kept_of = session
        self._agent.steps, self._agent.listener = steps, view
        self._agent.approver, self._agent.bounds = self.approver, Bounds(self._max_turns)
        return self._agent

    def agent(self) -> Agent:
        """With its journal open, for what looks at it between turns."""
        asked = {**self.host.here(), "session": self.session.get("id")}
        steps = DaemonSteps(self.settled(), asked, [], head=self.head or {})
        agent = self._agent_of(steps, self._view())
        if agent.kept is None:
            agent.kept = self.place.open_kept(str(self.session["id"]))
        return agent

    def close_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def _told(self, ended: Ended) -> None:
        if ended.reason == "interrupted":
            self.prompt.hold()
            self.host.note("interrupted: what came so far is kept")
        elif ended.why:
            self.host.note(one_line(ended.why))

    # -- the chat ----------------------------------------------------------------------------------

    def _handle(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word == "/rewind":
            rewinding.rewind(self, rest.strip())
            return
        super()._handle(text)
        if commands.is_command(text):
            rewinding.tell_difference(self)

    def on_idle_interrupt(self) -> None:
        if time.monotonic() - self._interrupted_at < TWICE_S:
            self.is_over = True
            return
        super().on_idle_interrupt()

    def _goodbye(self) -> None:
        self.close_agent()
        super()._goodbye()

    def _view(self) -> StepView:
        shown = {**how_shown(self), "shows_footer": False}
        return StepView(
            lambda: View(**shown),
            self._write,
            self.host.status,
            self.host.error_columns,
            self.host.paints(sys.stderr),
            self.host.quiet,
        )

    @property
    def kept(self) -> Kept | None:
        """What is open of this session, if anything is."""
        return None if self._agent is None else self._agent.kept

    def _ask_user(self, question: Question) -> str | None:
        if self._agent is not None and isinstance(self._agent.listener, StepView):
            self._agent.listener.rest()
        return self.approver.ask(question)

    def _page(self, title: str, rows: Callable[[int], list[Row]]) -> None:
        from radchat.agent.terminal.pager import page

        page(title, rows, colors=self.host.paints(sys.stdout))

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
