"""A vote on the screen: the samples while they come, then which answer has how many votes.

The samples are shown as what-ifs are (chat/many.py), each named by its answer once it has one; the
table and all else about them goes to stderr. Nothing of an answer that was stopped counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.chat.branches import Branch, Branches, shared_line
from radchat.chat.footer import SEPARATOR, counted
from radchat.chat.many import BOLD, ManyView
from radchat.chat.text import one_line
from radchat.chat.view import RESET
from radchat.chat.width import cut, table
from radchat.errors import OutputInvalid, RadchatError
from radchat.programs.extracting import Extraction
from radchat.programs.vote import EACH, Row, Tally

HEAD = ["votes", "share", "answer", "the first of them"]
MOST_ROWS = 10
ANSWER, WORDS = 32, 60  # columns of an answer, and of the first words of who gave it
NONE = "(none)"


@dataclass(slots=True)
class Voters(Branches):
    tally: Tally = field(default_factory=lambda: Tally(0, str))

    @property
    def counts(self) -> str:
        """`7 of 16: 4 for 42, 2 for 41 · 1,213 tokens`"""
        tokens = sum(each.num_tokens for each in self.all)
        parts = (one_line(self.tally.line), counted(tokens, "token") if tokens else "")
        return SEPARATOR.join(part for part in parts if part)


@dataclass(kw_only=True)
class VoteView(ManyView):
    extraction: Extraction
    stops_early: bool = False
    shows_table: bool = True
    branches: Voters = field(default_factory=Voters)
    _misfits: list[int] = field(default_factory=list)  # samples that are not of the wanted form
    _cut: list[int] = field(default_factory=list)  # numbers of those counted, but cut off
    _decided_after: int = 0  # so many were whole when the others were stopped
    _has_told: bool = False

    @property
    def tally(self) -> Tally:
        return self.branches.tally

    def finish(self) -> None:
        super().finish()
        self.extraction.close()
        if not self._has_told and self.answer.init:
            self._has_told = True
            self._tell_votes()

    # --- events ---

    def _on_init(self, data: dict[str, Any]) -> None:
        super()._on_init(data)
        self.branches.tally = Tally(len(self.branches.all), self.extraction.key)

    def _on_message(self, data: dict[str, Any]) -> None:
        branch = self.branches.of(data)
        if branch is not None:
            branch.name = self._take(branch, data)
        super()._on_message(data)
        if self.stops_early and self.tally.is_decided:
            self._stop()

    def _take(self, branch: Branch, body: Mapping[str, Any]) -> str:
        """The answer on a line, if it is whole and has one."""
        choice = branch.number - 1
        if body.get("finish_reason") not in ("stop", "length", "dead_end"):
            self.tally.lose(choice)
            return ""
        if is_misfit(body):
            self._misfits.append(branch.number)
            self.tally.lose(choice)
            return ""
        if body["finish_reason"] == "length":
            self._cut.append(branch.number)
        answer = self.extraction.find(str(body["text"]))
        self.tally.add(choice, answer)
        return NONE if answer is None else "" if self.extraction.is_whole else one_line(answer)

    def _stop(self) -> None:
        if self._decided_after or not self.tally.running or self.is_cancelled:
            return
        self._decided_after = self.tally.num_whole
        for each in self.branches.all:
            each.is_stopping = not each.has_ended
        with contextlib.suppress(RadchatError, OSError):  # they have just ended, or the daemon has
            self.cancel(request=self.answer.init.get("request"))

    # --- what stays ---

    def _tell_end(self) -> None:
        """In finish, whether or not texts are shown."""

    def _tell_votes(self) -> None:
        if not self.shows_table:
            return
        if self.tally.num_whole:
            head, first, *rest = self.table(self.width())
            bold = f"{BOLD}{first}{RESET}" if self.paints else first
            self.err.write("".join(f"{line}\n" for line in (head, bold, *rest)))
            self.err.flush()
        for line in self._remarks():
            self.note(line)

    def table(self, columns: int | None) -> list[str]:
        """A line for the head, one at least for the answers; ``columns`` of a terminal."""
        rows = self.tally.rows
        shown = [self._row(row) for row in rows[:MOST_ROWS]]
        if rows[MOST_ROWS:]:
            count = sum(row.count for row in rows[MOST_ROWS:])
            more = f"{len(rows) - MOST_ROWS} more answers"
            shown.append([str(count), self._share(count), more, ""])
        if without := self.tally.without:
            words = self._words(self.branches.all[without[0]])
            shown.append([str(len(without)), self._share(len(without)), NONE, words])
        lines = table(shown, HEAD, frozenset((0, 1)))
        return lines if columns is None else [cut(line, columns) for line in lines]

    def _row(self, row: Row) -> list[str]:
        answer = cut(one_line(row.answer), WORDS if self.extraction.is_whole else ANSWER)
        first = self.first(row)
        words = first.at if self.extraction.is_whole else self._words(first)
        return [str(row.count), self._share(row.count), answer, words]

    def _share(self, count: int) -> str:
        return f"{100 * self.tally.share(count):.1f}%"

    def _words(self, branch: Branch) -> str:
        return f"{branch.at}  {cut(one_line(branch.text), WORDS)}".strip()

    def first(self, row: Row) -> Branch:
        """Of those that gave the answer: one that is kept and was not cut off, if there is one."""
        voters = [self.branches.all[choice] for choice in row.choices]
        return min(voters, key=lambda each: (each.message is None, each.is_cut))

    def _remarks(self) -> list[str]:
        """What is to be known of the count, a line each."""
        tally, lines = self.tally, []
        if tied := tally.tied:
            names = listed([cut(one_line(row.answer), ANSWER) for row in tied], EACH)
            votes = counted(tied[0].count, "vote")
            lines.append(f"a tie: {names} have {votes} each; the one said first is taken")
        stopped = sum(each.phase == "stopped" for each in self.branches.all)
        if self._decided_after and stopped:  # they may have ended meanwhile
            after = f"decided after {self._decided_after} of {tally.num}"
            lines.append(f"{after}: {counted(stopped, 'other')} stopped")
        if self._cut:
            lines.append(f"cut off, and counted as they are: {_numbers(self._cut)}")
        if self._misfits:
            wrong = _numbers(self._misfits)
            lines.append(f"not of the form that was asked for, and not counted: {wrong}")
        if self._num_given_up:
            texts = counted(self._num_given_up, "text")
            lines.append(
                f"given up after a second, in {texts}: the search for {self.extraction.what}"
            )
        if self.answer.done:
            lines.append(shared_line(tally.num, self.answer.done, "answer"))
        return lines

    @property
    def _num_given_up(self) -> int:
        """Texts in which a search took too long."""
        matcher = self.extraction.matcher
        return 0 if matcher is None else matcher.num_given_up

    def cancelled(self, session: str = "") -> str:
        if not self.answer.init:
            return "cancelled"
        place = f" in {session}" if session else ""
        rows = self.tally.rows
        if not self.branches.said:
            line = f"cancelled before an answer: the question is kept{place}"
            way = f"retry {str(self.answer.init.get('user'))[:4]}` answers it"
        elif rows:
            done = f"{self.tally.num_whole} of {counted(self.tally.num, 'answer')}"
            line = f"cancelled after {done}, all that came is kept{place}"
            most = cut(one_line(rows[0].answer), ANSWER)
            way = f"switch {self.first(rows[0]).at.removeprefix('@')}` goes to one for {most}"
        else:
            line = f"cancelled: what came so far is kept{place}"
            way = "tree` shows it"
        return f"{line}; `{self.command}{way}" if self.continues else line

    # --- what came of it ---

    def winner(self) -> Row:
        """The answer with the most votes; OutputInvalid where there is none."""
        if rows := self.tally.rows:
            return rows[0]
        num, whole = counted(self.tally.num, "answer"), self.tally.num_whole
        why = f"none of {num} has {self.extraction.what}"
        if not whole:
            lack = "of the form that was asked for" if self._misfits else "whole"
            why = f"none of {num} is {lack}"
        place = one_line(str(self.answer.done.get("name") or self.answer.done.get("session")))
        kept = f"{why}: what they say is kept in {place}"
        raise OutputInvalid(
            f"{kept}; `{self.command}tree` shows it" if self.continues else kept,
            session=self.answer.done.get("session"),
            branches=self._bodies(),
        )

    def document(self, moved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Of `--json`; ``moved``: where HEAD went, as `branch.advance` tells it."""
        tally, winner = self.tally, self.winner()
        shares = [
            {
                "answer": row.answer,
                "votes": row.count,
                "share": tally.share(row.count),
                "message": self.first(row).message,
                "choices": list(row.choices),
            }
            for row in tally.rows
        ]
        where = {"branch": moved["branch"], "message": moved["head"]} if moved else None
        bodies = self._bodies()
        for body in bodies:
            if where and body["message"] == where["message"]:
                body["branch"] = where["branch"]
        return {
            **self.answer.done,
            "answer": winner.answer,
            "shares": shares,
            "tied": [row.answer for row in tally.tied],
            "without": tally.without,
            "counted": tally.num_whole,
            "given_up": self._num_given_up,
            **(where or {"branch": None, "message": None}),
            "branches": bodies,
            "head": where or self.answer.done["head"],
        }

    def _bodies(self) -> list[dict[str, Any]]:
        """As `ask --json` has them, each with its answer; null where it has no vote."""
        found = self.tally.answers
        return [{**body, "answer": found.get(body["choice"])} for body in self.answer.branches]


def is_misfit(body: Mapping[str, Any]) -> bool:
    """It was held to a form and does not have it."""
    is_broken = body.get("finish_reason") in ("length", "dead_end") or body.get("schema_error")
    return body.get("grammar") is not None and bool(is_broken)


def _numbers(numbers: Sequence[int]) -> str:
    """`answers 2, 5 and 9`"""
    told = listed([str(number) for number in sorted(numbers)], MOST_ROWS)
    return f"answer{'s' if numbers[1:] else ''} {told}"


def listed(words: Sequence[str], most: int) -> str:
    """`a`, `a and b`, `a, b and 3 more`"""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    first, last = ", ".join(words[:-1]), words[-1]
    return f"{first} and {last}" if first else last
