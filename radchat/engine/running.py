"""Who runs: in order of admission, with what priority, and what they may want of the pool soon.

The sums over all who run are made when first asked for, and forgotten when who runs, for whom, or
how long their tables are is no longer what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radchat.engine.batch import Work
from radchat.engine.choice import Choice
from radchat.engine.request import Priority
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.step_limit import StepLimit


class Running:
    def __init__(self, options: SchedulerOptions, page_size: int) -> None:
        self.choices: list[Choice] = []  # in order of admission
        self.limit = StepLimit()
        self.last_try: Choice | None = None  # by itself, by the least there is, it was full
        self._options = options
        self._page_size = page_size
        self._admissions = 0
        self._rivals: dict[Priority, int] = {}
        self._growth: int | None = None

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    def add(self, choice: Choice, priority: Priority) -> None:
        self._admissions += 1
        choice.admitted = self._admissions
        choice.lent = priority
        self.choices.append(choice)
        self._forget_sums()

    def remove(self, choice: Choice) -> None:
        self.choices.remove(choice)
        self._forget_sums()

    def clear(self) -> None:
        self.choices.clear()
        self._forget_sums()

    def renew(self) -> None:
        """A new step: nothing is lent yet, nobody followed, and the tables have grown."""
        for choice in self.choices:
            choice.lent = choice.request.priority
            choice.followers = 0
        self._forget_sums()

    def lend(self, choice: Choice, priority: Priority) -> None:
        """Let it run for someone of this priority, if that is before what it has."""
        if priority < choice.lent:
            choice.lent = priority
            self._forget_sums()

    # -- priorities ---------------------------------------------------------------------------

    def is_worn(self, choice: Choice) -> bool:
        """Put back too often, also where it waits: it runs when no other is in its way."""
        return choice.retractions >= self._options.max_retractions

    def has_others(self, priority: Priority) -> bool:
        """Whether any run that one of this priority, which is worn, waits for."""
        if priority is Priority.FOREGROUND:
            return bool(self.choices)
        return len(self.choices) > self.num_rivals(Priority.FOREGROUND)

    def by_priority(self) -> dict[Priority, list[Choice]]:
        result: dict[Priority, list[Choice]] = {priority: [] for priority in Priority}
        for choice in self.choices:
            result[choice.lent].append(choice)
        return result

    def num_rivals(self, priority: Priority) -> int:
        """How many run with this priority or before it: those that count against its places."""
        if priority not in self._rivals:
            self._rivals[priority] = sum(other.lent <= priority for other in self.choices)
        return self._rivals[priority]

    def victim(self) -> Choice:
        """Whom to put back first: of the last priority, the newest."""
        return max(self.choices, key=self._newness)

    def victim_of_rows(self) -> Choice | None:
        """The same of those that have rows in a step; None: at most one has."""
        having = [choice for choice in self.choices if choice.rows]
        return max(having, key=self._newness) if len(having) > 1 else None

    def has_rows_for(self, more: int, *, least: int = 0) -> bool:
        """Whether a step may have, besides so many rows, a row or a prompt's page of each.

        ``least``: of each one, where it has none yet but will have.
        """
        most, page = self.limit.rows, self._page_size
        if most is None:
            return True
        return more + sum(max(least, min(page, each.rows)) for each in self.choices) <= most

    def _newness(self, choice: Choice) -> tuple[Priority, int]:
        return choice.lent, choice.admitted

    # -- the device's memory ------------------------------------------------------------------

    def step_was_full(self, work: Sequence[Work]) -> Choice | None:
        """Fewer rows from now on. Gives the choice that must end: by itself a row of it, or a
        page of its prompt, has been full twice in a row.
        """
        for each in work:
            if not each.choice.was_full:
                each.choice.was_full, each.choice.limit_before = True, self.limit.rows
        rows = [each.end - each.start for each in work]
        page, num_rows, before = self._page_size, sum(rows), self.last_try
        is_least = len(rows) == 1 and num_rows <= page
        self.last_try = work[0].choice if is_least else None
        if is_least:
            self.limit.halve(num_rows, num_rows)  # so nobody runs beside it
        else:
            self.limit.halve(num_rows, page if max(rows) > 1 and num_rows > page else 1)
        return before if before is self.last_try else None

    def step_went_well(self, work: Sequence[Work]) -> bool:
        """True: there may be more rows from now on."""
        self.last_try = None
        if not self.limit.went_well(sum(each.end - each.start for each in work)):
            return False
        for choice in self.choices:
            choice.was_full = False
        return True

    def ended(self, choice: Choice) -> None:
        """What it alone was too much for is no reason to hold others back."""
        if choice is self.last_try:
            self.limit.back_to(choice.limit_before)
            self.last_try = None

    # -- the pool's pages ---------------------------------------------------------------------

    def growth(self) -> int:
        """Pages that all who run may want soon."""
        if self._growth is None:
            self._growth = 0
            for each in self.choices:
                assert each.lease is not None
                self._growth += self.growth_of(each, len(each.lease.table))
        return self._growth

    def growth_of(self, choice: Choice, table_len: int) -> int:
        """Pages that one may want soon, with a table of so many, also while it still waits for
        them; doubled each time it was put back for want of them.
        """
        tokens = min(choice.remaining, self._options.growth_tokens << choice.retractions)
        return max(0, -(-(len(choice.ids) + tokens) // self._page_size) - table_len)

    def _forget_sums(self) -> None:
        self._rivals.clear()
        self._growth = None
