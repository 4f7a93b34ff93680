"""A task of a search: from one word to another, a letter at a time, and each step is a word.

    radchat think --task examples/word_ladder.py "cold to warm"
    python examples/word_ladder.py

A task file is a Python file with `task = Task(...)`: prompts, what a thought may be, and a checker.
Here a thought is held to the words that may come next: the smallest model makes no false step, and
has only to find the way. What a task leaves out is as in a search without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from radchat.programs.search.grammars import Grammar, choices
from radchat.programs.search.task import State, Task

WORDS = re.findall(
    r"\w+",
    """
bald ball balm band bank bard bare bark barn bold bolt bond bone bore born calf call calm came card
care cart cold colt come cope cord core cork corn cost dark dart farm fall fill film firm fold fond
ford fore fork form gold golf halo hall hard hare hark harm hold hole home horn lame land lane lard
lark male mark mold more pale palm park part pole pork port sold sole some sore sort tall tale told
tore torn toll walk wall wand want ward ware warm warn wart wild will wolf wood word wore work worm
worn
""",
)


def ends(problem: str) -> tuple[str, str]:
    """The first word and the last: "cold to warm"."""
    named = [word for word in re.findall(r"[a-z]+", problem.lower()) if word in WORDS]
    return named[0], named[-1]


def refuse(problem: str) -> str | None:
    """Why this is no problem of the task; asked first."""
    named = [word for word in re.findall(r"[a-z]+", problem.lower()) if word in WORDS]
    if len(named) != 2:
        return 'want two words that it knows, as "cold to warm"'
    return None if next_words(problem, []) else f"no ladder leads from {named[0]} to {named[1]}"


def right(word: str, end: str) -> int:
    """How many letters are those of the end already."""
    return sum(a == b for a, b in zip(word, end, strict=True))


def next_words(problem: str, thoughts: Sequence[str]) -> list[str]:
    """One letter changes, and never one that is right."""
    start, end = ends(problem)
    path = [start, *thoughts]
    words = [word for word in WORDS if word not in path and right(word, path[-1]) == 3]
    return [word for word in words if right(word, end) >= right(path[-1], end)]


def thought(problem: str, thoughts: Sequence[str]) -> Grammar:
    """What the next thought may be."""
    return choices(next_words(problem, thoughts))


def check(problem: str, thoughts: Sequence[str]) -> State:
    """Of the last thought; those before it are open."""
    if thoughts[-1] not in next_words(problem, thoughts[:-1]):
        return "dead"
    if thoughts[-1] == ends(problem)[1]:
        return "solved"
    return "open" if next_words(problem, thoughts) else "dead"


def final(problem: str, thoughts: Sequence[str]) -> str | None:
    """The answer, where the thoughts have found it; the last turn is held to it."""
    if check(problem, thoughts) != "solved":
        return None
    return " - ".join([ends(problem)[0], *thoughts])


task = Task(
    "word ladder",
    opening="A word ladder: change one letter at a time, and each step is a word. From {problem}.",
    step="The next word?",
    propose="List {count} words that may come next.",
    value="{problem}: how many letters of {last} are in their last place already?",
    values={"0": 0, "1": 1, "2": 2, "3": 3, "4": 4},
    vote="Which of these is the nearest to the end of the ladder?\n{candidates}\nIts number:",
    answer="Write down the whole ladder.",
    thought=thought,
    check=check,
    final=final,
    refuse=refuse,
    depth=6,
    branch=6,
    beam=6,
    n_eval=1,
    thought_tokens=8,
    temperature=1.2,  # no step can be false, so it may be bold
)


def shortest(problem: str) -> list[str]:
    """Without a model: every ladder, the short ones first."""
    paths: list[list[str]] = [[]]
    for path in paths:
        for word in next_words(problem, path):
            if check(problem, [*path, word]) == "solved":
                return [*path, word]
            paths.append([*path, word])
    return []


if __name__ == "__main__":
    for example in ("cold to warm", "gold to wolf", "farm to come", "hard to told", "wild to more"):
        print(final(example, shortest(example)))
