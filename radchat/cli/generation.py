"""The flags every generating command takes, and the `generate` call they make.

``generation_flags`` adds them to a command's own: the command gets one ``Generation``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from radchat.chat.files import load
from radchat.chat.options import parse_option
from radchat.config import parse_dtype
from radchat.errors import InvalidInput, UsageError


@dataclass(frozen=True, slots=True)
class Generation:
    """How an answer is made. None = what the model, the session or the daemon has in force."""

    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="which model answers")
    ] = None
    system: Annotated[
        str | None, typer.Option("-s", "--system", metavar="SYS", help="system prompt")
    ] = None
    file: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="send a file along (repeat)"),
    ] = None
    option: Annotated[
        list[str] | None, typer.Option("-o", "--option", metavar="k=v", help="any setting (repeat)")
    ] = None
    temp: Annotated[float | None, typer.Option("--temp", help="temperature; 0 = exact")] = None
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="only the likeliest, up to this share")
    ] = None
    top_k: Annotated[int | None, typer.Option("--top-k", help="only the K likeliest tokens")] = None
    min_p: Annotated[
        float | None, typer.Option("--min-p", help="none less likely than this share of the best")
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="the same seed draws the same; else a fresh one")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="at most so long an answer")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="end before it (repeat)")
    ] = None
    context: Annotated[
        int | None, typer.Option("--ctx", metavar="N", help="context, in tokens")
    ] = None
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="auto|fp32|bf16|int4", help="of weights and KV")
    ] = None
    exact: Annotated[bool, typer.Option("--exact", help="fp32, same answer whatever is cached")] = (
        False
    )
    think: Annotated[
        str | None, typer.Option("--think", metavar="[off|low|medium|high]", help="reasoning")
    ] = None
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="keep nothing on disk")] = False
    raw: Annotated[bool, typer.Option("--raw", help="the model's own text: no Markdown shown")] = (
        False  # how it is shown, nothing of the call
    )

    def arguments(self) -> dict[str, Any]:
        """Its part of a `generate` call; raises UsageError and InvalidInput for bad values."""
        args: dict[str, Any] = {"options": self.sampling(), "ephemeral": self.ephemeral}
        if self.model:
            args["model"] = self.model
        if self.system is not None:
            args["system"] = self.system
        if self.file:
            args["files"] = [load(path) for path in self.file]
        if self.dtype is not None:
            args["dtype"] = check_dtype(self.dtype)
        if self.exact:
            if self.dtype not in (None, "fp32"):
                raise UsageError(
                    f"--dtype {self.dtype} and --exact: exact is fp32, take one of them"
                )
            args["exact"] = True
        if self.think:
            args["think"] = self.think
        return args

    def refuse(self, why: str, *names: str) -> None:
        """UsageError where one of these, or with no names any at all, is given: it would do
        nothing, and nothing is ignored silently.
        """
        for flag in _flags():
            value = getattr(self, flag.name)
            given = value is not None and value is not False and value != []  # 0 is given
            if given and (not names or flag.name in names):
                info = get_args(flag.annotation)[1]  # Typer takes an option's first name apart
                option = "/".join((info.default, *info.param_decls))
                raise UsageError(f"{option} has no meaning here: {why}")

    def sampling(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for pair in self.option or ():
            key, value = parse_option(pair)
            if key == "stop":
                options.setdefault("stop", []).append(value)
            else:
                options[key] = value
        given = {
            "temperature": self.temp,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "num_ctx": self.context,
        }
        options |= {key: value for key, value in given.items() if value is not None}
        if self.stop:
            options["stop"] = [*options.get("stop", []), *self.stop]
        for key, value in options.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
                raise InvalidInput(f"{key}: want a number (got {value})", field=key)
        return options


def check_dtype(text: str) -> str:
    try:
        return parse_dtype(text)
    except ValueError as error:
        raise UsageError(f"--dtype {text}: {error}") from error


@functools.cache
def _flags() -> list[inspect.Parameter]:
    hints = get_type_hints(Generation, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(Generation)
    ]


def generation_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command the flags of Generation in the place of its parameter ``generation``."""
    own = inspect.signature(command, eval_str=True)
    kept = [p for p in own.parameters.values() if p.name != "generation"]
    assert len(kept) < len(own.parameters), "the command has no parameter `generation`"
    names = {p.name for p in _flags()} - {p.name for p in kept}

    @functools.wraps(command)
    def with_flags(**values: Any) -> Any:
        chosen = {name: values.pop(name) for name in names}
        return command(**values, generation=Generation(**chosen))

    flags = [p for p in _flags() if p.name in names]
    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept), *flags]
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    del with_flags.__wrapped__  # Typer would read the signature behind it
    return with_flags


assert all(get_args(p.annotation) for p in _flags())
