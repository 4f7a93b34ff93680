"""Plans that stay true over steps: made again only when the tree of branches or a table changes."""

from __future__ import annotations

from collections.abc import Sequence

from radchat_kernels.items import Limits, Segment
from radchat_kernels.plan import Plan, plan


class Planner:
    """``plans_made`` counts them: a decode step that is served by the last plan makes none."""

    def __init__(self, limits: Limits, page_size: int) -> None:
        self._limits = limits
        self._page_size = page_size
        self._last: Plan | None = None
        self.plans_made = 0

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """The last plan while it is true of ``segments``, else a new one.

        It is true of the same lone rows, at or beyond the positions it was made for, while they
        fit the pages it knows and those are in their tables still. Tables are compared, and
        copied, by value: whose they are may change them afterwards.
        """
        if self._last is not None and self._is_true(self._last, segments):
            return self._last
        reusable = self._limits.growing and all(s.row_count == 1 for s in segments)
        if reusable:
            segments = [Segment(s.row_begin, 1, s.start, list(s.table)) for s in segments]
        made = plan(segments, self._page_size, limits=self._limits)
        self._last = made if reusable else None
        self.plans_made += 1
        return made

    def forget(self) -> None:
        """The last plan, and with it what an executor keeps there: the next step makes another."""
        self._last = None

    def _is_true(self, made: Plan, segments: Sequence[Segment]) -> bool:
        return len(segments) == len(made.segments) and all(
            now.row_begin == then.row_begin
            and now.row_count == 1
            and then.start <= now.start < len(then.table) * self._page_size
            and _begins_with(now.table, then.table)
            for now, then in zip(segments, made.segments, strict=True)
        )


def _begins_with(table: Sequence[int], pages: Sequence[int]) -> bool:
    if len(table) != len(pages):
        table = table[: len(pages)]
    return (table if isinstance(table, list) else list(table)) == pages
