"""What a label of kind ``score`` says: the name of a thought, how good it was found, or both.

``s1.1.2=7.5``: the session's first search, the path of the thought in it, and its score. The name
is a REF. A score keeps no message from ``prune``: a search leaves many, and few are worth it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from radchat_sessions.messages import Label

_NAME: Final = re.compile(r"s[1-9][0-9]{0,8}(?:\.[1-9][0-9]{0,8})+")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?")


class Score(NamedTuple):
    name: str | None = None
    number: float | None = None


NO_SCORE: Final = Score()


def is_thought(name: str) -> bool:
    """Whether it can be the name of a thought."""
    return _NAME.fullmatch(name) is not None


def read(value: str) -> Score:
    """Of what is neither a name nor a number (another program wrote it) nothing is known."""
    before, equals, after = value.partition("=")
    if is_thought(before):
        return Score(before, _number(after) if equals else None)
    return Score(None, _number(value))


def _number(text: str) -> float | None:
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def by_message(labels: Iterable[Label]) -> Mapping[str, Score]:
    """Those that say something."""
    read_of = {label.message: read(label.value) for label in labels if label.kind == "score"}
    return {message: score for message, score in read_of.items() if score != NO_SCORE}


def in_order(name: str) -> list[int]:
    """To sort names by: ``s1.2`` before ``s1.10``, and each before what follows it."""
    return [int(number) for number in name[1:].split(".")]
