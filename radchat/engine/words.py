"""What one choice has said: from its ids to text, up to a stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeAlias

from radchat.engine.detokenize import Detokenizer, StopChecker
from radchat.engine.request import Request

# a fresh pair for one choice of a request; its prompt's last ids may prime the detokenizer
TextFactory: TypeAlias = Callable[[Request], tuple[Detokenizer, StopChecker]]


class Words:
    """Detokenizer and stop strings of one choice, and where in the text each id begins."""

    def __init__(self, detokenizer: Detokenizer, checker: StopChecker) -> None:
        self._detokenizer = detokenizer
        self._checker = checker
        self._whole = 0  # characters that have become whole
        self._shown = 0  # characters that were let through
        self._begins: list[int] = []  # of each id: the characters whole before it
        self.matched = False

    def copy(self) -> Words:
        other = Words(self._detokenizer.copy(), self._checker.copy())
        other._whole, other._shown = self._whole, self._shown
        other._begins, other.matched = self._begins[:], self.matched
        return other

    def push(self, token: int) -> str:
        self._begins.append(self._whole)
        return self._show(self._detokenizer.push(token))

    def skip(self) -> None:
        """An id that says nothing: a stop id."""
        self._begins.append(self._whole)

    def end(self) -> str:
        """The last of the text: half a character, and what was held back as a stop string."""
        if self.matched:
            return ""
        text = self._show(self._detokenizer.flush())
        if not self.matched:
            text += self._checker.flush()
        return text

    def kept(self) -> int:
        """How many ids the answer keeps: up to the last one that begins before the match.

        An id that begins inside a character counts as beginning behind that character's start, and
        the match starts at a character's start: so comparing whole characters is exact.
        """
        return bisect_left(self._begins, self._shown) if self.matched else len(self._begins)

    def _show(self, text: str) -> str:
        self._whole += len(text)
        if not text or self.matched:
            return ""
        shown, self.matched = self._checker.push(text)
        self._shown += len(shown)
        return shown
