"""A template's own form of tool calls, read off two made-up answers.

What can't be read (arguments that are no JSON, a list of tools that is not shown, results without a
place) leaves the block of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from radchat.engine.conversation import ToolCall, Turn
from radchat.engine.cuts import common_text
from radchat.engine.probe_subject import CALL_ID, Subject
from radchat.engine.rendering import random_word
from radchat.engine.tool_form import ToolForm

OTHER_ID = "z9Y8x7W6v"


def find_tool_form(subject: Subject, *, shows_tools: bool, shows_results: bool) -> ToolForm:
    """``subject.stops`` and ``subject.before_stop`` are known by then."""
    block = ToolForm(results=_role_of_results(subject), is_single=_must_alternate(subject))
    form = subject.form
    is_plain = form.calls == "shown" and form.arguments == "dict" and not form.said_mark
    if not (shows_tools and shows_results and is_plain):
        return block
    return _learned(subject) or block


def _learned(subject: Subject) -> ToolForm | None:
    one = _Shown.of(subject, CALL_ID)
    if one is None:
        return None
    two = _Shown.of(subject, CALL_ID, OTHER_ID)
    if two is None:  # one call an answer
        before_id, after_id = _around_id(one.after)
        if before_id is None or CALL_ID in one.before:
            return None
        end = "" if before_id else one.after
        return ToolForm(
            begin=one.before,
            middle=one.middle,
            end=end,
            before_id=before_id,
            after_id=after_id,
            is_single=True,
            source="template",
        )
    inside = two.inside
    num_end = common_text(one.after, inside)
    end = one.after[:num_end]
    num_begin = common_text(one.before[::-1], inside[num_end:][::-1])
    begin = one.before[len(one.before) - num_begin :]
    before_id, after_id = _around_id(end)
    if before_id is None or CALL_ID in begin or not begin or one.middle != two.middle:
        return None
    return ToolForm(
        begin=begin,
        middle=one.middle,
        end="" if before_id else end,
        between=inside[num_end : len(inside) - num_begin],
        open=one.before[: len(one.before) - num_begin],
        close=one.after[num_end:],
        before_id=before_id,
        after_id=after_id,
        source="template",
    )


def _around_id(text: str) -> tuple[str | None, str]:
    """What stands before and after a call's id; ("", "") without one; None: it is there twice."""
    parts = text.split(CALL_ID)
    if len(parts) > 2:
        return None, ""
    return (parts[0], parts[1]) if len(parts) == 2 else ("", "")


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a template writes of an answer that is nothing but calls."""

    before: str  # up to the first call's name
    middle: str
    inside: str  # of two: from the first's arguments to the second's name
    after: str  # of the last one, up to what closes the answer

    @classmethod
    def of(cls, subject: Subject, *call_ids: str) -> _Shown | None:
        words = [random_word() for _ in call_ids]
        calls = tuple(
            ToolCall(call_id, subject.tool_name, {"x": word})
            for call_id, word in zip(call_ids, words, strict=True)
        )
        user = subject.user()
        turns = [user, Turn("assistant", "", tool_calls=calls)]
        opened = subject.render([user], opening=True, tools=True)
        text = subject.render(turns, tools=True)
        if opened is None or text is None or not all(word in text for word in words):
            return None
        start = common_text(opened, text)
        if opened[start:].strip() not in ("", subject.form.open_mark):
            return None  # an answer with calls is opened otherwise
        places = [re.search(rf'\{{"x": ?"{word}"\}}', text) for word in words]
        names = [match.start() for match in re.finditer(subject.tool_name, text[start:])]
        if None in places or len(names) != len(words):
            return None
        spans = [(match.start(), match.end()) for match in places if match is not None]
        begins = [start + name for name in names]
        ends = [begin + len(subject.tool_name) for begin in begins]
        closing = _closing(subject, text[spans[-1][1] :])
        if closing is None:
            return None
        inside = text[spans[0][1] : begins[-1]] if len(words) == 2 else ""
        return cls(
            before=text[start : begins[0]].removeprefix(_empty_reasoning(subject, text[start:])),
            middle=text[ends[0] : spans[0][0]],
            inside=inside.replace(OTHER_ID, CALL_ID),
            after=text[spans[-1][1] :][:closing].replace(OTHER_ID, CALL_ID),
        )


def _empty_reasoning(subject: Subject, text: str) -> str:
    """A block without reasoning that the template writes before calls."""
    mark, close = subject.form.open_mark, subject.form.close_mark
    found = re.match(rf"{re.escape(mark)}\s*{re.escape(close)}\s*", text) if mark else None
    return found[0] if found else ""


def _closing(subject: Subject, rest: str) -> int | None:
    """Characters of ``rest`` before what ends the answer; None: nothing does."""
    spans = [
        (start, end)
        for start, end in subject.tokenizer.control_spans(rest)
        if not rest[start:end].startswith("</")
    ]
    stops = [start for start, end in spans if rest[start:end] in subject.stops]
    if not stops:
        return None
    # text that closes every answer, before the token, is not the call's
    return len(rest[: stops[0]].removesuffix(subject.before_stop))


def _role_of_results(subject: Subject) -> Literal["tool", "user"]:
    """``tool``, where a message of that role has control tokens around it, as all others have."""
    word, answer, user = random_word(), random_word(), subject.user()
    text = subject.render([user, Turn("assistant", answer), Turn("tool", word)], opening=True)
    if text is None or text.count(word) != 1:
        return "user"
    before, after = text.split(word)
    before = before.rpartition(answer)[2]
    return "tool" if subject.controls(before) and subject.controls(after) else "user"


def _must_alternate(subject: Subject) -> bool:
    word = random_word()
    turns = [subject.user(), subject.user(word)]
    return subject.shown(turns, word) != "shown"
