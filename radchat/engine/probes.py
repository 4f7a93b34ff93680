"""What a chat template does, found by rendering made-up conversations once, at load.

Every text in them is a *sentinel* (a random word), so what the template shows, drops, moves or adds
can be read off. The template decides, not a list of model names.

The form it wants conversations in comes first (``probe_form.py``); the rest is found in that form,
here and, where it takes several rounds, in ``probe_history.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radchat.engine.conversation import ToolCall, Turn
from radchat.engine.cuts import common_text
from radchat.engine.facts import KEEP_SWITCHES, Facts
from radchat.engine.probe_form import (
    find_call_form,
    find_closings,
    find_reasoning_form,
    find_said_mark,
)
from radchat.engine.probe_history import find_drops, find_moves
from radchat.engine.probe_subject import CLOCKS, Subject
from radchat.engine.rendering import random_word
from radchat.engine.thinking import EFFORT_SWITCHES
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.tool_probe import find_tool_form
from radchat.errors import ModelBroken


def probe(
    source: str,
    tokenizer: Tokenizer,
    constants: Mapping[str, str] | None = None,
    eos_names: Sequence[str] = (),
) -> Facts:
    """ModelBroken if the template cannot render the simplest conversation: no chat then."""
    subject = Subject(source, tokenizer, constants or {})
    if subject.render([subject.user()], opening=True) is None:
        subject.use(no_tools="empty")
        if subject.render([subject.user()], opening=True) is None:
            raise ModelBroken("the chat template cannot render a single user message")
    # in an order in which each may use what the earlier ones found
    mutable = find_call_form(subject)
    find_reasoning_form(subject)
    find_said_mark(subject)
    closings, stops = find_closings(subject, eos_names)
    subject.stops = stops
    subject.before_stop = closings.get("answer", "").split(stops[0])[0] if stops else ""
    tools = subject.shown([subject.user()], subject.tool_name, tools=True)
    results = _results(subject)
    keep = next((n for n in KEEP_SWITCHES if n in subject.compiled.variables), "")
    return Facts(
        form=subject.form,
        mutable=mutable,
        roles=_roles(subject),
        trims=_trims(subject),
        clock=_clock(subject),
        tools=tools,
        results=results,
        tool_form=find_tool_form(
            subject, shows_tools=tools == "shown", shows_results=results == "shown"
        ),
        two_calls=_two_calls(subject),
        think_switch=subject.think_switch,
        keep_switch=keep,
        switches=_switches(subject),
        openings=_openings(subject),
        closings=closings,
        stops=stops,
        moves=find_moves(subject),
        drops=find_drops(subject),
    )


def _roles(subject: Subject) -> dict[str, str]:
    first, later, word = subject.user(), subject.user(), random_word()
    answer = Turn("assistant", random_word())
    cases: dict[str, list[Turn]] = {
        "system": [Turn("system", word), first],
        "system later": [first, answer, Turn("system", word), later],
        "developer": [Turn("developer", word), first],
        "two users": [first, subject.user(word)],
        "assistant first": [Turn("assistant", word), first],
        "tool": [first, subject.call("c"), subject.result(word)],
    }
    return {name: subject.shown(turns, word) for name, turns in cases.items()}


def _trims(subject: Subject) -> tuple[str, ...]:
    found = []
    for role in ("system", "user", "assistant"):
        word = random_word()
        turn = Turn(role, f" {word} \n")
        turns = {
            "system": [turn, subject.user()],
            "user": [turn],
            "assistant": [subject.user(), turn, subject.user()],
        }[role]
        text = subject.render(turns, opening=True)
        if text and word in text and turn.text not in text:
            found.append(role)
    return tuple(found)


def _clock(subject: Subject) -> str:
    def varies(turns: Sequence[Turn]) -> bool:
        return subject.render(turns, clock=CLOCKS[0]) != subject.render(turns, clock=CLOCKS[1])

    user = subject.user()
    if varies([Turn("system", "s"), user]):
        return "always"
    return "default system prompt" if varies([user]) else "never"


def _results(subject: Subject) -> str:
    word = random_word()
    turns = [subject.user(), subject.call("c"), subject.result(word)]
    return subject.shown(turns, word, tools=True)


def _two_calls(subject: Subject) -> str:
    if subject.form.calls == "raw":
        return "raw"
    words = random_word(), random_word()
    calls = tuple(
        ToolCall(f"a1B2c3D4{n}", subject.tool_name, {"x": word}) for n, word in enumerate(words)
    )
    text = subject.render([subject.user(), Turn("assistant", "", tool_calls=calls)], tools=True)
    if text is None:
        return "refused"
    return "shown" if all(word in text for word in words) else "dropped"


def _openings(subject: Subject) -> dict[str, tuple[str, ...]]:
    user, word = subject.user(), random_word()
    ends: dict[str, list[Turn]] = {
        "user": [user],
        "tool": [user, subject.call("c"), subject.result(random_word())],
    }
    result: dict[str, tuple[str, ...]] = {}
    for role, turns in ends.items():
        found: set[str] = set()
        for switches in subject.think_values():
            for tools in (False, True):
                whole = subject.render(turns, opening=True, tools=tools, switches=switches)
                closed = subject.render(turns, tools=tools, switches=switches)
                answer = Turn("assistant", word)
                answered = subject.render([*turns, answer], tools=tools, switches=switches)
                if whole is not None and closed is not None and answered is not None:
                    start = min(common_text(whole, closed), common_text(whole, answered))
                    found.add(whole[start:])
        result[role] = tuple(sorted(found, key=len, reverse=True))
    return result


def _switches(subject: Subject) -> dict[str, str]:
    """What changing a switch later costs: nothing before the opening, or the conversation."""
    think = subject.think_switch
    pairs: dict[str, tuple[Any, Any]] = {think: (False, True)} if think else {}
    pairs |= {
        name: ("low", "high") for name in EFFORT_SWITCHES if name in subject.compiled.variables
    }
    turns = [subject.user(), Turn("assistant", random_word()), subject.user()]
    result: dict[str, str] = {}
    for name, (one, two) in pairs.items():
        texts = [
            subject.render(turns, opening=True, switches={name: value}) for value in (one, two)
        ]
        closed = subject.render(turns, switches={name: one})
        if texts[0] is None or texts[1] is None or closed is None:
            result[name] = "refused"
        elif texts[0] == texts[1]:
            result[name] = "nothing"
        else:
            before = common_text(texts[0], closed)
            same = common_text(texts[0], texts[1])
            result[name] = "opening" if same >= before else "conversation"
    return result
