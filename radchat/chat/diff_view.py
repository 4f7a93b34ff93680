"""The difference of two paths for people: below what they share, message by message.

By lines as a unified diff, or by words: ``[-taken-]{+put+}``; or a line of numbers each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from radchat.chat.footer import count, counted, share
from radchat.chat.paths import Beside, Change, Message, by_lines, by_words, num_words, pairs
from radchat.chat.text import clean, one_line
from radchat.chat.tree_view import Paint, unpainted
from radchat.chat.width import table, width, wrap

ROUGH = "(very long: some of what is told as replaced was not looked into)"
CONTEXT = 3  # lines shown on either side of a change
STYLES = {"-": "red", "+": "green"}
MARKS = {" ": ("", ""), "-": ("[-", "-]"), "+": ("{+", "+}")}
TAB = "    "  # in a line that is broken
Run: TypeAlias = tuple[str, str]  # kept (" "), "-" or "+", and what is shown of it
Line: TypeAlias = tuple[bool, list[Run]]  # whether it differs


def lines(
    what: Beside, *, words: bool = False, columns: int | None = None, paint: Paint = unpainted
) -> list[str]:
    """``columns``: what is wider is broken at words, and goes on indented below its mark."""
    a, b = what.sides
    told = [paint(f"--- {a.label}", "bold"), paint(f"+++ {b.label}", "bold"), what.same()]
    for left, right in pairs(a.below, b.below):
        told += ["", paint(f"@@ {_heading(what, left, right)} @@", "dim")]
        told += _body(left, right, words, columns, paint)
    return told


def stat(what: Beside) -> list[str]:
    a, b = what.sides
    rows = []
    added = taken = 0
    rough = False
    for left, right in pairs(a.below, b.below):
        changes, is_rough = by_words(*(_text(message) or "" for message in (left, right)))
        plus, minus = num_words(changes, "+"), num_words(changes, "-")
        rough = rough or is_rough
        added, taken = added + plus, taken + minus
        one = left or right or {}
        rows.append(
            [
                one_line(str(one["role"])),
                _both(left, right, lambda message: what.short[str(message["id"])]),
                _both(left, right, lambda message: _number(message.get("tokens"))),
                _both(left, right, lambda message: count(len(str(message["text"]).split()))),
                f"+{count(plus)}",
                f"-{count(minus)}",
                _both(left, right, lambda message: one_line(message.get("finish_reason") or "-")),
                _both(left, right, _cached),
            ]
        )
    sums = [_number(side.tokens) for side in what.sides]
    told = [f"words: +{count(added)} -{count(taken)}    tokens: {_arrow(*sums)}"]
    head = ["who", "message", "tokens", "words", "+", "-", "finish", "cached"]
    told = [f"{_arrow(a.label, b.label)}", what.same(), *told, *([ROUGH] if rough else [])]
    return [*told, *table(rows, head, frozenset((4, 5)))] if rows else told


def to_json(what: Beside, *, words: bool = False) -> dict[str, Any]:
    """As of ``compare``, and the changes: lines, or runs of text, kept (" "), "-" and "+"."""
    a, b = what.sides
    changed = by_words if words else by_lines
    rows = []
    for left, right in pairs(a.below, b.below):
        one = left or right or {}
        changes, is_rough = changed(_text(left), _text(right))
        rows.append(
            {
                "role": one["role"],
                "a": left and left["id"],
                "b": right and right["id"],
                "changes": [list(each) for each in changes],
                "rough": is_rough,
            }
        )
    return {**what.to_json(), "by": "words" if words else "lines", "diff": rows}


def _heading(what: Beside, left: Message | None, right: Message | None) -> str:
    one = left or right or {}
    ids = _both(left, right, lambda message: what.short[str(message["id"])])
    return f"{one_line(str(one['role']))} {ids}"


def _body(
    left: Message | None, right: Message | None, words: bool, columns: int | None, paint: Paint
) -> list[str]:
    texts = tuple(None if text is None else clean(text) for text in map(_text, (left, right)))
    if texts[0] == texts[1]:
        return ["(the same)"]
    changes, is_rough = (by_words if words else by_lines)(*texts)
    rough = [paint(ROUGH, "dim")] if is_rough else []
    told = _worded(changes) if words else ((m != " ", [(m, m + line)]) for m, line in changes)
    for line in _elided(told):
        mark = " " if words or not line else line[0][0]
        hang = (mark, "  " if words else f"{mark}  ")
        rough += [_painted(part, paint) for part in _broken(line, columns, hang)]
    return rough


def _painted(line: Iterable[Run], paint: Paint) -> str:
    told = ""
    for mark, runs in itertools.groupby(line, lambda run: run[0]):
        text = "".join(text for _, text in runs)
        told += paint(text, STYLES[mark]) if mark in STYLES else text
    return told


def _broken(line: list[Run], columns: int | None, hang: Run) -> list[list[Run]]:
    """The line in such as fit; those after the first begin with ``hang``."""
    if columns is None or width("".join(text for _, text in line).expandtabs()) <= columns:
        return [line]
    runs = [(mark, text.replace("\t", TAB)) for mark, text in line]
    whole = "".join(text for _, text in runs)
    told: list[list[Run]] = []
    end = 0
    for piece in wrap(whole, max(columns - width(hang[1]), 1)):
        start = whole.index(piece, end)
        end = start + len(piece)
        told.append([hang] * bool(told) + _part(runs, start, end))
    return told


def _part(runs: Iterable[Run], start: int, end: int) -> list[Run]:
    part: list[Run] = []
    at = 0
    for mark, text in runs:
        if kept := text[max(start - at, 0) : max(end - at, 0)]:
            part.append((mark, kept))
        at += len(text)
    return part


def _worded(changes: Sequence[Change]) -> Iterable[Line]:
    """The lines of a text with its changes marked in it."""
    line, differs = list[Run](), False
    for mark, text in changes:
        before, after = MARKS[mark]
        for number, piece in enumerate(text.split("\n")):
            if number:
                yield differs, line
                line, differs = [], False
            if piece or mark != " ":
                differs = differs or mark != " "
                line.append((mark, f"{before}{piece}{after}"))
    if line:
        yield differs, line


def _elided(told: Iterable[Line]) -> list[list[Run]]:
    """Without the lines that are far from what differs."""
    every = list(told)
    near: set[int] = set()
    for number, (differs, _) in enumerate(every):
        if differs:
            near |= set(range(number - CONTEXT, number + CONTEXT + 1))
    kept: list[list[Run]] = []
    skipped: list[list[Run]] = []
    for number, (_, line) in enumerate([*every, (False, list[Run]())]):
        if number not in near and number < len(every):
            skipped.append(line)
            continue
        same = f"... {counted(len(skipped), 'line')} the same"
        kept += skipped if len(skipped) < 2 else [[(" ", same)]]
        skipped = []
        kept += [line] if number < len(every) else []
    return kept


def _text(message: Message | None) -> str | None:
    return None if message is None else str(message.get("text") or "").strip("\n")


def _both(left: Message | None, right: Message | None, tell: Callable[[Message], str]) -> str:
    """Of both, `18 -> 15`; once where it is the same, and of one alone as it is."""
    if left is None or right is None:
        only = left if right is None else right
        return "-" if only is None else tell(only)
    return _arrow(tell(left), tell(right))


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} -> {b}"


def _number(number: int | None) -> str:
    return "-" if number is None else count(number)


def _cached(message: Message) -> str:
    """The share of an answer's prompt that was cached."""
    usage = message.get("usage") or {}
    asked, cached = usage.get("input_tokens"), usage.get("cached_input_tokens")
    return share(cached, asked) if asked and cached is not None else "-"
