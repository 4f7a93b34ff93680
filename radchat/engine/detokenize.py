"""From ids to text, one id at a time: nothing lost, nothing shown twice, no half characters.

A detokenizer is small and forkable (``copy``). Its rule for text that ends inside a character is
one for streams and for whole answers: ``flush`` gives a single U+FFFD for it, once; the ids stay as
they are, so that going on from them completes the character (``after`` primes a new one with them).

``ByteDetokenizer`` serves every vocabulary whose tokens are bytes (byte-level BPE, SentencePiece
with space marks and byte fallback): a table id → bytes and Python's incremental UTF-8 decoder.
``WindowDetokenizer`` serves the rest by decoding a short window twice. Neither ever strips a first
space: an answer follows a prompt, so its text is decode(prompt + answer) minus decode(prompt).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

SPACE_MARK = "▁"
# Ids that may still matter to the next: a character has at most four bytes, an id at least one.
MAX_PENDING = 8


class Detokenizer(Protocol):
    def push(self, token_id: int) -> str:
        """The characters that have become whole with this id; may be empty."""
        ...

    def flush(self) -> str:
        """What is left of a character that never became whole."""
        ...

    def copy(self) -> Self: ...


class ByteDetokenizer:
    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes], after: Iterable[int] = ()) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in after:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that has become whole; "" while a character is incomplete.

        An id beyond the tokenizer (padding rows of a model's vocabulary) has no text.
        """
        if 0 <= token_id < len(self._table):
            return self._decoder.decode(self._table[token_id])
        return ""

    def flush(self) -> str:
        """The end of the text: U+FFFD if it is inside a character, else ""."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    def copy(self) -> ByteDetokenizer:
        other = ByteDetokenizer(self._table)
        other._decoder.setstate(self._decoder.getstate())
        return other


class WindowDetokenizer:
    """For decoders that are not a table of bytes: ``decode`` is the tokenizer's own."""

    __slots__ = ("_context", "_decode", "_pending")

    def __init__(self, decode: Callable[[list[int]], str], after: Iterable[int] = ()) -> None:
        self._decode = decode
        self._context: list[int] = []  # already shown; decides about spaces
        self._pending: list[int] = []  # not yet shown: ends inside a character
        for token_id in after:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._fresh()
        if text.endswith("\ufffd") and len(self._pending) < MAX_PENDING:
            return ""
        self._context = self._pending
        self._pending = []
        return text

    def flush(self) -> str:
        text = self._fresh() if self._pending else ""
        self._context += self._pending
        self._pending = []
        whole = text.rstrip("\ufffd")
        return whole if whole == text else whole + "\ufffd"

    def copy(self) -> WindowDetokenizer:
        other = WindowDetokenizer(self._decode)
        other._context = list(self._context)
        other._pending = list(self._pending)
        return other

    def _fresh(self) -> str:
        if not self._context:
            return self._decode(self._pending)
        return self._decode(self._context + self._pending)[len(self._decode(self._context)) :]


def byte_table(
    spec: Mapping[str, Any], vocab: Mapping[str, int], added: Mapping[int, str]
) -> list[bytes] | None:
    """Bytes of each id for a tokenizer.json ``spec``; None if its decoder is of another kind."""
    steps = decoder_steps(spec.get("decoder"))
    kinds = {step["type"] for step in steps}
    size = max(max(vocab.values(), default=-1), max(added, default=-1)) + 1
    table = [b""] * size
    if kinds == {"ByteLevel"}:
        alphabet = byte_alphabet()
        for token, i in vocab.items():
            try:
                table[i] = bytes([alphabet[c] for c in token])
            except KeyError:  # not in the alphabet: the tokenizer's decoder takes it as it is
                table[i] = token.encode()
    elif steps and kinds <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        marks = [mark for step in steps if (mark := space_mark(step))]
        if len(marks) != sum(step["type"] in ("Metaspace", "Replace") for step in steps):
            return None
        for token, i in vocab.items():
            if "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
                table[i] = bytes([int(token[3:5], 16)])
                continue
            text = token
            for mark in marks:
                text = text.replace(mark, " ")
            table[i] = text.encode()
    else:
        return None
    for i, text in added.items():
        table[i] = text.encode()
    return table


def decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [inner for step in decoder["decoders"] for inner in decoder_steps(step)]
    return [decoder]


def space_mark(step: Mapping[str, Any]) -> str | None:
    """The text that a decoder step turns into a space."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["content"] == " ":
        pattern: str | None = step["pattern"].get("String")
        return pattern
    return None


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes byte b as a printable character: itself, else the next from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printable)
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


class StopChecker:
    """Finds stop strings in text that comes in pieces, whatever the pieces are.

    The match that is complete first wins (a stop ends the answer as soon as it has appeared);
    of several complete at the same character, the one that begins first. What may still become a
    stop string is held back. ``num_final`` characters of the whole text are final; after a match
    that is where the match begins, so the token it begins in can be told from the tokens' lengths.
    """

    __slots__ = ("_held", "_stops", "matched", "num_final")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.num_final = 0
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be shown, whether a stop string has been found)."""
        if self.matched is not None:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, cut, self.matched = min(found)
            self._held = ""
        else:
            cut = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
            self._held = text[cut:]
        self.num_final += cut
        return text[:cut], self.matched is not None

    def flush(self) -> str:
        """The answer ends here: what was held back is text after all."""
        text, self._held = self._held, ""
        self.num_final += len(text)
        return text

    def copy(self) -> StopChecker:
        other = StopChecker(self._stops)
        other._held = self._held
        other.num_final = self.num_final
        other.matched = self.matched
        return other


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning (not all) of ``stop``."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
