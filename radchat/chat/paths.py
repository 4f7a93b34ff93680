"""Paths of a tree beside each other: what they share, what each says after it, and what differs.

Input is what the daemon's ``log`` tells of each. Text in, text out: nothing here is cleaned yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from radchat.chat.differing import Step, steps
from radchat.chat.footer import counted, place
from radchat.chat.text import one_line
from radchat.chat.tree_shape import short_ids

Message: TypeAlias = Mapping[str, Any]
Change: TypeAlias = tuple[str, str]  # " ", "-" or "+", and a line or a run of text

# scripts without spaces go by their letters
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])[\w\u0300-\u036f'])+|\s+|[^\w\s]+")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the paths."""

    ref: str  # as it was asked for
    session: str
    name: str  # of the session
    branch: str | None
    message: str | None  # its last; None: before everything
    below: list[Message]  # its messages after the common ones
    label: str  # `price@d9f1`, `other:main@01ab`

    @property
    def tokens(self) -> int | None:
        """None where those of a message are not known yet."""
        return summed(self.below)


@dataclass(frozen=True, slots=True)
class Beside:
    common: list[Message]  # the messages that all of them begin with
    sides: list[Side]
    short: dict[str, str]  # ids, as short as they may be said

    def same(self) -> str:
        """`same to d9f1: 12 messages, 8,371 tokens`"""
        if not self.common:
            return "nothing in common"
        at, messages = self.common[-1]["id"], counted(len(self.common), "message")
        return f"same to {self.short[at]}: {messages}{in_tokens(summed(self.common))}"

    def turns(self) -> str | None:
        """Said where numbers were meant for turns: those of a what-if are good until the next."""
        turns = [side.ref for side in self.sides if side.ref.isdigit() and self._is_turn(side)]
        if not turns:
            return None
        what = "a turn" if len(turns) == 1 else "turns"
        return (
            f"{' and '.join(turns)}: {what} of this path; branches of a what-if go by number "
            "until your next turn, and then by name"
        )

    def _is_turn(self, side: Side) -> bool:
        path = side.below or self.common
        return bool(path) and path[-1]["role"] == "user" and side.branch is None

    def to_json(self) -> dict[str, Any]:
        return {
            "common": {
                "message": self.common[-1]["id"] if self.common else None,
                "messages": len(self.common),
                "tokens": summed(self.common),
            },
            "sides": [
                {
                    "ref": side.ref,
                    "session": side.session,
                    "name": side.name,
                    "branch": side.branch,
                    "message": side.message,
                    "tokens": side.tokens,
                    "messages": side.below,
                }
                for side in self.sides
            ],
        }


def summed(messages: Sequence[Message]) -> int | None:
    tokens = [message.get("tokens") for message in messages]
    return None if None in tokens else sum(number or 0 for number in tokens)


def in_tokens(number: int | None) -> str:
    return "" if number is None else f", {counted(number, 'token')}"


def beside(call: Callable[[str], Mapping[str, Any]], refs: Sequence[str]) -> Beside:
    """``call`` asks for the ``log`` of a REF."""
    logs = [call(ref) for ref in refs]
    paths = [list(log["messages"]) for log in logs]
    shared = 0
    while all(len(path) > shared for path in paths):
        if len({path[shared]["id"] for path in paths}) > 1:
            break
        shared += 1
    short = short_ids({str(message["id"]) for path in paths for message in path})
    many = len({log["session"] for log in logs}) > 1
    sides = []
    for ref, log, path in zip(refs, logs, paths, strict=True):
        end = path[-1] if path else None
        branches = [str(name) for name in (end or {}).get("branches") or ()]
        branch = ref if ref in branches else next(iter(branches), None)
        label = place(branch, end["id"], short[end["id"]]) if end else "(before everything)"
        if end and branch is None:
            label = short[end["id"]]
        prefix = f"{one_line(str(log.get('name') or log['session'][:8]))}:" if many else ""
        sides.append(
            Side(
                ref=ref,
                session=str(log["session"]),
                name=str(log.get("name") or ""),
                branch=branch,
                message=None if end is None else str(end["id"]),
                below=path[shared:],
                label=prefix + label,
            )
        )
    return Beside(paths[0][:shared], sides, short)


# -- what differs ----------------------------------------------------------------------------------


def pairs(a: Sequence[Message], b: Sequence[Message]) -> Iterator[tuple[Message | None, ...]]:
    """Messages of two paths that stand for each other, by their roles and in order; None where
    only one of them has such a one. A file that came with a message comes before it.
    """
    left, right = list(_with_files(a)), list(_with_files(b))
    ours, theirs = ([str(message["role"]) for message in path] for path in (left, right))
    for what, a0, a1, b0, b1 in steps(ours, theirs)[0]:
        if what == "equal":
            yield from zip(left[a0:a1], right[b0:b1], strict=True)
        else:
            yield from ((message, None) for message in left[a0:a1])
            yield from ((None, message) for message in right[b0:b1])


def _with_files(path: Sequence[Message]) -> Iterator[Message]:
    for message in path:
        for file in message.get("files") or ():
            yield {"role": f"file {file['name']}", "text": file["text"], "id": message["id"]}
        yield message


class Changes(NamedTuple):
    of: list[Change]
    is_rough: bool  # a stretch was too long to be compared, and counts as replaced


def by_lines(a: str | None, b: str | None) -> Changes:
    """Lines kept, taken and put; those of each text in its order. None: there is no such text."""
    left, right = ([] if text is None else text.split("\n") for text in (a, b))
    found: list[Change] = []
    told, is_rough = steps(left, right)
    for what, a0, a1, b0, b1 in told:
        if what == "equal":
            found += [(" ", line) for line in left[a0:a1]]
        else:
            found += [("-", line) for line in left[a0:a1]]
            found += [("+", line) for line in right[b0:b1]]
    return Changes(found, is_rough)


def by_words(a: str | None, b: str | None) -> Changes:
    """Runs of text kept, taken and put: those that were kept or taken are ``a``, those that were
    kept or put ``b``, letter for letter.
    """
    left, right = _LINES.findall(a or ""), _LINES.findall(b or "")
    found: list[Change] = []
    told, is_rough = steps(left, right)
    for what, a0, a1, b0, b1 in told:
        ours, theirs = "".join(left[a0:a1]), "".join(right[b0:b1])
        if what == "replace":
            words = _words(_WORDS.findall(ours), _WORDS.findall(theirs))
            found += words.of
            is_rough = is_rough or words.is_rough
        else:
            found += [("-", ours), ("+", theirs)] if what != "equal" else [(" ", ours)]
    return Changes(_joined(found), is_rough)


def _words(left: list[str], right: list[str]) -> Changes:
    told, is_rough = steps(left, right)
    return Changes(list(_told(told, left, right)), is_rough)


def _told(told: Sequence[Step], left: list[str], right: list[str]) -> Iterator[Change]:
    for number, (what, a0, a1, b0, b1) in enumerate(told, 1):
        ours, theirs = "".join(left[a0:a1]), "".join(right[b0:b1])
        is_between = 1 < number < len(told) and "\n" not in ours
        if what != "equal" or (is_between and not any(c.isalnum() for c in ours)):
            yield "-", ours  # a space or a comma between two changes is no word that was kept
            yield "+", theirs
        else:
            yield " ", ours


def _joined(changes: Iterable[Change]) -> list[Change]:
    """What was taken before what was put, each in one run, between two kept ones."""
    found: list[Change] = []
    texts = {"-": "", "+": ""}
    for mark, text in (*changes, (" ", "")):
        if mark != " ":
            texts[mark] += text
            continue
        found += [each for each in texts.items() if each[1]]
        texts = {"-": "", "+": ""}
        if found and found[-1][0] == " ":
            found[-1] = (" ", found[-1][1] + text)
        else:
            found += [(" ", text)] if text else []
    return found


def num_words(changes: Sequence[Change], mark: str) -> int:
    return sum(len(text.split()) for each, text in changes if each == mark)
