"""A program in a Python file: which one is meant, and the arguments typed for it."""

from __future__ import annotations

import inspect
import json
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.chat.options import nearest
from radchat.cli.habits import to_say
from radchat.errors import InvalidInput, UsageError
from radchat.programs.python_file import execute

if TYPE_CHECKING:
    from radchat.programs import Program

MODULE = "__program__"  # what the file is called while it runs: never "__main__"
MAIN = "main"
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def find(words: Sequence[str], note: Callable[[str], None]) -> Program:
    """The program in the file that the words name; the file's own code has run."""
    path, rest = words[0], list(words[1:])
    if not Path(path).is_file():
        _refuse_missing(path, rest)
    if rest:
        given = " ".join(f"--arg {shlex.quote(word)}" for word in rest if "=" in word)
        raise UsageError(
            f"{shlex.join(rest)}: a program has its arguments by name: "
            f"radchat run {shlex.quote(path)} {given or '--arg NAME=VALUE'}"
        )
    return _main(path, execute(path, MODULE), note)


def _refuse_missing(path: str, rest: list[str]) -> None:
    """Ollama's `run MODEL` is a chat here."""
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: name a file with an @program in it")
    if path.endswith(".py"):
        raise UsageError(f"no file {path} here: name a file with an @program in it")
    model = shlex.join([path, *rest[:1]] if len(rest) == 1 else [path])
    raise UsageError(
        f"no file {path} here: `radchat run` runs a program. To talk to a model: "
        f"radchat chat -m {model}" + (f". {to_say(['run', path, *rest])}" if rest else "")
    )


def _main(path: str, module: types.ModuleType, note: Callable[[str], None]) -> Program:
    from radchat.programs import Program

    found = [
        value
        for value in vars(module).values()
        if isinstance(value, Program) and value.function.__module__ == MODULE
    ]
    if not found:
        raise UsageError(
            f"{path} has no program: put @program (from radchat.programs) on a function"
        )
    named = [each for each in found if each.name == MAIN]
    chosen = (named or found)[-1]
    if len(found) > 1 and not named:
        names = ", ".join(each.name for each in found)
        note(f"programs of {path}: {names}. This runs the last; one called {MAIN} would be first")
    return chosen


# --- arguments ---


def arguments(program: Program, pairs: Sequence[str]) -> dict[str, Any]:
    """What `--arg k=v` gives, as the types the program's parameters ask for."""
    wanted, takes_any = _parameters(program)
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--arg {pair}: want NAME=VALUE")
        if name in given:
            raise UsageError(f"--arg {name} is given twice")
        if name not in wanted and not takes_any:
            raise UsageError(_unknown(program, name, wanted))
        given[name] = _value(name, text, wanted.get(name))
    return given


def check(program: Program, given: Mapping[str, Any]) -> None:
    """UsageError where an argument that has no default is not there, or one has no parameter."""
    wanted, takes_any = _parameters(program)
    for name in given:
        if name not in wanted and not takes_any:
            raise UsageError(_unknown(program, name, wanted))
    missing = [n for n, p in wanted.items() if p.default is p.empty and n not in given]
    if missing:
        needs = " ".join(f"--arg {name}={_metavar(wanted[name])}" for name in missing)
        raise UsageError(f"{program.name} needs {', '.join(missing)}: {needs}")


def rows(program: Program, text: str, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of each line of a JSONL text, on top of those given for all."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"{name}:{number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            example = json.dumps(dict.fromkeys(_parameters(program)[0], "..."))
            raise InvalidInput(f"{name}:{number}: want a JSON object, as {example}")
        found.append({**given, **row})
        try:
            check(program, found[-1])
        except UsageError as error:
            raise InvalidInput(f"{name}:{number}: {error.message}") from error
    if not found:
        raise InvalidInput(f"{name} has no rows: want a JSON object a line")
    return found


def _parameters(program: Program) -> tuple[dict[str, inspect.Parameter], bool]:
    """By name, without the state; and whether any other is taken too."""
    try:
        signature = inspect.signature(program.function, eval_str=True)
    except Exception:  # an annotation that means nothing: the words are taken as they are
        signature = inspect.signature(program.function)
    _, *parameters = signature.parameters.values()
    by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return by_name, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _unknown(program: Program, name: str, wanted: Mapping[str, Any]) -> str:
    near = nearest(name, tuple(wanted))
    has = f"it has {', '.join(wanted)}" if wanted else "it has none"
    return f"{program.name} has no argument {name!r}: " + (f"did you mean {near}?" if near else has)


def _value(name: str, text: str, parameter: inspect.Parameter | None) -> Any:
    kind = None if parameter is None else parameter.annotation
    if parameter is not None and kind is parameter.empty:
        kind = str if parameter.default in (parameter.empty, None) else type(parameter.default)
    for each in _kinds(kind):
        try:
            return _read(text, each)
        except ValueError:
            continue
    raise UsageError(f"--arg {name}={text}: want {_word(kind)}")


def _kinds(kind: Any) -> Iterator[Any]:
    """Of a union each, the plainest reading last."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        yield from sorted(typing.get_args(kind), key=lambda each: each is str)
    else:
        yield kind


def _read(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind) or kind
    if origin is bool:
        if text.lower() not in YES + NO:
            raise ValueError(text)
        return text.lower() in YES
    if origin in (int, float):
        return origin(text)
    if origin is types.NoneType:
        if text not in ("null", "None"):
            raise ValueError(text)
        return None
    if origin is typing.Literal:
        for choice in typing.get_args(kind):
            if str(choice) == text:
                return choice
        raise ValueError(text)
    if origin in (list, dict, tuple, set) or origin in (Sequence, Mapping):
        value = json.loads(text)
        shape = dict if origin in (dict, Mapping) else list
        if not isinstance(value, shape):
            raise ValueError(text)
        return origin(value) if origin in (tuple, set) else value
    return text


def _word(kind: Any) -> str:
    return " or ".join(_word_of(each) for each in _kinds(kind))


def _word_of(kind: Any) -> str:
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    words: dict[Any, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        types.NoneType: "null",
        dict: "a JSON object",
        Mapping: "a JSON object",
    }
    return words.get(origin, "a JSON list")


def _metavar(parameter: inspect.Parameter) -> str:
    words = {int: "N", float: "N", bool: "true", list: "'[...]'", dict: "'{...}'"}
    kind = typing.get_origin(parameter.annotation) or parameter.annotation
    return words.get(kind, "TEXT")
