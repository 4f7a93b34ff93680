"""What an answer must be of: ``--schema`` and its like, as the argument of a `generate` call.

What a file says is the daemon's to judge, for it has the model's tokens; only what is no JSON at
all is refused here, by the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from radchat.chat.files import load
from radchat.errors import InvalidInput, UsageError


def grammar_argument(
    *,
    schema: str | None,
    lenient: bool,
    regex: str | None,
    grammar: str | None,
    choice: Sequence[str] | None,
) -> dict[str, Any] | None:
    """None where none is asked for. Raises UsageError and InvalidInput."""
    given = {"--schema": schema, "--regex": regex, "--grammar": grammar, "--choice": choice}
    names = [name for name, value in given.items() if value is not None and value != []]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)}: an answer is held to one of them")
    if lenient and schema is None:
        raise UsageError("--schema-lenient goes with --schema")
    if schema is not None:
        return {"kind": "json_schema", "source": _schema(schema), "lenient": lenient}
    if regex is not None:
        return {"kind": "regex", "source": regex}
    if grammar is not None:
        return {"kind": "lark", "source": load(grammar)["text"]}
    if choice:
        return {"kind": "choices", "source": json.dumps(list(choice))}
    return None


def _schema(value: str) -> str:
    """A file; or the schema itself, where it begins as one."""
    is_inline = value.lstrip().startswith("{") or value.strip() in ("true", "false")
    name, text = ("--schema", value) if is_inline else (value, load(value)["text"])
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"{name} is not JSON: {error.msg} ({at})", field="schema") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} can't be read as JSON: {error}", field="schema") from error
    return text
