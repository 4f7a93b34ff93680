"""What a template does to old turns as a conversation goes on: moves them, drops reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from radchat.engine.conversation import Turn
from radchat.engine.cuts import common_text
from radchat.engine.probe_subject import Subject
from radchat.engine.rendering import random_word

MAX_DRIFT = 64  # characters; the largest drift seen is 36, the smallest moved text 768


def find_moves(subject: Subject) -> dict[str, str]:
    """What stands elsewhere, or further down, in a later prompt than in the one before it."""
    result: dict[str, str] = {}
    for case in ("plain", "system", "plain+tools", "system+tools"):
        for switches in subject.think_values():
            for turns in _rounds(subject, case):
                moved = _moved(subject, turns, tools="tools" in case, switches=switches)
                if moved:
                    result.setdefault(case, moved)
    return result


def find_drops(subject: Subject) -> tuple[str, ...]:
    """After what an answer's reasoning is no longer shown."""
    if subject.form.reasoning == "none":
        return ()
    first, second = random_word(), random_word()
    switches = {subject.think_switch: True} if subject.think_switch else {}
    plain = [
        *(subject.user(), Turn("assistant", random_word(), first), subject.user()),
        *(Turn("assistant", random_word(), second), subject.user()),
    ]
    called = [subject.user(), subject.call("c", first), subject.result(random_word())]
    cases = (
        ("tool result", called, True),
        ("next user", plain[:3], False),
        ("a round later", plain, False),
    )
    gone = []
    for name, turns, tools in cases:
        text = subject.render(turns, opening=True, tools=tools, switches=switches)
        if text is not None and first not in text:
            gone.append(name)
    return tuple(gone)


def _rounds(subject: Subject, case: str) -> Iterator[list[Turn]]:
    """Conversations of three rounds; every beginning that asks for an answer is a prompt."""
    head = [Turn("system", random_word())] if case.startswith("system") else []
    plain: list[Turn] = []
    for _ in range(3):
        plain += [subject.user(), Turn("assistant", random_word())]
    yield [*head, *plain]
    if "tools" in case and subject.form.calls == "shown":
        called: list[Turn] = []
        for n in range(3):
            call_id = f"a1B2c3D4{n}"
            called += [
                subject.user(),
                subject.call(random_word(), call_id=call_id),
                subject.result(random_word(), call_id),
                Turn("assistant", random_word()),
            ]
        yield [*head, *called]


def _moved(
    subject: Subject, turns: Sequence[Turn], *, tools: bool, switches: Mapping[str, Any]
) -> str:
    prompts = [
        subject.render(turns[:n], opening=True, tools=tools, switches=switches)
        for n in range(1, len(turns) + 1)
        if turns[n - 1].role in ("user", "tool")
    ]
    words = {turn.text: turn.role for turn in turns if turn.text}
    words |= {str(c.arguments["x"]): "call" for turn in turns for c in turn.tool_calls}
    words[subject.tool_name] = "tools"
    for old, new in pairwise(prompts):
        if old is None or new is None:
            continue
        orders = [_order(text, words) for text in (old, new)]
        if orders[1][: len(orders[0])] != orders[0]:
            for kinds in (("system",), ("tools",), ("system", "tools")):
                less = [[w for w in order if words[w] not in kinds] for order in orders]
                if less[1][: len(less[0])] == less[0]:
                    return " and ".join(kinds)
            return "messages"
        if len(old) - common_text(old, new) > MAX_DRIFT:
            return "trailing instructions"
    return ""


def _order(text: str, words: Mapping[str, str]) -> list[str]:
    found = []
    for word in words:
        at = text.find(word)
        while at >= 0:
            found.append((at, word))
            at = text.find(word, at + 1)
    return [word for _, word in sorted(found)]
