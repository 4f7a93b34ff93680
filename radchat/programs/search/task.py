"""A task: what a search says to the model, what its answers may be, and how they are read.

    task = Task("haiku", step="Write line {step} of a haiku about {problem}.")

Everything has a default: that of the free-form search (prompts.py). ``thoughts`` are the texts of
a path, from the first one on. Where ``thoughts`` is empty the problem has not been said yet, and
the prompt says it. What the model answered is read whatever it is: reading never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal, TypeAlias, TypeVar

from radchat.chat.options import nearest
from radchat.errors import UsageError
from radchat.programs.python_file import ProgramFailed, failure
from radchat.programs.search import prompts
from radchat.programs.search.grammars import (
    Grammar,
    choices,
    line,
    numbered,
    pattern_of,
    regex,
    sentence,
)

State: TypeAlias = Literal["open", "dead", "solved"]
Thoughts: TypeAlias = Sequence[str]
T = TypeVar("T")

# how it is searched, where no flag says so: names of a search's settings
SETTINGS = (
    *("method", "generate", "evaluate", "select"),
    *("depth", "branch", "beam", "n_eval", "stop_score", "thought_tokens", "temperature"),
)
_NUMBER = re.compile(r"\s*(?:\d+[.)]|[-*•])\s+")
_PROMPTS = ("opening", "step", "first", "propose", "value", "vote", "answer")


@dataclass(frozen=True)
class Task:
    name: str
    source: str = ""  # the file it is from

    opening: str = "{problem}"  # above the first prompt of a branch
    step: str = ""
    first: str = ""  # instead of it where there is no thought yet
    propose: str = prompts.PROPOSE
    value: str = prompts.VALUE
    vote: str = prompts.VOTE
    answer: str = prompts.ANSWER

    # what a thought may be: of (problem, thoughts so far), or the same for all; None: a line
    thought: Grammar | Callable[[str, Thoughts], Grammar] | None = None
    # a rating, and what it is worth
    values: Mapping[str, float] = field(default_factory=lambda: prompts.VALUES)
    # whether the last of the thoughts ends it: of (problem, thoughts)
    check: Callable[[str, Thoughts], State] | None = None
    # the answer, where it follows from the thoughts: the last turn is held to it
    final: Callable[[str, Thoughts], str | None] | None = None
    # what makes two siblings the same thought: of (problem, thoughts), the last is the one
    key: Callable[[str, Thoughts], str] | None = None
    # why a text is no problem of this task; None: it is one
    refuse: Callable[[str], str | None] | None = None

    method: Literal["bfs", "dfs", "beam"] | None = None
    generate: Literal["sample", "propose"] | None = None
    evaluate: Literal["value", "vote", "logprob"] | None = None
    select: Literal["greedy", "sample"] | None = None
    depth: int = 3
    branch: int | None = None
    beam: int | None = None
    n_eval: int | None = None
    stop_score: float | None = None
    thought_tokens: int | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name in _PROMPTS:
            _check_prompt(name, getattr(self, name))
        if not self.values or not all(self.values):
            raise ValueError("values: want one word or more, none of them empty")

    @property
    def ref(self) -> str:
        """What ``find_task`` finds it by again."""
        return self.source or self.name

    def defaults(self) -> dict[str, Any]:
        """Settings of a search that the task has a wish for."""
        wished = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in wished.items() if value is not None}

    @property
    def says_depth(self) -> bool:
        """What it says to the model is another thing where the depth is another."""
        return any("depth" in _fields(getattr(self, name)) for name in _PROMPTS)

    def check_problem(self, problem: str) -> None:
        """UsageError where the text is no problem of this task."""
        why = self.refuse and self._own(self.refuse, problem)
        if why:
            raise UsageError(f"{self.name}: {why}")

    # -- what is said ------------------------------------------------------------------------------

    def first_text(self, problem: str) -> str:
        return self.step_text(problem, ())

    def step_text(self, problem: str, thoughts: Thoughts) -> str:
        prompt = self.step or prompts.STEP
        if not thoughts:
            prompt = self.first or self.step or prompts.FIRST
        return self._opened(prompt, problem, thoughts, len(thoughts) + 1)

    def propose_text(self, problem: str, thoughts: Thoughts, count: int) -> str:
        return self._opened(self.propose, problem, thoughts, len(thoughts) + 1, count=count)

    def value_text(self, problem: str, thoughts: Thoughts) -> str:
        return self._filled(self.value, problem, thoughts, len(thoughts))

    def vote_text(self, problem: str, thoughts: Thoughts, candidates: Sequence[str]) -> str:
        listed = {"count": len(candidates), "candidates": _listed(candidates)}
        return self._opened(self.vote, problem, thoughts, len(thoughts) + 1, **listed)

    def answer_text(self, problem: str, thoughts: Thoughts) -> str:
        return self._filled(self.answer, problem, thoughts, len(thoughts))

    def _opened(
        self, prompt: str, problem: str, thoughts: Thoughts, step: int, **more: object
    ) -> str:
        text = self._filled(prompt, problem, thoughts, step, **more)
        if thoughts or "problem" in _fields(prompt):
            return text
        return self._filled(self.opening, problem, thoughts, step) + "\n\n" + text

    def _filled(
        self, prompt: str, problem: str, thoughts: Thoughts, step: int, **more: object
    ) -> str:
        return prompt.format(
            problem=problem,
            thoughts=_listed(thoughts),
            last=thoughts[-1] if thoughts else "",
            step=step,
            depth=self.depth,
            **more,
        )

    # -- what may be answered ----------------------------------------------------------------------

    def thought_grammar(self, problem: str, thoughts: Thoughts) -> Grammar:
        if callable(self.thought):
            return self._own(self.thought, problem, thoughts)
        # a model that ends a line, and not its answer, has ended both
        return self.thought or regex(line(prompts.MAX_LINE) + r"\n{0,2}")

    def proposals_grammar(self, problem: str, thoughts: Thoughts, count: int) -> Grammar:
        """``count`` numbered lines, any where a thought is no regular expression; sentences where
        our own prompt asks for them and nothing else is said.
        """
        pattern = self.thought and pattern_of(self.thought_grammar(problem, thoughts))
        is_ours = self.thought is None and self.propose == prompts.PROPOSE
        any_one = sentence if is_ours else line
        return numbered(pattern or any_one(prompts.MAX_LINE // 2), count)

    def value_grammar(self) -> Grammar:
        return choices(list(self.values))

    def vote_grammar(self, count: int) -> Grammar:
        return choices(_numbers(count))

    def answer_grammar(self, problem: str, thoughts: Thoughts) -> Grammar | None:
        """None: the answer is free."""
        answer = self.final and self._own(self.final, problem, thoughts)
        return choices([answer]) if answer else None

    # most tokens of each, an end included: no token is less than a byte
    @property
    def value_tokens(self) -> int:
        return _most_tokens(list(self.values))

    def vote_tokens(self, count: int) -> int:
        return _most_tokens(_numbers(count))

    def proposals_tokens(self, count: int, thought_tokens: int) -> int:
        """Each as long as a thought, and its number."""
        return count * (thought_tokens + len(str(count)) + 3)

    # -- how it is read ----------------------------------------------------------------------------

    def read_thought(self, text: str) -> str:
        return text.strip()

    def read_proposals(self, text: str, count: int) -> list[str]:
        """``count`` at most; one that was cut off is what there is of it."""
        lines = [_NUMBER.sub("", each, count=1).strip() for each in text.splitlines()]
        return [each for each in lines if each][:count]

    def read_value(self, text: str) -> float:
        """Of a word that was cut off, what it may have been; of what is no rating, the least."""
        said = text.strip()
        if said in self.values:
            return self.values[said]
        near = [word for word in self.values if said and word.startswith(said)]
        near = near or sorted((word for word in self.values if word in said), key=len)[-1:]
        return self.values[near[0]] if near else min(self.values.values())

    def read_vote(self, text: str, count: int) -> int:
        """The number voted for, from 1; of what names none of them, the first."""
        found = re.search(r"\d{1,9}", text)
        number = int(found[0]) if found else 1
        return number if 1 <= number <= count else 1

    # -- what the task knows -----------------------------------------------------------------------

    def state_of(self, problem: str, thoughts: Thoughts) -> State:
        if self.check is None:
            return "open"
        state = self._own(self.check, problem, thoughts)
        if state not in ("open", "dead", "solved"):
            where = self.source or self.name
            raise ProgramFailed(f"{where}: check gave {state!r}: want open, dead or solved")
        return state

    def key_of(self, problem: str, thoughts: Thoughts) -> str:
        """Siblings with the same key are one thought."""
        if self.key is not None:
            return self._own(self.key, problem, thoughts)
        return " ".join(thoughts[-1].split()).casefold()

    def final_answer(self, problem: str, thoughts: Thoughts) -> str | None:
        """The answer, where it follows from the thoughts."""
        return self.final and self._own(self.final, problem, thoughts)

    def _own(self, function: Callable[..., T], *args: Any) -> T:
        """The user's own code: a failure of it is told with its line."""
        try:
            return function(*args)
        except Exception as error:
            if not self.source:
                raise
            raise failure(self.source, error) from error


def _fields(prompt: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(prompt) if name is not None}


def _check_prompt(name: str, prompt: str) -> None:
    """ValueError, raised where the task is written down."""
    known = (*prompts.FIELDS, *prompts.MORE_FIELDS.get(name, ()))
    try:
        fields = _fields(prompt)
    except ValueError as error:
        raise ValueError(f"{name}: {error} (a brace that is meant is written twice)") from None
    for each in sorted(fields - set(known)):
        near = nearest(each, known)
        hint = f"did you mean {{{near}}}?" if near else f"it knows {', '.join(known)}"
        raise ValueError(f"{name}: {{{each}}} is nothing that is filled in: {hint}")


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def _most_tokens(texts: Sequence[str]) -> int:
    return max(len(text.encode()) for text in texts) + 1
