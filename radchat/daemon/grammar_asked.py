"""A grammar as a client asks for it, and what a text is under it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, cast

from radchat.daemon.handing import beside
from radchat.engine.grammar import Grammar, GrammarKind
from radchat.engine.request import Finished, FinishReason, Request
from radchat.engine.tool_calls import CallSplitter
from radchat.engine.tool_grammar import parsed as parsed_tools
from radchat.engine.tool_grammar import tool_grammar
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.daemon.arguments import Generate
    from radchat.daemon.loaded import Loaded
    from radchat.daemon.prepared import Prepared
    from radchat.engine.grammars import Compiled


class _Lenient(TypedDict, total=False):
    lenient: bool


class GrammarAsked(_Lenient):
    kind: GrammarKind
    source: str


async def compiled(
    loaded: Loaded, asked: GrammarAsked, say: Callable[[Event], None], after: str = ""
) -> Compiled:
    """On a thread of its own: a hostile one keeps neither the event loop nor the engine waiting.
    What of a lenient schema is not enforced is told.
    """
    grammar = Grammar(asked["kind"], asked["source"], asked.get("lenient", False), after)
    grammars = loaded.grammars
    found = await beside(lambda: grammars.compile(grammar))
    if found.warnings:
        text = f"not enforced of the schema, only checked afterwards: {', '.join(found.warnings)}"
        say(Event("notice", {"text": text, "code": "schema", "ignored": list(found.warnings)}))
    return found


async def of_answer(
    ask: Generate, prepared: Prepared, loaded: Loaded, say: Callable[[Event], None]
) -> Compiled | None:
    """What an answer must be of; one that is gone on with, what it began with. A model that thinks
    first may think freely.
    """
    asked, after = ask.grammar, ""
    if prepared.plan.cut is not None:
        stored = dict((prepared.plan.cut.sampling or {}).get("grammar") or {})
        after = str(stored.pop("after", ""))
        asked = cast("GrammarAsked", stored) if stored else None
    elif prepared.opens_reasoning or ask.think not in (None, "off"):
        after = loaded.template.facts.form.close_mark
    if ask.tools and prepared.plan.cut is None:
        form, tools = loaded.template.tool_form, ask.tools
        grammar = tool_grammar(form, tools, ask.tool_choice, after=after, parallel=ask.parallel)
        return await beside(lambda: loaded.grammars.compile(grammar))
    return None if asked is None else await compiled(loaded, asked, say, after)


def calls_of(under: Compiled | None) -> CallSplitter | None:
    """Reads the calls of an answer that may have some."""
    if under is None or under.grammar.kind != "tools":
        return None
    form, tools, _ = parsed_tools(json.loads(under.grammar.source))
    return CallSplitter(form, [str(tool["name"]) for tool in tools])


def is_whole(end: Finished | None, request: Request) -> bool:
    """It has come to its own end: not to a limit, nor to a stop string."""
    if end is None or end.reason != FinishReason.STOP:
        return False
    return end.stopped or not request.params.stop


def judged(grammar: Grammar | None, text: str, *, is_whole: bool = True) -> dict[str, Any]:
    """``data`` of a text under a schema; ``schema_error`` where it does not hold. ``is_whole``: it
    was not cut off, so it may count as the data it can be read as.
    """
    if grammar is None or grammar.kind != "json_schema":
        return {}
    if not is_whole:
        return {"schema_error": "the answer was cut off"}
    try:
        data = json.loads(text, parse_float=_real)
    except (ValueError, RecursionError) as error:
        return {"schema_error": f"the answer can't be read as JSON: {error}"}
    if not grammar.lenient:  # nothing else can have been said
        return {"data": data}
    from radchat.engine import schema_verdict, schemas

    wrong = schema_verdict.invalid(text, schemas.parsed(grammar.source))
    return {"data": data, **({"schema_error": wrong} if wrong else {})}


def _real(text: str) -> float:
    """JSON has no word for what 1e999 is read as."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number of it is too large")
    return number
