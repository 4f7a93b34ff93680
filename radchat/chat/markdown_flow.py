"""Words filled into lines that are only ever appended to: nothing written is touched again.

So a resized window can't make a line appear twice. A line is as wide as the window was when it was
begun; where it became narrower the terminal breaks it, where it became wider it ends early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from radchat.chat.markdown_inline import BREAKS, Span
from radchat.chat.width import cluster_width, clusters, width

TAB = "    "
ROOM = 4  # columns a hanging indent must leave


class Flow:
    """``cuts``: a word longer than a line is cut, else left whole: the terminal breaks it, and it
    can be copied.
    """

    def __init__(self, columns: int, *, paints: bool, cuts: bool) -> None:
        self.columns = columns
        self._paints = paints
        self._cuts = cuts
        self._out: list[str] = []
        self._style = ""
        self._used = 0  # columns of the open line
        self._gap: list[Span] = []  # spaces that come before the next word, if it is on this line
        self._hang: list[Span] = []  # what further lines begin with
        self._is_open = False

    def take(self) -> str:
        """What is to be written since the last time."""
        self._set("")
        out, self._out = "".join(self._out), []
        return out

    def begin(self, first: Sequence[Span], hang: Sequence[Span]) -> None:
        """A new line that begins with ``first``, those it is broken into with ``hang``."""
        self.end_line()
        self._hang = list(hang) if _width(hang) + ROOM <= self.columns else []
        self._is_open = True
        whole = "".join(text for _, text in first)
        if self._cuts and width(whole) >= self.columns:
            self.add(first)
            return
        *before, (style, last) = first or [("", "")]
        self._place([*before, (style, last.rstrip())])
        self._gap = [(style, last[len(last.rstrip()) :])]
        self._set("")

    def add(self, spans: Sequence[Span]) -> None:
        """Whole words, and the spaces and line ends between them."""
        for atom in _atoms(_whole(spans)):
            blank = [(style, text) for style, text in atom if text.isspace()]
            word = atom[: len(atom) - len(blank)]
            if word:
                self._word(word)
            if any("\n" in text for _, text in blank):
                self._next_line()
            else:
                self._gap += [(style, text.replace("\t", TAB)) for style, text in blank]
        self._set("")

    def line(self, spans: Sequence[Span], made: str = "") -> None:
        """A line as it is; ``made``: the rest of it, with styles already."""
        self.end_line()
        self._hang, spans = [], _whole(spans)
        if self._cuts:
            self._cut(spans)
        else:
            self._place(spans)
        self._set("")
        self._out.append(made)
        self.end_line(force=True)

    def end_line(self, *, force: bool = False) -> None:
        if self._is_open or force:
            self._set("")
            self._out.append("\n")
        self._is_open, self._used, self._gap = False, 0, []

    def pause(self) -> None:
        """Something else will be written here: what comes goes on in a line of its own."""
        if self._used:
            self._set("")
            self._out.append("\n")
            self._used, self._gap = 0, []

    def _word(self, word: list[Span]) -> None:
        room = _width(word)
        if self._used > _width(self._hang) and self._used + _width(self._gap) + room > self.columns:
            self._next_line()
        if not self._used:
            self._gap = []
            self._place(self._hang)
        self._place(self._gap)
        self._gap = []
        self._is_open = True
        if self._cuts and self._used + room > self.columns:
            self._cut(word)
        else:
            self._place(word)

    def _next_line(self) -> None:
        self._set("")
        self._out.append("\n")
        self._used, self._gap = 0, []

    def _cut(self, word: Sequence[Span]) -> None:
        for style, text in word:
            for cluster in clusters(text):
                if self._used and self._used + cluster_width(cluster) > self.columns:
                    self._next_line()
                    self._place(self._hang)
                self._place([(style, cluster)])

    def _place(self, spans: Sequence[Span]) -> None:
        for style, text in spans:
            if text:
                self._set(style if self._paints else "")
                self._out.append(text)
                self._used += width(text)

    def _set(self, style: str) -> None:
        if style != self._style:
            self._out.append(
                ("\x1b[0m" if self._style else "") + (f"\x1b[{style}m" if style else "")
            )
            self._style = style


def _whole(spans: Sequence[Span]) -> Sequence[Span]:
    """What a terminal draws as one is of one style."""
    if len(spans) < 2 or all(text.isascii() for _, text in spans):
        return spans
    styles = [style for style, text in spans for _ in text]
    at, pieces = 0, list[Span]()
    for cluster in clusters("".join(text for _, text in spans)):
        pieces.append((styles[at], cluster))
        at += len(cluster)
    same = groupby(pieces, key=itemgetter(0))
    return [(style, "".join(text for _, text in some)) for style, some in same]


def _width(spans: Sequence[Span]) -> int:
    return sum(width(text) for _, text in spans)


def _atoms(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The text in pieces between which a line may be broken; white space is the end of one."""
    whole = "".join(text for _, text in spans)
    ends = iter([*(m.start() for m in BREAKS.finditer(whole) if m.start()), len(whole)])
    end, at, atom = next(ends), 0, list[Span]()
    for style, text in spans:
        done = 0
        while done < len(text):
            piece = text[done : done + end - at]
            done, at = done + len(piece), at + len(piece)
            if piece[-1].isspace() and len(piece) > 1:
                atom += [(style, piece[:-1]), (style, piece[-1])]
            else:
                atom.append((style, piece))
            if at == end:
                yield atom
                atom, end = [], next(ends, end)
