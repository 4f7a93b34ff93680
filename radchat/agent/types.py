"""The words of an agent: what a step says, what a tool is, and who is asked before it runs.

Plain data and protocols, no dependency: the loop, the tools, the gate, the terminal and the tests
meet here and nowhere else. Everything a tool touches lives in the command's process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

Status: TypeAlias = Literal["ok", "error", "denied", "interrupted", "timeout"]
Kind: TypeAlias = Literal["read", "write", "run", "ask", "other"]  # what a tool does, to the gate
Decision: TypeAlias = Literal["allow", "ask", "deny"]
Remember: TypeAlias = Literal["once", "session", "project", "user"]
Mode: TypeAlias = Literal["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"]

# -- what the model says, and is told --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, whole and of a known tool. ``id`` is unique in its session."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a call is answered with. The model reads ``text`` alone."""

    call: str
    name: str
    text: str
    status: Status = "ok"

    def to_json(self) -> dict[str, Any]:
        return {"call": self.call, "name": self.name, "text": self.text, "status": self.status}


@dataclass(frozen=True, slots=True)
class Ask:
    """What is new in a step: results of the last calls, the user's words, or both."""

    text: str = ""
    results: tuple[Result, ...] = ()
    facts: str = ""  # volatile: date, folder, branch; they go with the words


@dataclass(frozen=True, slots=True)
class Step:
    """An answer of the model, as the daemon stored it."""

    message: str | None  # None: nothing was said before it was cut off
    text: str
    calls: tuple[Call, ...] = ()
    call_error: str | None = None  # a call was begun and is not whole, or can't be read
    finish_reason: str = "stop"  # stop | length | abort | error
    branch: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    cache: Mapping[str, int] = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=dict)  # {"used", "limit"}, tokens


class Steps(Protocol):
    """Where answers come from: the daemon, or a list in a test."""

    session: str | None  # None until the first step has begun
    head: Mapping[str, Any] | None  # {"branch", "message"}: where the next step follows

    def step(self, ask: Ask, listener: Listener) -> Step:
        """One answer, stored. Raises RadchatError; what came so far is then kept by the daemon."""
        ...

    def open_calls(self) -> tuple[Call, ...]:
        """Of the last answer where the next step follows: those that wait for a result."""
        ...

    def cancel(self) -> None:
        """From another thread or a signal: the step in progress ends with what it has."""
        ...


# -- tools -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What a person is shown before a call runs, and what the gate judges it by.

    Paths are real: absolute, symlinks resolved. Texts are raw: whoever shows them cleans them.
    """

    title: str  # one line: read_file src/a.py
    body: str = ""  # a diff, or the whole command
    body_kind: Literal["text", "diff", "command"] = "text"
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    command: str | None = None  # of a shell
    error: str | None = None  # it can't run as it is said: this is its result, nobody is asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call. ``text`` may be of any length: the loop has it cut and kept."""

    text: str
    status: Status = "ok"
    data: bytes | None = None  # the whole of it, where ``text`` is not
    details: Mapping[str, Any] = field(default_factory=dict)  # for people: code, seconds, diff, …


@dataclass(frozen=True, slots=True)
class Question:
    """Of the model to the user (the tool ask_user)."""

    text: str
    choices: tuple[str, ...] = ()


class Workspace(Protocol):
    @property
    def root(self) -> Path:
        """Real path of the folder the agent works in."""
        ...

    def resolve(self, text: str) -> Path:
        """The real path that a model's path means. InvalidInput where it can be none."""
        ...

    def is_inside(self, path: Path) -> bool: ...

    def shown(self, path: Path) -> str:
        """Relative to the root, where it is inside."""
        ...


class Outputs(Protocol):
    """Whole results of this session, beside its journal."""

    def keep(self, data: bytes) -> str:
        """Its key, ``o3``."""
        ...

    def read(self, key: str) -> bytes:
        """NotFound where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Ran:
    """A process that has ended. ``output``: stdout and stderr as they came; of a long one its
    beginning and its end, with ``left_out`` bytes between them.
    """

    code: int | None  # None: a signal ended it
    signal: int | None
    head: bytes
    tail: bytes
    left_out: int
    seconds: float
    timed_out: bool = False
    cancelled: bool = False
    too_many: bool = False  # processes, and it was ended for it
    left_behind: int = 0  # processes that outlived it, and were ended


class RunInterrupted(KeyboardInterrupt):
    """Ctrl+C while a process ran: it has ended, and this is what came of it."""

    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self.ran = ran


class ToolInterrupted(KeyboardInterrupt):
    """Ctrl+C while a tool ran that can tell how far it came."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Runner(Protocol):
    """Runs processes for tools, in a sandbox."""

    @property
    def name(self) -> str:
        """Which sandbox: ``bwrap``, ``landlock`` or ``none``."""
        ...

    def which(self, *names: str) -> str | None:
        """The first of these programs that is on the path commands have."""
        ...

    def scratch(self, name: str, data: bytes) -> Path:
        """A file that commands can read, outside the workspace."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        timeout_s: float,
        cancel: threading.Event,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Ran: ...


@dataclass(slots=True)
class Limits:
    result_bytes: int = 16_000  # of a result in the context; the loop sets it by the room left
    timeout_s: float = 120.0
    max_timeout_s: float = 600.0


@dataclass
class Context:
    """What tools are given. ``runner`` None: there is no sandbox, and nothing may run."""

    workspace: Workspace
    outputs: Outputs
    runner: Runner | None = None
    no_runner: str = ""  # why
    ask_user: Callable[[Question], str | None] | None = None  # None: nobody to ask
    limits: Limits = field(default_factory=Limits)
    cancel: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[str], None] = lambda _line: None
    seen: dict[Path, str] = field(default_factory=dict)  # files read: digest of what was read


class Tool(Protocol):
    """One tool. Objects without state of their own: all of it is in the context."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of an object, additionalProperties false."""
        ...

    @property
    def kind(self) -> Kind: ...
    @property
    def is_poll(self) -> bool:
        """The same call again and again is what it is for."""
        ...

    def preview(self, call: Call, context: Context) -> Preview: ...

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        """Of what was approved: paths are those of ``preview``, resolved once. Never raises for
        what a model or a file does wrong; KeyboardInterrupt passes.
        """
        ...


# -- permission ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    why: str  # one line, for the model too where it is denied
    rules: tuple[str, ...] = ()  # that would allow it next time, one for each part


class Gate(Protocol):
    mode: Mode

    def judge(self, call: Call, tool: Tool, preview: Preview) -> Verdict: ...

    def remember(self, rules: Sequence[str], scope: Remember) -> None:
        """Allow these from now on: for the session, the project or the user."""
        ...


@dataclass(frozen=True, slots=True)
class Approval:
    allowed: bool
    remember: Remember = "once"
    rules: tuple[str, ...] = ()
    feedback: str = ""  # what the user says instead; the model reads it
    stop: bool = False  # back to the prompt: the turn ends here


class Approver(Protocol):
    """A person at a terminal."""

    def approve(self, call: Call, preview: Preview, verdict: Verdict) -> Approval: ...


# -- what is kept, and who listens -----------------------------------------------------------------


class Entries(Protocol):
    """The journal of a session's agent: append-only, each line on disk before this returns."""

    @property
    def folder(self) -> Path:
        """Of this session: the journal, ``files/`` and ``outputs/``."""
        ...

    def append(self, entry: Mapping[str, Any]) -> None: ...

    def read(self) -> list[dict[str, Any]]: ...


class Checkpoints(Protocol):
    """Files as they are before and after each call that may change some."""

    def before(self, call: Call, message: str, preview: Preview) -> None: ...

    def after(self, call: Call, message: str) -> tuple[str, ...]:
        """Paths that changed, relative to the workspace."""
        ...


class Listener(Protocol):
    """Told of a turn as it goes; on the loop's thread, or on one of its tools' threads."""

    def on_event(self, name: str, data: Mapping[str, Any]) -> None:
        """An event of the daemon's, as it comes: init, progress, notice, delta, reasoning, call."""
        ...

    def on_step(self, number: int, step: Step) -> None:
        """An answer has ended."""
        ...

    def on_judged(self, call: Call, preview: Preview, verdict: Verdict) -> None: ...

    def on_start(self, call: Call, preview: Preview) -> None: ...

    def on_progress(self, call: Call, line: str) -> None: ...

    def on_result(
        self, call: Call, result: Result, outcome: Outcome | None, changed: Sequence[str]
    ) -> None:
        """``outcome`` None: it did not run."""
        ...

    def on_notice(self, text: str, code: str) -> None: ...
