"""A search opened, run and ended well or not, for `radchat think` and for a chat's `/tot`."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radchat.chat.footer import counted
from radchat.chat.search_tree import score_cell
from radchat.chat.search_view import SearchView
from radchat.chat.text import one_line
from radchat.chat.view import View
from radchat.chat.width import cut
from radchat.cli.common import is_terminal
from radchat.cli.printed import Printed
from radchat.errors import InvalidInput
from radchat.protocol import Event

if TYPE_CHECKING:
    from radchat.chat.host import Host
    from radchat.client import Client
    from radchat.programs.search.asks import DaemonAsks, Output
    from radchat.programs.search.settings import Search
    from radchat.programs.search.task import Task
    from radchat.programs.search.think import Outcome

OF_ANSWER = ("max_tokens", "stop", "seed")  # sampling that is none of the thoughts'
FREE = "free"  # the task, where none is named
SHOWN = 60  # columns of a problem in a line
ENDED = {
    "solved": "solved",
    "stop score": "the stop score is reached",
    "depth": "the full depth is reached",
    "budget": "the budget is spent",
    "dead ends": "nothing is left to go on from",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is searched for, and how. Without a problem, a search that is there is gone on with."""

    problem: str | None = None
    task: str = FREE
    settings: Mapping[str, Any] = field(default_factory=dict)  # what was given: names of Search's
    resume: str | bool = True  # which search, without a problem: the last, or s1


def with_files(words: str, files: Sequence[Mapping[str, str]]) -> str:
    """As a turn sends them: a file's text under its name, before the words."""
    blocks = [f"{file['name']}:\n\n{file['text'].rstrip()}" for file in files]
    return "\n\n".join([*blocks, words])


def of_thoughts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was given for sampling, what goes for thoughts."""
    return {name: value for name, value in options.items() if name not in OF_ANSWER}


def check_answer(options: Mapping[str, Any]) -> None:
    """What is for the answer only is refused before the search, not after it."""
    if (most := options.get("max_tokens")) is not None and int(most) < 1:
        raise InvalidInput(f"max_tokens: want 1 or more (got {most})", field="max_tokens")


def search_view(host: Host) -> SearchView:
    """On stderr: the tree where it can be painted, else lines."""
    is_able = not (host.quiet or host.plain) and host.env.get("TERM", "") not in ("dumb", "")
    shows = is_able and is_terminal(sys.stderr)
    paints = shows and host.paints(sys.stderr)
    return SearchView(host.note, host.error_columns, sys.stderr if shows else None, paints)


@dataclass
class Searching:
    """An open search. It may be the only life of its session: open until its answer is there."""

    asks: DaemonAsks
    problem: str
    search: Search
    task: Task
    client: Client
    view: SearchView

    @property
    def opened(self) -> Mapping[str, Any]:
        return self.asks.opened

    @property
    def name(self) -> str:
        return f"s{self.opened['number']}"

    @property
    def session(self) -> str:
        """Its name, for a line."""
        return one_line(str(self.opened.get("name") or self.opened["session"]))

    def run(self) -> Outcome:
        """To its end. Ctrl+C leaves it where it is: what was told is stored."""
        from radchat.programs.search.think import think

        task = dataclasses.replace(self.task, depth=self.search.depth)
        try:
            with printing(self.view):
                outcome = think(self.problem, self.search, task, self.asks, listener=self.view)
                self.view.num_spent = outcome.spent
        finally:
            self.view.finish()
        self.view.tell_end(ended(outcome, is_unsolved=self.is_unsolved(outcome)))
        return outcome

    def is_unsolved(self, outcome: Outcome) -> bool:
        """Its task has a checker, and that is not content."""
        return self.task.check is not None and not outcome.is_solved

    def advance(
        self, outcome: Outcome, head: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """HEAD, or a chat's, goes to the best thought: the answer follows there. None: there is no
        thought, or the answer was asked for before, and it stays.
        """
        from radchat.whereabouts import where

        if outcome.best is outcome.root or outcome.asked is not None:
            return None
        moved = self.client.call(
            "branch.advance",
            where=where(),
            session=self.opened["session"],
            message=outcome.best.message,
            expected=self.opened["at"],
            **({"head": dict(head)} if head else {}),
        )
        if moved["made"]:
            self.view.note(f"the answer is on a branch of its own: {one_line(moved['made'])}")
        return moved

    def turn(self, outcome: Outcome, options: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, as ``generate`` is asked for it: as long as what is left of the budget. One
        that was cut off has another beside it.
        """
        options = {"seed": self.search.seed, **options}
        if outcome.answer_tokens is not None:
            most = options.get("max_tokens") or outcome.answer_tokens
            options["max_tokens"] = min(most, outcome.answer_tokens)
        grammar = {} if outcome.answer_grammar is None else {"grammar": outcome.answer_grammar}
        said = {"kind": "turn", "text": outcome.answer_text}
        again = {"kind": "retry", "ref": outcome.asked}
        return {**(again if outcome.asked else said), "options": options, **grammar}

    def stopped(self, again: str) -> str:
        """What Ctrl+C left; ``again``: what to type to go on with it."""
        num = self.view.num_thoughts
        if not num:
            return "stopped before there was a thought"
        kept = "thought is" if num == 1 else "thoughts are"
        return f"stopped: {num:,} {kept} kept in {self.session}; `{again}` goes on"

    def goes_on(self) -> str:
        """What a search that is gone on with is, and how far it had come."""
        told = self.opened["found"]["messages"]
        thoughts = sum(1 for each in told if each["name"])
        tokens = sum(each["tokens"] or 0 for each in told if each["role"] == "assistant")
        problem = cut(one_line(self.problem), SHOWN)
        so_far = f"{counted(thoughts, 'thought')}, {counted(tokens, 'token')} so far"
        return f"going on with {self.name} of {self.session}: {problem} ({so_far})"


def ended(outcome: Outcome, *, is_unsolved: bool) -> str:
    """Why, and what the answer follows; that a checker is not content with it."""
    why, best = ENDED[outcome.reason], outcome.best
    why = f"not solved, {why}" if is_unsolved else why
    if best is outcome.root:
        return f"{why}: the answer follows no thought"
    score = f", score {score_cell(best.score)}" if best.score is not None else ""
    return f"{why}: the answer follows {best.name}{score}"


def show_answer(host: Host, search: Searching, answer: Output, *, renders: bool) -> None:
    """Of a search that had ended before: on stdout, as it would have come."""
    at = answer.message[:4]
    host.note(f"{search.name} of {search.session} has ended: this is its answer ({at})")
    view = View(sys.stdout, sys.stderr, host.note, host.status, renders=renders)
    view.follow([Event("delta", {"choice": 0, "text": answer.text})])


def document(searching: Searching, outcome: Outcome, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` says of it (docs/cli.md). ``answer``: as `ask --json` has it; of one that was
    there already less.
    """
    used = [outcome.usage, answer.get("usage") or {}]
    cache = [outcome.cache, answer.get("cache") or {}]
    return {
        "answer": answer["text"],
        **outcome.json(),
        "usage": _sums(used),
        "cache": _sums(cache),
        "session": searching.opened["session"],
        "branch": answer.get("branch"),
        "message": answer["message"],
        "search": searching.name,
        "task": searching.task.ref,
        "settings": searching.search.json(),
        "spent": outcome.spent + int(used[1].get("output_tokens") or 0),
        "budget": searching.search.budget,
    }


def _sums(counts: list[Mapping[str, Any]]) -> dict[str, int]:
    names = dict.fromkeys(name for each in counts for name in each)
    return {name: sum(int(each.get(name) or 0) for each in counts) for name in names}


@contextlib.contextmanager
def searching(
    connect: Callable[[], Client],
    asked: Asked,
    place: Mapping[str, Any],
    view: SearchView,
    status: Callable[[str], None],
) -> Iterator[Searching]:
    """``place``: where it is, or is to be, and how: the arguments of ``search.open``.

    What is wrong with what was asked is told before a model is loaded.
    """
    from radchat.programs.search.asks import DaemonAsks
    from radchat.programs.search.journal import Stored
    from radchat.programs.search.settings import Search

    begun = None
    if asked.problem is not None:
        task = _task(asked.task, view)
        task.check_problem(asked.problem)
        drawn = {"seed": secrets.randbelow(2**31)}
        search = Search(**{**drawn, **task.defaults(), **asked.settings})
        begun = (asked.problem, search, task)
    status("connecting")
    try:
        client = connect()
        opened = DaemonAsks.open(client, place, on_notice=view.note, on_wait=status)
    finally:
        status("")
    with contextlib.closing(opened) as asks:
        if begun is not None:
            yield Searching(asks, *begun, client, view)
            return
        stored = Stored.of(asks.opened)
        search = stored.search.resumed(asked.settings)
        found = Searching(asks, stored.problem, search, _task(stored.task, view), client, view)
        view.note(found.goes_on())
        yield found


def _task(name: str, view: SearchView) -> Task:
    from radchat.programs.search.task_file import find_task

    with printing(view):
        return find_task(name)


def printing(view: SearchView) -> contextlib.AbstractContextManager[object]:
    """What a task's file prints is no data: it is a note."""
    return contextlib.redirect_stdout(Printed(lambda text: view.note(text.rstrip("\n"))))
