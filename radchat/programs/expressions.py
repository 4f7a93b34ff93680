r"""What is said: texts and holes that the model fills, put together with ``+``. Plain data.

assistant("Name: " + gen("name", stop="\n") + "\nLikes tea: " + select("tea", ["yes", "no"]))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from radchat.chat.options import OPTIONS, nearest

Role: TypeAlias = Literal["system", "user", "assistant", "raw"]


class Joinable:
    """What ``+`` puts together."""

    __slots__ = ()

    def __add__(self, other: object) -> Expression:
        return Expression((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: object) -> Expression:
        return Expression((*parts_of(other), *parts_of(self)))


@dataclass(frozen=True, slots=True)
class Text:
    """What is put into the model's mouth."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Joinable):
    """A hole that the model fills."""

    name: str
    max_tokens: int | None = None
    n: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  # sampling, where it is said
    grammar: Mapping[str, Any] | None = None  # as it travels: kind, source, lenient

    def __str__(self) -> str:
        return f'gen("{self.name}")'


@dataclass(frozen=True, slots=True)
class Select(Joinable):
    """A hole that takes the likeliest of some texts."""

    name: str
    choices: tuple[str, ...]

    def __str__(self) -> str:
        return f'select("{self.name}")'


Part: TypeAlias = Text | Gen | Select


@dataclass(frozen=True, slots=True)
class Expression(Joinable):
    """Parts, one after the other."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for part in self.parts:
            if not isinstance(part, Text):
                if part.name in seen:
                    raise ValueError(f"{part} is twice in one expression: the first would be lost")
                seen.add(part.name)


@dataclass(frozen=True, slots=True)
class Message:
    """What one says; ``s += Message``."""

    role: Role
    parts: tuple[Part, ...]

    def __add__(self, other: object) -> Expression:
        raise TypeError(
            f"{self.role}(...) is a whole message: add each to the state with its own +="
        )

    __radd__ = __add__


def parts_of(value: object) -> tuple[Part, ...]:
    """The parts of text, a hole or an expression."""
    if isinstance(value, str):
        return (Text(value),) if value else ()
    if isinstance(value, Gen | Select):
        return (value,)
    if isinstance(value, Expression):
        return value.parts
    if isinstance(value, Message):
        raise TypeError(f"{value.role}(...) is a whole message: it goes into no other text")
    raise TypeError(f"text, gen and select go together, not {_named(value)}: write str(...)")


def _named(value: object) -> str:
    return f"{type(value).__name__} {value!r:.40}"


# -- the words of the language -----------------------------------------------------------------


def system(text: str) -> Message:
    """The system message."""
    return _told("system", text)


def user(text: str) -> Message:
    """A message to the model."""
    return _told("user", text)


def assistant(expression: str | Joinable) -> Message:
    """What the model says: texts put into its mouth, and what it makes of the holes.

    Two in a row are one message.
    """
    return Message("assistant", parts_of(expression))


def _told(role: Role, text: str) -> Message:
    if isinstance(text, Joinable):
        raise TypeError(f"{role}(...) takes text: the model speaks in assistant(...)")
    if not isinstance(text, str):
        raise TypeError(f"{role}(...) takes text, not {_named(text)}: write str(...)")
    return Message(role, (Text(text),))


def gen(
    name: str,
    max_tokens: int | None = None,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    n: int = 1,
    regex: str | None = None,
    schema: Any = None,
    lenient: bool = False,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    **options: Any,
) -> Gen:
    """The model goes on from here, and what it says is ``s[name]``.

    One of ``regex``, ``schema`` (a dict, JSON text, or a pydantic class), ``choices`` and
    ``grammar`` (Lark) says what it may be; with a schema ``s[name]`` is the value. ``lenient``:
    what of the schema can't be enforced is left out, and said. With ``n`` > 1 it is the list of
    that many samples, and the state goes on with the first.
    """
    _check_name("gen", name)
    for option in options:
        if option not in OPTIONS:
            near = nearest(option, (*OPTIONS, "regex", "schema", "choices", "grammar", "lenient"))
            hint = f"did you mean {near}?" if near else f"known: {', '.join(OPTIONS)}"
            raise TypeError(f'gen("{name}"): unknown option {option!r}: {hint}')
    for what, value in (("max_tokens", max_tokens), ("n", n)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f'gen("{name}"): {what}={value!r}: want a whole number from 1')
    given = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "stop": [stop] if isinstance(stop, str) else None if stop is None else list(stop),
        **options,
    }
    said = {key: value for key, value in given.items() if value is not None}
    held = _grammar(name, regex, schema, choices, grammar, lenient=lenient)
    return Gen(name, max_tokens, n, said, held)


def select(name: str, choices: Sequence[str]) -> Select:
    """The likeliest of ``choices`` comes next, by the mean log-probability of its tokens."""
    _check_name("select", name)
    return Select(name, _choices(f'select("{name}")', choices))


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{what}({name!r}): the first is a name, for s[name]")


def _choices(what: str, choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not all(isinstance(each, str) and each for each in choices):
        raise TypeError(f"{what}: choices are a list of texts, none of them empty")
    if not choices:
        raise ValueError(f"{what}: no choices to take from")
    if len(set(choices)) != len(choices):
        raise ValueError(f"{what}: the same choice is there twice")
    return tuple(choices)


def _grammar(
    name: str,
    regex: str | None,
    schema: Any,
    choices: Sequence[str] | None,
    grammar: str | None,
    *,
    lenient: bool,
) -> dict[str, Any] | None:
    sources: dict[str, str] = {}
    if regex is not None:
        sources["regex"] = regex
    if schema is not None:
        sources["json_schema"] = _schema(schema)
    if choices is not None:
        sources["choices"] = json.dumps(_choices(f'gen("{name}")', choices))
    if grammar is not None:
        sources["lark"] = grammar
    if len(sources) > 1:
        raise ValueError(f'gen("{name}"): one of regex, schema, choices and grammar, not more')
    for kind, source in sources.items():
        return {"kind": kind, "source": source, "lenient": lenient}
    return None


def _schema(schema: Any) -> str:
    if hasattr(schema, "model_json_schema"):  # a pydantic class; never imported here
        schema = schema.model_json_schema()
    return schema if isinstance(schema, str) else json.dumps(schema)
