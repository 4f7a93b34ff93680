"""A grammar as a client asks for it, and what a text is under it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from radchat.daemon.handing import beside
from radchat.engine.grammar import Grammar, GrammarKind
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded
    from radchat.engine.grammars import Compiled


class GrammarAsked(TypedDict):
    kind: GrammarKind
    source: str
    lenient: NotRequired[bool]


async def compiled(
    loaded: Loaded, asked: GrammarAsked, say: Callable[[Event], None], after: str = ""
) -> Compiled:
    """On a thread of its own: a hostile one keeps neither the event loop nor the engine waiting.
    What of a lenient schema is not enforced is told.
    """
    grammar = Grammar(asked["kind"], asked["source"], asked.get("lenient", False), after)
    grammars = loaded.grammars
    found = await beside(lambda: grammars.compile(grammar))
    for text in found.warnings:
        say(Event("notice", {"text": text, "code": "schema"}))
    return found


def judged(grammar: Grammar | None, text: str) -> dict[str, Any]:
    """``data`` of a text under a schema; ``schema_error`` where it does not hold."""
    if grammar is None or grammar.kind != "json_schema":
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {"schema_error": f"the output is no whole JSON: {error}"}
    if not grammar.lenient:  # nothing else can have been said
        return {"data": data}
    import jsonschema

    validator = jsonschema.validators.validator_for(json.loads(grammar.source))
    wrong = next(validator(json.loads(grammar.source)).iter_errors(data), None)
    if wrong is None:
        return {"data": data}
    return {"data": data, "schema_error": f"{wrong.json_path}: {wrong.message}"}
