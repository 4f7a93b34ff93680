"""The tools that run something: shell and python."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from radchat.agent.sandbox.runner import CannotRun
from radchat.agent.tools.schema import arguments, integer, string
from radchat.agent.tools.shaping import as_text, is_binary
from radchat.agent.types import (
    Call,
    Context,
    Kind,
    Outcome,
    Preview,
    Ran,
    RunInterrupted,
    Status,
    ToolInterrupted,
)

LONGEST = 100_000  # bytes of a command: the kernel takes 128 KiB in an argument
TIMEOUT = "seconds it may take (120)"


class Shell:
    name = "shell"
    description = (
        "Run a command line with bash in the folder. There is no terminal, no input, and no "
        "network unless the user has allowed it."
    )
    parameters = arguments({"command": string("the line")}, timeout=integer(TIMEOUT))
    kind: Kind = "run"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        command = str(call.arguments.get("command", ""))
        error = _unusable(command) or _no_sandbox(context)
        first = command.strip().partition("\n")[0]
        return Preview(f"shell {first}", command, "command", command=command, error=error)

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        assert context.runner is not None
        shell = context.runner.which("bash", "sh")
        if shell is None:
            return Outcome("there is no bash and no sh on the PATH", "error")
        flags = ["--noprofile", "--norc", "-c"] if shell.endswith("bash") else ["-c"]
        return _ran([shell, *flags, preview.command or ""], call, context)


class Python:
    name = "python"
    description = (
        "Run Python code in a process of its own, in the folder; what it prints comes back. There "
        "is no input, and no network unless the user has allowed it."
    )
    parameters = arguments({"code": string("the program")}, timeout=integer(TIMEOUT))
    kind: Kind = "run"
    is_poll = False

    def preview(self, call: Call, context: Context) -> Preview:
        code = str(call.arguments.get("code", ""))
        first = code.strip().partition("\n")[0]
        return Preview(f"python {first}", code, "command", error=_no_sandbox(context))

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        assert context.runner is not None
        python = context.runner.which("python3", "python")
        if python is None:
            return Outcome("there is no python3 on the PATH", "error")
        file = context.runner.scratch(f"{call.id}.py", preview.body.encode("utf-8", "replace"))
        try:
            return _ran([python, str(file)], call, context)
        finally:
            file.unlink(missing_ok=True)


def _unusable(command: str) -> str | None:
    if not command.strip():
        return "the command is empty"
    if "\0" in command:
        return "a command has no NUL in it"
    size = len(command.encode("utf-8", "replace"))
    return f"too long ({size:,} bytes): write it to a file first" if size > LONGEST else None


def _no_sandbox(context: Context) -> str | None:
    return None if context.runner is not None else f"nothing can be run: {context.no_runner}"


def _ran(argv: Sequence[str], call: Call, context: Context) -> Outcome:
    assert context.runner is not None
    wanted = float(call.arguments.get("timeout") or context.limits.timeout_s)
    timeout_s = min(wanted, context.limits.max_timeout_s)
    last = _LastLine(context)
    try:
        ran = context.runner.run(
            argv,
            cwd=context.workspace.root,
            timeout_s=timeout_s,
            cancel=context.cancel,
            on_output=last.take,
        )
    except CannotRun as error:
        return Outcome(error.message, "error")
    except RunInterrupted as stop:
        raise ToolInterrupted(outcome_of(stop.ran, timeout_s)) from stop
    return outcome_of(ran, timeout_s)


class _LastLine:
    """Of an output as it comes: shown while it goes on."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def take(self, data: bytes) -> None:
        if not is_binary(data):
            lines = data.decode("utf-8", "replace").strip().splitlines()
            if lines:
                self._context.progress(lines[-1])


def outcome_of(ran: Ran, timeout_s: float) -> Outcome:
    """What the model reads of a process, and what people are told. How it ended comes first, so
    that no output can be taken for it.
    """
    text = as_text(ran.head)
    if ran.tail and not is_binary(ran.head):
        gone = f"\n[... {ran.left_out:,} bytes are not kept ...]\n" if ran.left_out else ""
        text += gone + as_text(ran.tail)
    ended, status = _ended(ran, timeout_s)
    if ran.left_behind:
        num = ran.left_behind
        ended += f"; {num} left running and ended: processes do not outlive their command"
    told = f"[{ended}]\n{text}" if text.strip() else f"[{ended}; no output]"
    details: dict[str, Any] = {
        "code": ran.code,
        "seconds": round(ran.seconds, 3),
        "left_behind": ran.left_behind,
    }
    return Outcome(told, status, details=details)


def _ended(ran: Ran, timeout_s: float) -> tuple[str, Status]:
    if ran.timed_out:
        told = f"it took more than {timeout_s:g} s and was ended, with all it had started"
        return told, "timeout"
    if ran.cancelled:
        return "interrupted by the user", "interrupted"
    if ran.too_many:
        return "it started too many processes, and all were ended", "error"
    if ran.code is None:
        return f"ended by {_name_of(ran.signal or 0)}", "error"
    if ran.code > 128:  # as a shell tells of what it ran
        return f"exit code {ran.code}, {_name_of(ran.code - 128)}", "error"
    return f"exit code {ran.code}", "error" if ran.code else "ok"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
