"""Splits an answer's text, as it streams, into the model's reasoning and its words for the user.

Markers are the template's own (``<think>`` … ``</think>`` and their like; learned by the probes).
Only a block at the very beginning is reasoning; a prompt may already have opened it. Some models
mark where their words for the user begin, too (``<|channel|>final<|message|>``). Line breaks next
to the markers belong to the markers; everything else appears exactly once, in one of the two.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Split(NamedTuple):
    reasoning: str
    content: str


class ReasoningSplitter:
    """``push`` pieces of text, ``flush`` at the end. Any way of cutting gives the same two texts.

    Cut off while still thinking: all of it is reasoning, the content is empty.
    """

    __slots__ = ("_close", "_held", "_open", "_said", "_state", "is_closed")

    def __init__(
        self, open_mark: str, close_mark: str, *, said_mark: str = "", opened: bool = False
    ) -> None:
        self._open = open_mark
        self._close = close_mark
        self._said = said_mark
        self._held = ""
        self._state: Literal["start", "opened", "thinking", "closed", "content"]
        marked = open_mark or said_mark
        self._state = "opened" if opened else "start" if marked else "content"
        self.is_closed = False  # a reasoning block was there and has ended

    def push(self, text: str) -> Split:
        self._held += text
        reasoning = content = ""
        state = None
        while state != self._state:
            state = self._state
            if state == "start":
                self._begin()
            elif state == "opened":
                self._skip_breaks()
            elif state == "thinking":
                reasoning += self._think()
            elif state == "closed":
                self._begin_content()
        if state == "content":
            content, self._held = self._held, ""
        return Split(reasoning, content)

    def flush(self) -> Split:
        """The answer ends here: what was held back belongs where the text stands."""
        rest, self._held = self._held, ""
        if self._state in ("opened", "thinking"):
            return Split(rest, "")
        return Split("", rest if self._state == "start" else rest.lstrip("\r\n"))

    @property
    def is_thinking(self) -> bool:
        """Inside a block."""
        return self._state in ("opened", "thinking")

    @property
    def is_unsure(self) -> bool:
        """Nothing has shown yet whether the answer begins with a block."""
        return self._state == "start"

    def copy(self) -> ReasoningSplitter:
        other = ReasoningSplitter(self._open, self._close, said_mark=self._said)
        other._held, other._state, other.is_closed = self._held, self._state, self.is_closed
        return other

    def _begin(self) -> None:
        text = self._held.lstrip()
        if self._open and text.startswith(self._open):
            self._held = text[len(self._open) :]
            self._state = "opened"
        elif self._said and text.startswith(self._said):
            self._held = text[len(self._said) :]
            self._state = "content"
        elif not (self._open.startswith(text) or self._said.startswith(text)):
            self._state = "content"

    def _skip_breaks(self) -> None:
        self._held = self._held.lstrip("\r\n")
        if self._held:
            self._state = "thinking"

    def _begin_content(self) -> None:
        text = self._held.lstrip("\r\n")
        if self._said and text.startswith(self._said):
            self._held = text[len(self._said) :]
            self._state = "content"
        elif text and not self._said.startswith(text):
            self._held = text
            self._state = "content"

    def _think(self) -> str:
        at = self._held.find(self._close)
        if at >= 0:
            text = self._held[:at].rstrip("\r\n")
            self._held = self._held[at + len(self._close) :]
            self._state = "closed"
            self.is_closed = True
            return text
        # hold back a possible beginning of the mark, and the line breaks before it
        cut = len(self._held)
        for n in range(min(cut, len(self._close) - 1), 0, -1):
            if self._held.endswith(self._close[:n]):
                cut -= n
                break
        cut = len(self._held[:cut].rstrip("\r\n"))
        text, self._held = self._held[:cut], self._held[cut:]
        return text
