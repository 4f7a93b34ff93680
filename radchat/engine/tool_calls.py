"""Splits an answer's text, as it streams, into its words and its tool calls.

Under the grammar of ``tool_grammar.py`` all that begins like a call is one. Without it, or where an
answer was cut off, a call may be broken: then there is none, and ``error`` says why. The words are
told as they come; a call is told when it is whole, and for whoever wants to see it written, its
name and its arguments' text piece by piece (``take_parts``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from radchat.engine.tool_form import ToolForm


def _number(word: str) -> float:
    """JSON has none that is read as infinite, and no word for one."""
    if not math.isfinite(number := float(word)):
        raise ValueError(f"{word} is no number")
    return number


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_number)
CUT = "the answer ended inside a call"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    name: str
    arguments: dict[str, Any]
    id: str = ""  # where the model's form has one
    text: str = field(default="", compare=False)  # its arguments as they were written


@dataclass(frozen=True, slots=True)
class CallPart:
    """Of the call number ``index``: its name (the first part alone has it), more of its arguments'
    text. All texts together are the whole call's ``text``.
    """

    index: int
    text: str
    name: str | None = None
    id: str = ""  # where the model's form has one: then all of a call is one part


class _Arguments:
    """How much of a text that grows is a call's arguments: to where their braces close."""

    __slots__ = ("_depth", "_escaped", "_in_string", "end", "is_whole")

    def __init__(self) -> None:
        self.end = 0
        self.is_whole = False
        self._depth = 0
        self._in_string = self._escaped = False

    def read(self, text: str) -> int:
        """``text`` begins as it did the last time."""
        while not self.is_whole and self.end < len(text):
            char = text[self.end]
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"' and self._depth:
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
            if not self._depth and char not in "}]":
                return 0  # no object
            self.is_whole = not self._depth
            self.end += 1
        return self.end


class CallSplitter:
    """``push`` pieces of text, ``flush`` at the end. Any way of cutting gives the same.

    ``names``: the tools there are; a call of another is an error. What can't be read as a call
    stays in ``rest``, as text.
    """

    __slots__ = (
        "_arguments",
        "_form",
        "_held",
        "_in_calls",
        "_names",
        "_num",
        "_parts",
        "_told",
        "error",
        "rest",
    )

    def __init__(self, form: ToolForm, names: Collection[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        self._held = ""
        self._in_calls = False
        self._num = 0
        self._parts: list[CallPart] = []
        self._told = -1  # characters of the present call's arguments; -1: nor its name
        self._arguments = _Arguments()
        self.error: str | None = None
        self.rest = ""  # what was written of a call that is none

    def push(self, text: str) -> tuple[str, list[WrittenCall]]:
        """New words for the user, new whole calls."""
        self._held += text
        words = "" if self._in_calls else self._take_words()
        return words, self._take_calls() if self._in_calls else []

    def take_parts(self) -> list[CallPart]:
        """What has been written of calls since this was asked."""
        parts, self._parts = self._parts, []
        return parts

    def flush(self) -> str:
        """The answer ends here; the last words, if any were held back."""
        rest, self._held = self._held, ""
        if not self._in_calls:
            return rest
        if self.error is None and rest.strip() and rest != self._form.close:
            self.error = CUT
        if self.error is not None:
            self.rest = rest
        return ""

    def _take_words(self) -> str:
        """Up to where the first call begins, or may begin."""
        trigger = self._form.trigger
        at = self._held.find(trigger)
        if at < 0:
            at = len(self._held) - _common_end(self._held, trigger)
        else:
            self._in_calls = True
        words, self._held = self._held[:at], self._held[at:]
        return words

    def _take_calls(self) -> list[WrittenCall]:
        found = []
        while self.error is None and (call := self._take_call()) is not None:
            found.append(call)
        return found

    def _take_call(self) -> WrittenCall | None:
        """The next one, if it is whole; None, with or without an error."""
        form, first = self._form, self._num == 0
        lead = form.open + form.begin if first else form.between + form.begin
        text = self._held
        if not first and text.lstrip() == "":
            return None
        if not text.startswith(lead[: len(text)]):
            if not first and form.close and form.close.startswith(text):
                return None
            self.error = f"a call begins with {lead.strip()!r}"
            return None
        name, middle, rest = text[len(lead) :].partition(form.middle)
        if middle and name in self._names and not form.has_id:
            self._tell(name, rest[: self._arguments.read(rest)])
        if not middle or (form.end or form.after_id) not in rest:
            return None  # not whole; looked for first, for decoding again and again is slow
        try:
            arguments, end = _DECODER.raw_decode(rest)
        except RecursionError:
            self.error = f"the arguments of {name!r} nest too deep"
            return None
        except json.JSONDecodeError:
            return None  # not whole yet, or never
        except ValueError:
            self.error = f"the arguments of {name!r} hold a number that is too large, or none"
            return None
        if rest[end - 1] not in '}]"':
            self.error = f"the arguments of {name!r} are no JSON object"
            return None
        ended = self._ended(rest[end:])
        if ended is None:
            return None
        call_id, num = ended
        if not isinstance(arguments, dict):
            self.error = f"the arguments of {name!r} are no JSON object"
            return None
        if name not in self._names:
            known = ", ".join(sorted(self._names)[:20])
            self.error = f"there is no tool {name!r} (there are: {known})"
            return None
        self._held = rest[end + num :]
        self._tell(name, rest[:end], call_id)
        self._num += 1
        self._told, self._arguments = -1, _Arguments()
        return WrittenCall(name, arguments, call_id, rest[:end])

    def _tell(self, name: str, arguments: str, call_id: str = "") -> None:
        """What is new of the present call."""
        is_first, told = self._told < 0, max(0, self._told)
        if is_first or len(arguments) > told:
            new = arguments[told:]
            self._parts.append(CallPart(self._num, new, name if is_first else None, call_id))
            self._told = len(arguments)

    def _ended(self, rest: str) -> tuple[str, int] | None:
        """A call's id, and how long its end is; None: not whole yet, or another end."""
        form = self._form
        if not form.has_id:
            return ("", len(form.end)) if rest.startswith(form.end) else None
        if not rest.startswith(form.before_id):
            return None
        call_id, after, _ = rest[len(form.before_id) :].partition(form.after_id)
        if not after:
            return None
        return call_id, len(form.before_id) + len(call_id) + len(after)


def _common_end(text: str, mark: str) -> int:
    """Characters at the end of ``text`` with which ``mark`` may begin."""
    for num in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:num]):
            return num
    return 0
