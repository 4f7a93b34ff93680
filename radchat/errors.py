"""Every error a user can meet, with its exit code (docs/cli.md) and its HTTP status.

An error crosses the socket as ``{"code", "message", "exit_code", …}`` and is raised again on the
other side as the same class. The message names the thing and the way out.

    RadchatError            1
    ├── UsageError          2   the words on the command line
    ├── InvalidInput       42   the content: text, ids, a parameter
    ├── ConfigInvalid      52   config.toml or an environment variable
    ├── LimitReached       53   turns, steps or tokens: it ends before it is done
    ├── ToolFailed         54   a tool, or calls that can't be read after retries
    ├── ApprovalNeeded     55   something must be permitted, and nobody is there to ask
    ├── ContextOverflow    56   prompt longer than the context or the KV pool
    ├── OutputInvalid      57   an answer that was cut off under a grammar, or does not meet it
    ├── NotFound           66   session, branch, message, model
    ├── Unreachable        69   daemon, hub, model source
    ├── Busy               75   try again
    ├── ModelBroken         1   weights or tokenizer that cannot be used
    └── Interrupted       130   Ctrl+C, where JSON was asked for (143: SIGTERM)
"""

from __future__ import annotations

from typing import Any, ClassVar


class RadchatError(Exception):
    """The base: something went wrong that the user should read in one sentence."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data  # JSON values; sent along, e.g. both numbers of an overflow

    def to_json(self) -> dict[str, Any]:
        return {
            **self.data,
            "code": self.code,
            "message": self.message,
            "exit_code": self.exit_code,
        }


class UsageError(RadchatError):
    code = "usage"
    exit_code = 2
    http_status = 400


class InvalidInput(RadchatError):
    code = "invalid_input"
    exit_code = 42
    http_status = 400


class ConfigInvalid(RadchatError):
    code = "config_invalid"
    exit_code = 52
    http_status = 400


class LimitReached(RadchatError):
    code = "limit"
    exit_code = 53


class ToolFailed(RadchatError):
    code = "tool_failed"
    exit_code = 54


class ApprovalNeeded(RadchatError):
    code = "approval_needed"
    exit_code = 55


class ContextOverflow(RadchatError):
    code = "context_length_exceeded"
    exit_code = 56
    http_status = 400


WAYS_OUT = "/compact in chat, fork from an earlier turn, or begin a new session"


def context_overflow(
    prompt_tokens: int, limit: int, *, at_least: bool = False, most: int | None = None
) -> ContextOverflow:
    """For a prompt that leaves no room for an answer; told with both numbers. ``at_least``: it was
    not tokenized to the end. ``most``: the context could be so large.
    """
    least = "at least " if at_least else ""
    larger = f" (or --ctx, up to {most:,})" if most is not None and most > limit else ""
    return ContextOverflow(
        f"the prompt has {least}{prompt_tokens:,} tokens and the context holds {limit:,}, the "
        f"answer included; the ways out: {WAYS_OUT}{larger}",
        prompt_tokens=prompt_tokens,
        limit=limit,
        **({"at_least": True} if at_least else {}),
    )


class OutputInvalid(RadchatError):
    """``answer``: what came of it, in the shape of `ask --json`."""

    code = "output_invalid"
    exit_code = 57
    http_status = 422


class NotFound(RadchatError):
    code = "not_found"
    exit_code = 66
    http_status = 404


class Unreachable(RadchatError):
    code = "unreachable"
    exit_code = 69
    http_status = 503


class Busy(RadchatError):
    code = "busy"
    exit_code = 75
    http_status = 503


class ModelBroken(RadchatError):
    code = "model_broken"
    http_status = 500


class Interrupted(RadchatError):
    """What a signal ends, told as every other failure where JSON was asked for."""

    code = "interrupted"
    exit_code = 130


class Terminated(Interrupted):
    code = "terminated"
    exit_code = 143


_BY_CODE: dict[str, type[RadchatError]] = {
    cls.code: cls
    for cls in (
        RadchatError,
        UsageError,
        InvalidInput,
        ConfigInvalid,
        LimitReached,
        ToolFailed,
        ApprovalNeeded,
        ContextOverflow,
        OutputInvalid,
        NotFound,
        Unreachable,
        Busy,
        ModelBroken,
    )
}


def from_json(body: dict[str, Any]) -> RadchatError:
    """The error that ``to_json`` wrote; an unknown code becomes the base class."""
    data = {k: v for k, v in body.items() if k not in ("code", "message", "exit_code")}
    cls = _BY_CODE.get(str(body.get("code")), RadchatError)
    return cls(str(body.get("message", "unknown error")), **data)
