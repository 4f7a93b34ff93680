"""How many rows a step may have after the device had no memory for one.

What a step takes besides weights and KV grows with its rows: activations, logits, the parts of
attention. So a step that was full is tried again in halves, and the limit goes up again, a doubling
at a time, while steps succeed. Who is to blame, and ends with it: ``running.py``.
"""

from __future__ import annotations

CALM = 32  # steps that went well, before more is tried


class StepLimit:
    """``rows``: at most so many in a step; None: no limit but the scheduler's options."""

    def __init__(self) -> None:
        self.rows: int | None = None
        self._full_at = 0  # rows of the step that set it
        self._calm = 0

    def halve(self, rows: int, least: int = 1) -> None:
        """A step of so many rows was full. ``least``: what a step of such work can't go below."""
        if self.rows is None:
            self._full_at = rows
        half = max(least, rows // 2)
        self.rows = half if self.rows is None else min(half, self.rows)
        self._calm = 0

    def went_well(self, rows: int) -> bool:
        """A step of so many was not full. True: there may be more rows from now on."""
        if self.rows is None:
            return False
        self._calm += 1
        if self._calm < CALM:
            return False
        # a prompt's page has run whatever the limit: below it there is one level for prompts
        more = 2 * max(self.rows, rows)
        self.back_to(None if more >= self._full_at else more)
        return True

    def back_to(self, rows: int | None) -> None:
        """To what it was before, if that is more."""
        if self.rows is not None:
            self.rows = None if rows is None else max(rows, self.rows)
        self._calm = 0

    def chunk(self, tokens: int, least: int) -> int:
        """Tokens of prompts in a step, of so many without a limit; never less than ``least``."""
        return tokens if self.rows is None else max(least, min(tokens, self.rows))
