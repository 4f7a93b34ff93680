"""A tree of thoughts that is there before it is searched: the task that asks for it, and the script
by which a model knows it (scripted.py).

``--task tests/thinking.py``. A thought is one of four words, of which each place has its own; its
rating, and who of its siblings is voted for, follow from the words on its path.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from radchat.programs.search.task import Task

VALUES = {"awful": -1.5, "poor": 0.0, "fair": 2.0, "good": 4.0, "great": 7.5}
task = Task(
    "thinking",
    step="STEP",
    propose="PROPOSE {count}",
    value="VALUE",
    vote="VOTE\n{candidates}",
    answer="ANSWER",
    values=VALUES,
    temperature=1.0,
    thought_tokens=24,
)


def says(turns: Sequence[tuple[str, str]]) -> Mapping[str, float]:
    """The script."""
    kind, _, rest = turns[-1][1].rpartition("\n\n")[2].partition("\n")
    path = path_of(turns)
    if kind == "STEP":
        return words(path)
    if kind.startswith("PROPOSE"):
        count = int(kind.split()[1])
        several = [*words(path), *words((*path, "more"))][:count]
        return {"\n".join(f"{n}. {word}" for n, word in enumerate(several, start=1)): 1.0}
    if kind == "VALUE":
        return {rating(path): 1.0}
    if kind == "VOTE":
        return {str(1 + vote(path, [line.split()[1] for line in rest.splitlines()])): 1.0}
    if kind == "ANSWER":
        return {f"the answer after {' '.join(path)}": 1.0}
    return {f"you said {turns[-1][1]}": 1.0}


def path_of(turns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The thoughts so far: what was answered where a step was asked for."""
    pairs = pairwise(text for _, text in turns)
    return tuple(said for asked, said in pairs if asked.endswith("STEP"))


def words(path: Sequence[str]) -> dict[str, float]:
    """The next thoughts there may be, and how likely each is."""
    found = (_drawn("word", path, number) for number in range(4))
    return {_letters(each, 4 + each[0] % 12): 1.0 + number for number, each in enumerate(found)}


def logprob(path: Sequence[str], word: str) -> float:
    """Of the whole word, its end included."""
    odds = words(path)
    return math.log(odds[word] / sum(odds.values()))


def rating(path: Sequence[str]) -> str:
    return list(VALUES)[_drawn("rating", path)[0] % len(VALUES)]


def vote(path: Sequence[str], candidates: Sequence[str]) -> int:
    """The index of the best of them."""
    return max(range(len(candidates)), key=lambda index: _drawn("vote", path, candidates[index]))


def _drawn(*what: object) -> bytes:
    return hashlib.blake2b(repr(what).encode(), digest_size=20).digest()


def _letters(drawn: bytes, num: int) -> str:
    return "".join(chr(97 + each % 26) for each in drawn[:num])
