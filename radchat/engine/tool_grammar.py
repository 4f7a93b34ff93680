"""What an answer with tools may be: words, then calls, then its end.

Nothing but further calls may follow a call, so a model can't go on and make up its results. The
words contain nothing that a call begins with: what looks like a call is one, whole and valid.

Of an agent's ten tools, with SmolLM2's tokenizer: 21 ms to compile, once; a mask 0.04 ms, the
slowest 0.4 (2026-12-01).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from radchat.engine import schemas
from radchat.engine.grammar import Grammar
from radchat.engine.tool_form import HERMES, ToolForm
from radchat.engine.tool_order import in_order
from radchat.errors import InvalidInput

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | Mapping[str, object]  # {"name"}
Tools: TypeAlias = Sequence[Mapping[str, Any]]

ANY = {"type": "object"}
_ANYTHING = r"/(.|\n)*/"


def tool_grammar(
    form: ToolForm,
    tools: Tools,
    choice: ToolChoice = "auto",
    *,
    after: str = "",
    parallel: bool = True,
) -> Grammar:
    """``tools``: ``{"name", "parameters"}`` each. Equal tools give an equal grammar, compiled
    once. ``after``: the mark that ends the reasoning before the answer. A ``choice`` by name: that
    tool must be called, and no other can be. Not ``parallel``: one call at most.
    """
    if isinstance(choice, Mapping):
        tools = [tool for tool in tools if tool["name"] == choice["name"]]
        choice = "required"
    if not parallel:
        form = replace(form, is_single=True)
    listed = [
        {"name": tool["name"], "parameters": in_order(tool.get("parameters", ANY))}
        for tool in tools
    ]
    listed.sort(key=lambda tool: str(tool["name"]))
    source = {"form": form.to_json(), "tools": listed, "choice": choice}
    return Grammar("tools", json.dumps(source, ensure_ascii=False), after=after)


def parsed(value: Any) -> tuple[ToolForm, Tools, str]:
    """What ``tool_grammar`` wrote; a list alone is of tools in Hermes' form."""
    form, choice, tools = HERMES, "auto", value
    if isinstance(value, dict) and "form" in value:
        form, choice, tools = ToolForm(**value["form"]), value["choice"], value["tools"]
    if not isinstance(tools, list) or not tools:
        raise InvalidInput("tools: want a list of tools", field="grammar")
    for index, tool in enumerate(tools):
        if not (isinstance(tool, Mapping) and isinstance(tool.get("name"), str) and tool["name"]):
            raise InvalidInput(f"tools[{index}]: want an object with a name", field="grammar")
    return form, tools, choice


def to_lark(form: ToolForm, tools: Tools, choice: str, control: Mapping[str, int]) -> str:
    """For llguidance. ``control``: texts that are tokens of their own, and their ids.

    The parameters are JSON that it compiles; whoever calls has checked them one by one.
    """

    def fixed(text: str) -> str:
        return " ".join(_pieces(text, control))

    calls = [
        f"{fixed(tool['name'] + form.middle)} "
        f"%json {json.dumps(schemas.with_style(tool.get('parameters', ANY)))}"
        for tool in tools
    ]
    first = (form.open + form.begin)[len(form.trigger) :]
    end = fixed(form.end)
    rules = [
        f"call: {' | '.join(f'call_{i}' for i in range(len(calls)))}",
        *(f"call_{i}: {call} ending" for i, call in enumerate(calls)),
    ]
    if form.has_id:
        rules.append(f"ending: {fixed(form.before_id)} ID {fixed(form.after_id)}")
        rules.append("ID: /[a-zA-Z0-9]{9}/")
    else:
        rules.append(f"ending: {end or chr(34) * 2}")
    more = "" if form.is_single else f" ({fixed(form.between + form.begin)} call)*"
    rules.append(f"calls: {fixed(first)} call{more} {fixed(form.close)}")
    trigger = fixed(form.trigger)
    if choice == "required":  # at once: in words of its own a small model never gets to it
        rules.append(f"start: {trigger} calls")
        return _lark(rules)
    text = json.dumps(form.trigger, ensure_ascii=False)
    # also where the mark is a token of its own: spelled out, it would be read as one
    rules.append(f"PLAIN: {_ANYTHING} & ~({_ANYTHING} {text} {_ANYTHING})")
    if choice == "none":
        rules.append("start: PLAIN")
    elif form.trigger in control:
        rules.append(f"start: PLAIN {trigger} calls | PLAIN")
    else:
        rules += [f"words[lazy]: {_ANYTHING} {text}", "start: words calls | PLAIN"]
    return _lark(rules)


def _lark(rules: Sequence[str]) -> str:
    return "%llguidance {}\n" + "\n".join(rules) + "\n"


def _pieces(text: str, control: Mapping[str, int]) -> Iterator[str]:
    """Lark of a fixed text, control tokens by their ids."""
    while text:
        found = [(at, -len(name), name) for name in control if (at := text.find(name)) >= 0]
        at, _, name = min(found, default=(len(text), 0, ""))
        if at:
            yield json.dumps(text[:at], ensure_ascii=False)
        if name:
            yield f"<[{control[name]}]>"
        text = text[at + len(name) :]
