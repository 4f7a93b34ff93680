"""An answer in Markdown, shown as it comes: every line is written once, and never touched again.

A line is known by how it begins, and its words are written as soon as nothing that may follow can
change them; marks that are not closed yet wait for a while, a table for its end. What is written
depends on the text alone, not on how it was cut. Line ends stay where the model put them, and so
do the marks that say what a line is: heading, item, quote, fence. No word is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from radchat.chat.markdown_code import Highlighter
from radchat.chat.markdown_flow import Flow
from radchat.chat.markdown_inline import BOLD, BREAKS, DIM, MARKS, Span, settled, spans
from radchat.chat.markdown_inline import prepare as prepare  # noqa: PLC0414 - for the view
from radchat.chat.markdown_start import INDENT, Start, start_of
from radchat.chat.markdown_table import divides, num_cells, table_lines

PATIENCE = 240  # characters that marks may wait for those that close them
LOOKED_AT = 80  # characters up to which every piece may say what a line is; after them each quarter
CELLS = 64  # in a table's head; what has more is no table
RULE = 40  # columns


class Markdown:
    """``push`` takes cleaned text (text.py) in any pieces and gives what to write to a terminal of
    ``columns()`` columns.
    """

    def __init__(
        self, columns: Callable[[], int], *, paints: bool = True, cuts: bool = False
    ) -> None:
        """``paints``: with SGR styles. ``cuts``: no line is ever longer than the columns."""
        self._columns = columns
        self._paints = paints
        self._flow = Flow(max(columns(), 1), paints=paints, cuts=cuts)
        self._line = ""  # what came of the line whose beginning says nothing yet
        self._next_look = 0  # how much must have come of it until it is read again
        self._start: Start | None = None  # of the line that is open
        self._word = ""  # what came of the last word
        self._seen = 0  # how much of that was searched for its end
        self._waiting = ""  # words with marks that are not closed yet
        self._style = ""  # of all of the line
        self._goes_on = False  # may the next line belong to the text of this one,
        self._quotes = 0  # which is in so many quotes?
        self._offset = 0  # where the text of the list one is in begins
        self._fence: _Fence | None = None
        self._table: list[Start] = []
        self._has_blank = self._is_begun = False

    def push(self, text: str) -> str:
        self._flow.columns = max(self._columns(), 1)
        first, *more = text.split("\n")
        self._more(first)
        for line in more:
            self._end_line()
            self._more(line)
        return self._flow.take()

    def flush(self) -> str:
        """The end of the text: all that has waited; ends with a line end."""
        self._flow.columns = max(self._columns(), 1)
        if self._line or self._start:
            self._end_line()
        self._settle()
        self._end_table()
        self._flow.end_line()
        return self._flow.take()

    def pause(self) -> str:
        """End the line, for something else to be written; the text goes on below it."""
        self._flow.pause()
        return self._flow.take()

    def resume(self, text: str) -> None:
        """Go on after this, which was shown before: a line of code that was cut is shown anew."""
        self.push(text)
        self._waiting = self._word = ""
        self._table, self._seen, self._has_blank = [], 0, False
        self.pause()

    @property
    def waits(self) -> str:
        """What is shown only when it is whole, in a few words; "": nothing."""
        return f"table: {len(self._table)} lines" if len(self._table) > 1 else ""

    # --- lines ---

    def _more(self, text: str) -> None:
        if self._start is None:
            self._line += text
            if len(self._line) >= self._next_look:
                self._begin(is_whole=False)
        else:
            self._word += text
        if self._start is not None:
            self._words()

    def _end_line(self) -> None:
        if self._next_look:
            self._next_look = 0
            self._more("")
        if self._start is None:
            self._begin(is_whole=True)
        if self._start is not None:  # else it was dealt with as a whole
            self._waiting, self._word = self._waiting + self._word, ""
            self._advance()
            self._goes_on = self._start.kind == "text"
            self._quotes, self._start = self._start.quotes, None
            if self._waiting and self._goes_on:
                self._waiting += "\n"
            else:
                self._settle()
                self._flow.end_line()

    def _begin(self, *, is_whole: bool) -> None:
        """Deal with the line as far as its beginning says what it is."""
        if self._fence is not None:
            if not is_whole:
                return
            is_taken = self._fence.takes(self._line, self._flow)
            self._fence = None if self._fence.is_closed or not is_taken else self._fence
            if is_taken:
                self._line, self._next_look = "", 0
                return
        start = start_of(self._line, is_whole=is_whole, offset=self._offset, goes_on=self._goes_on)
        if start is None:
            self._next_look = len(self._line) * 5 // 4 if len(self._line) > LOOKED_AT else 0
            return
        self._line, self._next_look = "", 0
        if start.kind != "table":
            self._end_table()
        is_text = start.kind == "text" and not start.marker and start.quotes == self._quotes
        if not (is_text and self._goes_on and self._waiting):
            self._settle()
            self._goes_on = False
        if start.kind == "blank" and not start.quotes:
            self._has_blank = self._is_begun
            return
        self._show(start)

    def _show(self, start: Start) -> None:
        if self._has_blank:
            self._flow.line([])
        self._has_blank, self._is_begun = False, True
        if start.marker and start.kind != "heading":
            self._offset = start.offset
        elif start.kind == "text" and not start.indent and not self._waiting:
            self._offset = 0
        bars: list[Span] = [(DIM, "> " * start.quotes)]
        if start.kind in ("fence", "math"):
            self._fence = _Fence(start, self._flow)
        elif start.kind == "table":
            self._row(start)
        elif start.kind == "rule":
            self._flow.line([*bars, ("", start.marker), (DIM, "-" * min(RULE, self._flow.columns))])
        elif start.kind == "code":
            self._flow.line([*bars, ("", start.rest)])
        elif start.kind == "blank":
            self._flow.line([(DIM, ">" + " >" * (start.quotes - 1))])
        else:
            self._text(start)

    def _text(self, start: Start) -> None:
        """Begin a line of words."""
        self._start, self._word, self._seen = start, start.rest, 0
        if self._waiting:  # it goes on with the one before
            return
        self._style = BOLD if start.kind == "heading" else ""
        indent = " " * (start.indent if self._offset or start.indent >= INDENT else 0)
        bars: Span = (DIM, "> " * start.quotes)
        hang = "" if start.kind == "heading" else " " * len(start.marker)
        self._flow.begin(
            [bars, ("", indent), (self._style, start.marker)], [bars, ("", indent + hang)]
        )

    # --- words ---

    def _words(self) -> None:
        """Take the words that are whole."""
        ends = [m.start() for m in BREAKS.finditer(self._word, self._seen) if m.start()]
        at = 0
        for end in ends:
            word, at = self._word[at:end], end
            has_marks = not MARKS.isdisjoint(word)
            if self._waiting or has_marks:
                self._waiting += word
                if has_marks or len(self._waiting) > PATIENCE:
                    self._advance()
            else:
                self._flow.add([(self._style, word)])
        self._word = self._word[at:]
        self._seen = len(self._word)

    def _advance(self) -> None:
        """Write of what waits as much as is settled, and what has waited for too long."""
        while self._waiting:
            end = settled(self._waiting)
            if end:
                self._write(spans(self._waiting[:end], paints=self._paints))
            elif len(self._waiting) > PATIENCE:
                end = next((m.start() for m in BREAKS.finditer(self._waiting) if m.start()), 0)
                end = end or len(self._waiting)
                self._write([("", self._waiting[:end])])
            else:
                return
            self._waiting = self._waiting[end:]

    def _settle(self) -> None:
        """What waits is text: there is nothing more to come."""
        if self._waiting:
            self._write(spans(self._waiting.rstrip("\n"), paints=self._paints))
            self._waiting = ""
            self._flow.end_line()

    def _write(self, spans: list[Span]) -> None:
        self._flow.add([(f"{self._style};{style}".strip(";"), text) for style, text in spans])

    # --- tables ---

    def _row(self, start: Start) -> None:
        if len(self._table) == 1 and not divides(start.rest):
            self._end_table()
        self._table.append(start)

    def _end_table(self) -> None:
        table, self._table = self._table, []
        if len(table) > 1 and num_cells(table[0].rest) <= CELLS:
            first = table[0]
            before: list[Span] = [(DIM, "> " * first.quotes), ("", " " * first.indent)]
            room = max(self._flow.columns - first.indent - 2 * first.quotes, 1)
            for line in table_lines([row.rest for row in table], room, paints=self._paints):
                self._flow.line(before, line)
            return
        for row in table:
            self._text(row)
            self._end_line()
            self._settle()


class _Fence:
    """Lines that are shown as they are, from a line that opens them to one that closes them."""

    def __init__(self, start: Start, flow: Flow) -> None:
        self._start = start
        mark = start.rest[0]
        bare = start.rest.lstrip(mark)
        length = len(start.rest) - len(bare)
        self.is_closed = False
        self._bars: Span = (DIM, "> " * start.quotes)
        self._is_math = start.kind == "math"
        self._closes = rf"\s*{mark}{{{length},}}\s*"
        if self._is_math:
            self._closes, bare = {"$": "$$", "\\": "\\]"}[mark], ""
        self._code = Highlighter(re.split(r"[\s{,:]", bare.strip().lower())[0])
        if start.marker:
            flow.line([self._bars, ("", " " * start.indent + start.marker.rstrip())])
        flow.line([self._bars, ("" if self._is_math else DIM, start.rest.rstrip())])

    def takes(self, line: str, flow: Flow) -> bool:
        """Show the line, if it is one of these."""
        for _ in range(self._start.quotes):
            found = re.match(r" {0,3}> ?", line)
            if found is None:
                return False
            line = line[found.end() :]
        line = line[min(self._start.offset, len(line) - len(line.lstrip(" "))) :]
        if not self._is_math:
            self.is_closed = re.fullmatch(self._closes, line) is not None
            flow.line([self._bars, *([(DIM, line)] if self.is_closed else self._code.line(line))])
            return True
        if not line.strip():
            return False
        self.is_closed = self._closes in line
        flow.line([self._bars, ("", line)])
        return True


def rendered(text: str, columns: int, *, paints: bool = True) -> list[str]:
    """A whole cleaned text as lines of at most so many columns; ``paints``: with SGR styles."""
    markdown = Markdown(lambda: columns, paints=paints, cuts=True)
    lines = markdown.push(text.expandtabs()) + markdown.flush()
    return lines.split("\n")[:-1]
