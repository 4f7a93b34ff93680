"""How many rows a step may have after the device had no memory for one.

What a step takes besides weights and KV grows with its rows: activations, logits, the parts of
attention. So a step that was full is tried again in halves, and the limit goes up again, a doubling
at a time, while steps succeed: of ``CALM`` + 1 steps at most one is run in vain.
"""

from __future__ import annotations

CALM = 32  # steps that went well, before more is tried


class StepLimit:
    """``rows``: at most so many in a step; None: no limit but the scheduler's options."""

    def __init__(self) -> None:
        self.rows: int | None = None
        self._full_at = 0  # rows of the step that set it
        self._calm = 0

    def halve(self, rows: int) -> bool:
        """A step of so many rows was full. False: the limit is the least already, one row."""
        if self.rows == 1:
            return False
        if self.rows is None:
            self._full_at = rows
        self.rows = max(1, min(rows, self.rows or rows) // 2)
        self._calm = 0
        return True

    def went_well(self) -> bool:
        """A step was not full. True: there may be more rows from now on."""
        if self.rows is None:
            return False
        self._calm += 1
        if self._calm < CALM:
            return False
        self._calm = 0
        self.rows = None if 2 * self.rows >= self._full_at else 2 * self.rows
        return True

    def chunk(self, tokens: int, least: int) -> int:
        """Tokens of prompts in a step, of so many without a limit; never less than ``least``."""
        return tokens if self.rows is None else max(least, min(tokens, self.rows))
