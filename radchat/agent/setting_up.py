"""An agent put together: its folder, what it may do there, where its commands run, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.agent.files.checkpoints import FileCheckpoints
from radchat.agent.files.rewind import finish
from radchat.agent.files.workspace import Folder
from radchat.agent.journal import Journal
from radchat.agent.loop import Kept
from radchat.agent.mcp.opening import open_servers
from radchat.agent.permission.grants import Grants
from radchat.agent.permission.judge import MODES, Judge
from radchat.agent.permission.rules import Rule
from radchat.agent.sandbox.choosing import open_runner
from radchat.agent.sandbox.policy import private
from radchat.agent.sandbox.runner import SandboxRunner
from radchat.agent.sandbox.temporary import Temporary
from radchat.agent.tools.outputs import KeptOutputs
from radchat.agent.tries.copies import sweep
from radchat.agent.types import Context, Limits, Mode, Question, Tool
from radchat.errors import UsageError
from radchat.paths import Places

if TYPE_CHECKING:
    from radchat.agent.mcp.servers import Servers

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of an agent, besides its words."""

    mode: Mode = "default"
    allowed: Sequence[str] = ()  # rules, for this run
    no_sandbox: bool = False
    is_ephemeral: bool = False
    mcp_config: Path | None = None


def mode_of(text: str | None, *, yolo: bool) -> Mode:
    """UsageError names the modes."""
    if yolo:
        if text not in (None, "bypassPermissions"):
            raise UsageError(f"--permission-mode {text} and --yolo: take one of them")
        return "bypassPermissions"
    for mode in MODES:
        if mode == (text or "default"):
            return mode
    raise UsageError(f"--permission-mode {text}: want {', '.join(MODES)}")


@dataclass
class Place:
    """A folder to work in, for as long as the command lasts."""

    workspace: Folder
    grants: Grants
    judge: Judge
    runner: SandboxRunner | None
    no_runner: str
    agent_folder: Path  # of all sessions
    note: Note
    is_ephemeral: bool = False
    ask_user: Callable[[Question], str | None] | None = None
    limits: Limits = field(default_factory=Limits)
    servers: Servers | None = None
    _scratch: Temporary | None = None

    @classmethod
    def open(
        cls,
        asked: Asked,
        places: Places,
        env: Mapping[str, str],
        note: Note,
        root: Path | None = None,
        alias: Path | None = None,
    ) -> Place:
        """``root``: the current folder, or a copy of ``alias``. Says what is not as usual."""
        sweep(places)
        workspace = Folder.of(root or Path.cwd(), alias)
        hidden = private(places)
        rules = [Rule.parse(text) for text in asked.allowed]
        project = workspace.root if alias is None else alias
        grants = Grants(places.state / "permissions", project, rules, note)
        network = grants.allows_network
        runner, found = open_runner(
            places, workspace.root, env, without=asked.no_sandbox, network=network, alias=alias
        )
        if network and not asked.no_sandbox:
            note("commands may use the network: a rule allows it")
        if asked.no_sandbox:
            note("--no-sandbox: commands run with all your rights")
        elif runner is None:
            note(f"commands can't be run: {found.why}")
        elif found.danger:
            note(found.danger)
        judge = Judge(
            asked.mode, workspace, grants, hidden, is_sandboxed=found.name in ("bwrap", "landlock")
        )
        return cls(
            workspace,
            grants,
            judge,
            runner,
            found.why,
            places.data / "agent",
            note,
            is_ephemeral=asked.is_ephemeral,
        )

    def start_servers(
        self, asked: Asked, places: Places, env: Mapping[str, str]
    ) -> tuple[Tool, ...]:
        """Of MCP, with the tools they have. Raises ConfigInvalid."""
        self.servers = open_servers(places, asked.mcp_config, env, self.note)
        return self.servers.tools if self.servers is not None else ()

    def open_kept(self, session: str) -> Kept:
        """What is kept of a session's agent. Busy, where another has it."""
        folder = self.agent_folder / session
        if self.is_ephemeral:
            self._scratch = Temporary()
            folder = self._scratch.path
        journal = Journal(folder)
        context = Context(
            self.workspace,
            KeptOutputs(folder / "outputs"),
            self.runner,
            self.no_runner,
            self.ask_user,
            self.limits,
        )
        if rewound := finish(self.workspace.root, journal):
            self.note(f"a rewind that was cut off is done: {len(rewound.restored)} files restored")
        checkpoints = FileCheckpoints(self.workspace, journal, self.note, self.judge.hidden)
        return Kept(journal, context, checkpoints, journal.close)

    def close(self) -> None:
        if self.servers is not None:
            self.servers.close()
        if self.runner is not None:
            self.runner.close()
        if self._scratch is not None:
            self._scratch.close()
