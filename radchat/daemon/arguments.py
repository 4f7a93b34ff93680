"""What a client may ask of ``generate``, checked field by field before anything happens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from radchat.errors import InvalidInput

Kind = Literal["turn", "retry", "edit", "continue"]
MAX_N = 64

# JSON types of the sampling options; ranges are the engine's to check (engine/request.py).
OPTIONS: Mapping[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "max_tokens": int,
    "num_ctx": int,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "logprobs": int,
    "stop": list,
}


@dataclass(frozen=True, slots=True)
class File:
    """A loaded file: its text goes before the prompt's, under its name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ChatHead:
    """The HEAD an open chat holds itself; the stored one is somebody else's."""

    branch: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Generate:
    """One generating command. Which session and where in it; what is said; how it is sampled."""

    kind: Kind = "turn"
    text: str = ""
    files: tuple[File, ...] = ()
    system: str | None = None
    session: str | None = None
    new_session: bool = False
    name: str | None = None  # of the new session
    ephemeral: bool = False
    at: str | None = None  # REF the turn follows; default HEAD
    ref: str | None = None  # REF to retry, edit or continue; default the last one
    branch: str | None = None  # the name of the branch this makes
    head: ChatHead | None = None
    n: int = 1
    model: str | None = None
    dtype: str | None = None
    exact: bool = False
    think: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    terminal: str | None = None
    folder: str = "/"
    only_terminal: bool = False

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Generate:
        """From the JSON object of a call; InvalidInput names the field that is wrong."""
        values = dict(body)
        where = values.pop("where", None) or {}
        new_session = values.pop("new_session", None) or False
        values["new_session"] = bool(new_session)
        if isinstance(new_session, str):
            values["name"] = new_session
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidInput(f"unknown field {name!r}", field=name)
        head = values.get("head")
        if head is not None:
            values["head"] = ChatHead(_text(head, "branch"), _text(head, "message"))
        files = values.get("files") or []
        if not isinstance(files, list):
            raise InvalidInput("files: want a list", field="files")
        values["files"] = tuple(
            File(_text(f, "name") or "file", _text(f, "text") or "") for f in files
        )
        values["options"] = _options(values.get("options") or {})
        ask = cls(
            **{k: v for k, v in values.items() if v is not None},
            terminal=_text(where, "terminal"),
            folder=_text(where, "folder") or "/",
        )
        ask._check()
        return ask

    def _check(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidInput(f"kind: want one of {', '.join(get_args(Kind))}", field="kind")
        for name in ("text", "system", "session", "at", "ref", "branch", "model", "dtype", "think"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidInput(f"{name}: want text", field=name)
        if not isinstance(self.n, int) or not 1 <= self.n <= MAX_N:
            raise InvalidInput(f"n: want 1 to {MAX_N} (got {self.n!r})", field="n")
        if self.kind in ("turn", "edit") and not (self.text.strip() or self.files):
            raise InvalidInput("nothing to say: the message is empty", field="text")


def _text(body: Any, name: str) -> str | None:
    value = body.get(name) if isinstance(body, Mapping) else None
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name}: want text", field=name)
    return value


def _options(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise InvalidInput("options: want an object", field="options")
    options: dict[str, Any] = {}
    for name, value in body.items():
        want = OPTIONS.get(name)
        if want is None:
            known = ", ".join(sorted(OPTIONS))
            raise InvalidInput(f"unknown option {name!r} (known: {known})", field=name)
        if value is None:
            continue
        options[name] = _option(name, value, want)
    return options


def _option(name: str, value: Any, want: type) -> Any:
    if want is list:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise InvalidInput(f"{name}: want text or a list of texts", field=name)
        return tuple(values)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name}: want a number (got {value!r})", field=name)
    if want is float:
        return float(value)
    if not math.isfinite(value) or value != int(value):
        raise InvalidInput(f"{name}: want a whole number (got {value!r})", field=name)
    return int(value)
