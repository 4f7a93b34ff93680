"""What one step runs: rows of answers, chunks of prompts, within a budget of tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from radchat.engine.choice import Choice
from radchat.engine.request import Priority

log = logging.getLogger(__name__)
JUMP_ROWS = 64  # of an answer's own, in a step: a longer forced run goes with the prompts
Urgency = Callable[[Choice], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Work:
    """Run tokens [start, end) of a choice in this step."""

    choice: Choice
    start: int
    end: int

    @property
    def draws(self) -> bool:
        return self.end == len(self.choice.ids) and self.choice.request.fill == "answer"


def compose(
    running: Mapping[Priority, Sequence[Choice]],
    *,
    page_size: int,
    chunk_tokens: int,
    scoring_chunk: int,
    urgency: Urgency | None,
    is_short: bool = False,
) -> list[Work]:
    """Foreground rows, foreground chunks, then background with what is left of ``chunk_tokens``.

    What an answer's grammar has forced goes with its last row, wherever that fits the budget.
    Chunks go in order of ``urgency``, or of admission without one; but the oldest prompt of a
    priority has a quarter of the budget, and at least a page, for itself: it never stands still.
    A chunk ends on a page's edge or where the ids end. A short step has none of the background: the
    foreground waits for what comes any moment.
    """
    work: list[Work] = []
    budget = chunk_tokens
    for priority in Priority:
        if priority is Priority.BACKGROUND and budget <= 0:
            break
        extending: list[Choice] = []
        for choice in running[priority]:
            if choice.rows == 1 or _jumps(choice, budget):
                work.append(Work(choice, choice.next_row, len(choice.ids)))
                budget -= choice.rows
            elif choice.rows:
                extending.append(choice)
        if priority is Priority.BACKGROUND and is_short:
            break
        reserved = max(page_size, budget // 4)
        for choice in sorted(extending, key=urgency) if urgency else extending:
            if choice is extending[0]:
                room, reserved = max(budget, page_size), 0
            else:
                room = budget - reserved
            if choice.is_scoring:
                room = min(room, scoring_chunk)
            end = _chunk_end(choice, room, page_size)
            if end > choice.next_row:
                work.append(Work(choice, choice.next_row, end))
                budget -= end - choice.next_row
    return work


def _jumps(choice: Choice, budget: int) -> bool:
    """An answer on its way, with a few ids that its grammar has forced."""
    is_short = choice.num_out > 0 and 0 < choice.rows <= min(JUMP_ROWS, budget)
    return is_short and choice.rows_end == len(choice.ids)


def _chunk_end(choice: Choice, room: int, page_size: int) -> int:
    """Where it has to end, or the last page's edge within ``room`` tokens, if there is one."""
    start, last = choice.next_row, choice.rows_end
    if room >= last - start:
        return last
    return start + max(0, room - (start + room) % page_size)


def tell(number: int, work: Sequence[Work]) -> None:
    """One line of the log a step, at debug: who ran in it, ``+N`` with N tokens of a prompt.

    Of a request only the beginning of its id, and of a choice its number: never any text.
    """
    if not log.isEnabledFor(logging.DEBUG):
        return
    rows = [each.end - each.start for each in work]
    log.debug(
        "step %d: extend %d rows, decode %d rows: %s",
        number,
        sum(num for num in rows if num > 1),
        rows.count(1),
        " ".join(map(_name, work)),
    )


def _name(work: Work) -> str:
    head, dot, part = work.choice.request.id.partition(".")  # a what-if's requests: id, id.1, id.2
    num = work.end - work.start
    return f"{head[:4]}{dot}{part[:4]}/{work.choice.index}" + (f"+{num}" if num > 1 else "")
