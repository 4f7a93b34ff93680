"""What a call would run or change, as rows of a terminal: the whole of it, and nothing unseen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radchat.agent.terminal.seen import hewn, seen
from radchat.agent.types import Preview
from radchat.chat.view import RESET

STYLES = {  # of a row: on a terminal, and on a screen of prompt_toolkit's
    "+": ("\x1b[32m", "fg:ansigreen"),
    "-": ("\x1b[31m", "fg:ansired"),
    "@": ("\x1b[36m", "fg:ansicyan"),
    "head": ("\x1b[1m", "bold"),
}
LEAST = 10  # columns


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    style: str = ""  # a key of STYLES


def rows_of(preview: Preview, columns: int) -> list[Row]:
    """Of a command each line begins with a bar, and what does not fit goes on without one."""
    room = max(columns - 5, LEAST)
    body = seen(preview.body).removesuffix("\n")
    rows: list[Row] = []
    if not body:
        return rows
    styled = _diff(body) if preview.body_kind == "diff" else (("", each) for each in _lines(body))
    is_diff = preview.body_kind == "diff"
    for style, line in styled:
        first, *rest = hewn(line, room)
        rows.append(Row(f"  {first}" if is_diff else f"  | {first}", style))
        rows += [Row(f"    {each}", style) for each in rest]
    return rows


def _lines(body: str) -> list[str]:
    return body.split("\n")


def _diff(body: str) -> Iterator[tuple[str, str]]:
    """The first two lines name the file: below them a line like those is a change."""
    for number, line in enumerate(_lines(body)):
        is_head = number < 2 and line.startswith(("---", "+++"))
        style = "head" if is_head else line[:1] if line[:1] in STYLES else ""
        yield style, line


def painted(rows: Sequence[Row], *, paints: bool) -> list[str]:
    if not paints:
        return [row.text for row in rows]
    return [f"{STYLES[r.style][0]}{r.text}{RESET}" if r.style else r.text for r in rows]
