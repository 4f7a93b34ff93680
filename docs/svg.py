"""A terminal's screen as an SVG: its characters, colours and bold, and nothing from elsewhere.

Every run of characters says how wide it is, so that columns stand where they stood whatever font of
fixed width the reader has.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

CELL, LINE, SIZE = 8.5, 18, 14  # a column's width, a line's height, the letters' size
EDGE, BAR = 16, 34  # around the screen, and above it
BACKGROUND, FRAME, TEXT = "#14171c", "#2b313b", "#d9dee7"
FONTS = "'DejaVu Sans Mono',ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
COLORS = {  # as pyte calls them
    "default": TEXT,
    "black": "#8a94a6",
    "red": "#ff8a80",
    "green": "#8fd694",
    "brown": "#e6c374",
    "blue": "#86b7f5",
    "magenta": "#d6a6f0",
    "cyan": "#7ed3d8",
    "white": "#eef1f6",
}
DIM = "brightblack"  # what stands for faint letters


class Style(NamedTuple):
    ink: str
    paper: str | None  # None: the screen's own
    bold: bool
    italic: bool
    underlined: bool


def svg(screen: Any, title: str, alt: str) -> str:
    """``screen``: pyte's. What is empty below its last line is left out."""
    rows = [list(runs(screen, y)) for y in range(screen.lines)]
    while rows and not rows[-1]:
        rows.pop()
    width = round(2 * EDGE + screen.columns * CELL)
    height = BAR + EDGE + LINE * len(rows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(alt)}>'
    )
    lines = [
        head,
        f"<title>{escape(title)}</title><desc>{escape(alt)}</desc>",
        f"<style>text{{font-family:{FONTS};font-size:{SIZE}px;fill:{TEXT};white-space:pre}}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<rect width="{width}" height="{BAR - 10}" rx="8" fill="{FRAME}"/>',
        f'<text x="{width / 2:g}" y="17" text-anchor="middle">{escape(title)}</text>',
    ]
    for y, row in enumerate(rows):
        top = BAR + y * LINE
        lines += [_paper(x, top, cells, style) for x, cells, _, style in row if style.paper]
        text = "".join(_ink(*run) for run in row)
        lines.append(f'<text xml:space="preserve" y="{top + SIZE}">{text}</text>' if text else "")
    return "\n".join(filter(None, [*lines, "</svg>", ""])) + "\n"


def runs(screen: Any, y: int) -> Iterator[tuple[int, int, str, Style]]:
    """(column, columns, text, style) of what is seen; none has two spaces side by side."""
    line = screen.buffer[y]
    for style, group in groupby(range(screen.columns), key=lambda x: style_of(line[x])):
        columns = list(group)
        if style.paper or style.underlined:
            yield columns[0], len(columns), "".join(line[x].data for x in columns), style
            continue
        word: list[int] = []
        for x in columns:
            if line[x].data != " ":
                word += range(word[-1] + 1, x + 1) if word else [x]
            elif word and x - word[-1] > 1:
                yield word[0], len(word), "".join(line[at].data for at in word), style
                word = []
        if word:
            yield word[0], len(word), "".join(line[at].data for at in word), style


def style_of(char: Any) -> Style:
    ink, paper = color(char.fg), None if char.bg == "default" else color(char.bg)
    if char.reverse:
        ink, paper = paper or BACKGROUND, ink
    return Style(ink, paper, char.bold, char.italics, char.underscore)


def color(name: str) -> str:
    """pyte's: a name, one with ``bright`` before it, or six hexadecimal digits."""
    if name in COLORS:
        return COLORS[name]
    plain = name.removeprefix("bright").removeprefix("bfight")  # the latter is pyte's magenta
    return COLORS.get(plain) or f"#{name}"


def _paper(x: int, top: int, cells: int, style: Style) -> str:
    return (
        f'<rect x="{EDGE + x * CELL:g}" y="{top}" width="{cells * CELL:g}" height="{LINE}" '
        f'fill="{style.paper}"/>'
    )


def _ink(x: int, cells: int, text: str, style: Style) -> str:
    looks = f' fill="{style.ink}"' if style.ink != TEXT else ""
    looks += ' font-weight="bold"' if style.bold else ""
    looks += ' font-style="italic"' if style.italic else ""
    looks += ' text-decoration="underline"' if style.underlined else ""
    place = f'x="{EDGE + x * CELL:g}" textLength="{cells * CELL:g}"'
    return f"<tspan {place}{looks}>{escape(text)}</tspan>"
