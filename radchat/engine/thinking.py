"""A wanted level of reasoning in a template's own switches."""

from __future__ import annotations

from typing import Any

from radchat.engine.facts import Facts
from radchat.errors import InvalidInput

LEVELS = ("off", "on", "low", "medium", "high")
EFFORT_SWITCHES = ("reasoning_effort", "effort")
_WORKS = ("opening", "conversation")  # what changing a switch costs: it changes something


def thinking(facts: Facts, level: str) -> tuple[dict[str, Any], str | None]:
    """The switches for one of LEVELS, and a line for the user where that is not what was asked.

    InvalidInput for another word. A switch that the template has and never looks at counts as none.
    """
    if level not in LEVELS:
        raise InvalidInput(f"think: want {', '.join(LEVELS)} (got {level!r})", field="think")
    on_off = facts.think_switch if facts.switches.get(facts.think_switch) in _WORKS else ""
    efforts = [name for name in EFFORT_SWITCHES if facts.switches.get(name) in _WORKS]
    if not on_off and not efforts:
        return {}, _no_switch(facts, level)
    if level in ("off", "on"):
        if on_off:
            return {on_off: level == "on"}, None
        if level == "on":  # it reasons by itself, with the effort its makers chose
            return {}, None
        return {efforts[0]: "low"}, "this model's reasoning can't be switched off: low is its least"
    wanted: dict[str, Any] = {on_off: True} if on_off else {}
    if efforts:
        return {**wanted, efforts[0]: level}, None
    return wanted, f"this model's reasoning is on or off: {level} means on"


def _no_switch(facts: Facts, level: str) -> str | None:
    if facts.form.reasoning == "none":
        return None if level == "off" else "this model has no reasoning to switch"
    return "this model has no switch for its reasoning"
