"""Several answers on their way: what the events have told of each so far. Nothing here writes.

One thread takes the events while another may look: texts only grow, and are replaced whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.chat.footer import SEPARATOR, counted, rate
from radchat.chat.text import Cleaner, clean, one_line
from radchat.chat.view import progress
from radchat.chat.width import width

NAMED_COLUMNS = 48  # of a line that names branches
SPEED_AFTER = 8  # tokens: a rate of fewer says nothing


@dataclass(slots=True)
class Branch:
    number: int  # as `switch` takes it
    name: str = ""
    message: str | None = None
    user: str | None = None  # the message it answers
    ask: str = ""  # what it was asked, where that is a message of its own
    text: str = ""  # cleaned, as the reasoning is
    thought: str = ""
    doing: str = ""  # before the first word
    num_tokens: int = 0
    is_stopping: bool = False
    is_left: bool = False  # nobody listens any more
    body: dict[str, Any] = field(default_factory=dict)  # as `ask --json` has it: it has ended
    _first_at: float = 0.0
    _cleaner: Cleaner = field(default_factory=Cleaner)
    _thinker: Cleaner = field(default_factory=Cleaner)

    @property
    def title(self) -> str:
        return f"{self.number} {self.name}".rstrip()

    @property
    def label(self) -> str:
        """`[2] cost-5`, where nothing else tells that it is a heading."""
        return f"[{self.number}] {self.name}".rstrip()

    @property
    def at(self) -> str:
        return f"@{self.message[:4]}" if self.message else ""

    @property
    def phase(self) -> str:
        """In a word, what it is at."""
        if self.body:
            return ENDED.get(str(self.body.get("finish_reason")), "done")
        if self.is_left:
            return "stopped"
        if self.is_stopping:
            return "stopping"
        if self.text or self.thought:
            return "answering" if self.text else "thinking"
        return "reading" if self.doing else "waiting"

    @property
    def state(self) -> str:
        """The same, with how far it is, how much it has said and how fast."""
        if not self.num_tokens:
            return self.doing if self.phase == "reading" else self.phase
        said = [counted(self.num_tokens, "token"), *([rate(self._speed)] if self._speed else [])]
        return ", ".join(said if self.phase == "answering" else [self.phase, *said])

    @property
    def _speed(self) -> float | None:
        """Tokens a second after the first; None of too few to tell."""
        if self.body:
            speed = (self.body.get("timing") or {}).get("tokens_per_s")
            return None if speed is None else float(speed)
        spent = time.monotonic() - self._first_at
        return (self.num_tokens - 1) / spent if self.num_tokens >= SPEED_AFTER else None

    @property
    def has_ended(self) -> bool:
        return bool(self.body)

    @property
    def is_said(self) -> bool:
        """A message, also one of which only a part is known; else there is none."""
        return bool(self.text or self.thought or self.body.get("message"))

    @property
    def is_cut(self) -> bool:
        """At a limit, not by anybody."""
        return self.body.get("finish_reason") == "length"

    def is_full(self, limit: int | None) -> bool:
        """Cut off where the context, of so many tokens, ends."""
        usage = self.body.get("usage") or {}
        used = int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)
        return self.is_cut and bool(limit) and used >= (limit or 0)

    def hear(self, data: dict[str, Any], *, thought: bool = False) -> None:
        self._first_at = self._first_at or time.monotonic()
        self.num_tokens = int(data.get("tokens") or 0)
        if thought:
            self.thought += self._thinker.push(str(data["text"]))
        else:
            self.text += self._cleaner.push(str(data["text"]))

    def end(self, body: dict[str, Any]) -> None:
        self.name = one_line(str(body.get("branch") or self.name))
        self.message = body.get("message")
        self.text = clean(str(body.get("text") or ""))
        self.num_tokens = int((body.get("usage") or {}).get("output_tokens") or self.num_tokens)
        self.body = body


ENDED = {"stop": "done", "length": "cut off", "abort": "stopped", "error": "failed"}


@dataclass(slots=True)
class Branches:
    """All of one call, in the order of their numbers."""

    all: list[Branch] = field(default_factory=list)

    def begin(self, init: dict[str, Any]) -> None:
        rows = init.get("branches") or [
            {"choice": choice, "message": message, "user": init.get("user")}
            for choice, message in enumerate(init.get("messages") or ())
        ]
        self.all = [
            Branch(
                number=int(row["choice"]) + 1,
                name=one_line(str(row.get("branch") or "")),
                message=row.get("message"),
                user=row.get("user"),
                ask=clean(one_line(str(row.get("text") or ""))),
            )
            for row in rows
        ]

    def of(self, data: dict[str, Any]) -> Branch | None:
        choice = int(data.get("choice") or 0)
        return self.all[choice] if 0 <= choice < len(self.all) else None

    def together(self, data: dict[str, Any]) -> list[Branch]:
        """Those that wait for the same prompt: samples of one request."""
        one = self.of(data)
        return [] if one is None else [each for each in self.all if each.user == one.user]

    def progress(self, data: dict[str, Any]) -> None:
        for each in self.together(data):
            each.doing = progress(data)

    @property
    def are_samples(self) -> bool:
        """Answers to the same words."""
        return len({each.user for each in self.all}) == 1

    def ask(self, branch: Branch) -> str:
        """What to show above its answer: nothing where all were asked the same."""
        return "" if self.are_samples or not branch.ask else f"> {branch.ask}"

    def state(self, branch: Branch) -> str:
        """Its own, or whom it waits for: what all have in common is read once."""
        if branch.phase == "waiting":
            for each in self.all:
                if each.phase == "reading":
                    return f"waiting for {each.number}: {each.doing}"
        return branch.state

    @property
    def said(self) -> list[Branch]:
        return [each for each in self.all if each.is_said]

    @property
    def unanswered(self) -> list[Branch]:
        """What-ifs that are there, and have no answer; of a further sample nothing is there."""
        firsts: dict[str | None, Branch] = {}
        for each in self.all:
            firsts.setdefault(each.user, each)
        return [each for each in firsts.values() if each.ask and not each.is_said]

    @property
    def counts(self) -> str:
        """`2 answering, 1 done · 1,213 tokens`"""
        phases = Counter(each.phase for each in self.all)
        told = ", ".join(f"{number} {phase}" for phase, number in phases.items())
        tokens = sum(each.num_tokens for each in self.all)
        return f"{told}{SEPARATOR}{counted(tokens, 'token')}" if tokens else told


def named(branches: Sequence[Branch]) -> str:
    """`1 price, 2 cost`; of many their numbers, `branches 1-4, 7`."""
    line = ", ".join(each.title for each in branches)
    if width(line) <= NAMED_COLUMNS:
        return line
    runs: list[list[int]] = []
    for each in branches:
        if runs and runs[-1][-1] == each.number - 1:
            runs[-1].append(each.number)
        else:
            runs.append([each.number])
    return f"branches {', '.join(_run(numbers) for numbers in runs)}"


def _run(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def shared_line(num: int, done: dict[str, Any], what: str = "branch") -> str:
    """`4 branches · shared 8,371 tokens computed once · new 212`, from what was measured."""
    line = counted(num, what)
    shared = done.get("shared")
    if not shared:
        return line
    keys = ("tokens", "cached", "computed", "new")
    whole, cached, computed, new = (int(shared[key]) for key in keys)
    is_read = cached + computed == whole  # else it was ended before
    ran = int(done["cache"]["computed"])  # a few tokens are not worth waiting for: each runs them
    how = "computed once" if is_read and ran <= computed + new else "computed"
    text = f"{line} · shared {counted(whole, 'token')}"
    if cached and computed:
        text += f", {cached:,} of them cached, {computed:,} {how}"
    elif is_read:
        text += f" {how}" if computed else ", all cached"
    else:
        text += f", {cached or computed:,} of them {'cached' if cached else 'computed'}"
    return f"{text} · new {new:,}" if is_read else text
