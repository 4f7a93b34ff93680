"""What fills the context: every id of the next prompt belongs to one of PARTS, so they add up.

The ids are those the next turn will send, told by their text: what a message says is looked for in
the text of the ids, in the order of the path. What is left is the template's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.daemon.past import file_block
from radchat.engine.conversation import Prompt, Settings, Turn
from radchat.engine.request import Ids
from radchat_sessions.messages import Message

if TYPE_CHECKING:
    from radchat.engine.template import Template
    from radchat.engine.tokenizer import Tokenizer

PARTS = ("system", "files", "user", "answers", "reasoning", "tools", "template")
KINDS = {"system": "system", "user": "user", "assistant": "answers", "tool": "tools"}
NUM_LARGEST = 5
HIDDEN = "\0"  # stands for each character of a control token: no message is found in one


@dataclass(frozen=True, slots=True)
class Filling:
    parts: dict[str, int]  # tokens of each of PARTS; their sum is the number of ids
    messages: tuple[int, ...]  # tokens of what each message says


def next_prompt(
    template: Template, known: Sequence[Turn], settings: Settings, text: str = ""
) -> Prompt:
    """What the next turn sends, if its message is ``text``.

    Where the path ends in a message that nobody has answered, that one is asked.
    """
    asks = bool(known) and known[-1].role != "assistant"
    return template.prompt(known, [] if asks else [Turn("user", text)], settings)


def fill(
    tokenizer: Tokenizer, open_mark: str, ids: Ids, path: Sequence[Message], text: str = ""
) -> Filling:
    """``text``: what is about to be said after the path."""
    begins, whole, hidden = _characters(tokenizer, ids)
    spans: list[tuple[int, int, str, int]] = []
    at = 0
    said = [*map(_pieces, path), [("user", text)]]
    for index, pieces in enumerate(said):
        for number, (kind, piece) in enumerate(pieces):
            start, end = _find(hidden, piece, at)
            if kind == "reasoning" and start >= 0:
                after = pieces[number + 1][1] if number + 1 < len(pieces) else ""
                before = _find(hidden, after, at)[0] if after.strip() else -1
                marked = whole[:start].rstrip().endswith(open_mark.strip())
                if not marked or -1 < before < start:  # it is not shown: this is a later one's
                    continue
            if start >= 0:
                spans.append((start, end, kind, index))
                at = at if kind == "system" else end  # some templates write it with the last words
    spans.sort()
    parts = dict.fromkeys(PARTS, 0)
    counts = [0] * len(said)
    for kind, message in _owners(begins, spans):
        parts[kind] += 1
        if message is not None:
            counts[message] += 1
    return Filling(parts, tuple(counts[: len(path)]))


def _pieces(message: Message) -> list[tuple[str, str]]:
    """What a message says, in the order in which it is written."""
    files = [("files", file_block(p)) for p in message.parts if p.get("type") == "file"]
    thought = [("reasoning", message.reasoning)] if message.reasoning else []
    return [*files, *thought, (KINDS[message.role], message.text)]


def _characters(tokenizer: Tokenizer, ids: Ids) -> tuple[list[int], str, str]:
    """Where in the text each id begins, the text, and the text without control tokens."""
    stream = tokenizer.detokenizer()
    begins: list[int] = []
    whole: list[str] = []
    hidden: list[str] = []
    at = 0
    for token in ids:
        begins.append(at)
        piece = stream.push(token)
        whole.append(piece)
        hidden.append(HIDDEN * len(piece) if token in tokenizer.control_ids else piece)
        at += len(piece)
    return begins, "".join(whole), "".join(hidden)


def _find(text: str, piece: str, at: int) -> tuple[int, int]:
    """As it is, or as templates trim it; (-1, -1) where it does not show, or says nothing."""
    for form in (piece, piece.strip()):
        start = text.find(form, at) if form.strip() else -1
        if start >= 0:
            return start, start + len(form)
    return -1, -1


def _owners(
    begins: Sequence[int], spans: Sequence[tuple[int, int, str, int]]
) -> Iterator[tuple[str, int | None]]:
    """Of each id: its part, and the message it is of."""
    place = 0
    for begin in begins:
        while place < len(spans) and spans[place][1] <= begin:
            place += 1
        if place < len(spans) and spans[place][0] <= begin:
            yield spans[place][2], spans[place][3]
        else:
            yield "template", None


def largest(path: Sequence[Message], tokens: Sequence[int]) -> list[dict[str, Any]]:
    """The messages that say most, the longest first."""
    turn = 0
    rows: list[dict[str, Any]] = []
    for message, number in zip(path, tokens, strict=True):
        turn += message.role == "user"
        names = [str(p["name"]) for p in message.parts if p.get("type") == "file"]
        body = {"id": message.id, "role": message.role, "turn": turn, "tokens": number}
        rows.append({**body, "files": names, "text": message.text})
    rows.sort(key=lambda row: -row["tokens"])
    return [row for row in rows[:NUM_LARGEST] if row["tokens"]]
