"""How few ids a text can have, told from its bytes: to refuse a long text before tokenizing it.

Byte b weighs 1 / (length of the longest token that has b). Whatever the tokens of a text are, the
bytes of each then weigh at most 1 together; and the text's bytes are those of its tokens; so there
are at least as many tokens as the text weighs. That is about a fifth of the true number in English.

Only a tokenizer that keeps all bytes can be judged so. Where one might drop or change some (white
space stripped, characters that become one "unknown"), they weigh nothing.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from radchat.engine.detokenize import byte_alphabet, decoder_steps, space_mark

_KEEPS_ALL = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")  # ways to cut a text
_WHITE = frozenset(b for i in range(0x3001) if chr(i).isspace() for b in chr(i).encode())


class LeastIds:
    """``spec``: a tokenizer.json. ``table``: the bytes of each id, None if they aren't known."""

    def __init__(self, spec: Mapping[str, Any], table: Sequence[bytes] | None) -> None:
        self._weights = [0.0] * 256
        self._composes = False
        if table is not None and self._keeps_all(spec):
            self._weigh(spec, table)

    def of(self, text: str) -> int:
        """A lower bound of the number of ids of well-formed ``text``; 0 if nothing can be said."""
        if self._composes and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        data = text.encode()
        weight = sum(data.count(byte) * self._weights[byte] for byte in set(data))
        return math.ceil(weight * (1 - 1e-9))

    def _keeps_all(self, spec: Mapping[str, Any]) -> bool:
        for step in _steps(spec.get("normalizer"), "normalizers"):
            self._composes |= step["type"] == "NFC"
            changes_spaces = step["type"] == "Replace" and step["pattern"].get("String") == " "
            if step["type"] not in ("NFC", "Prepend") and not changes_spaces:
                return False
        cuts = list(_steps(spec.get("pre_tokenizer"), "pretokenizers"))
        if any(s["type"] not in _KEEPS_ALL or s.get("behavior") == "Removed" for s in cuts):
            return False
        model = spec["model"]
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            return False
        if model.get("byte_fallback"):
            vocab = model["vocab"]
            names = vocab if isinstance(vocab, Mapping) else {name for name, _ in vocab}
            return all(f"<0x{byte:02X}>" in names for byte in range(256))
        return model.get("type") == "BPE" and any(s["type"] == "ByteLevel" for s in cuts)

    def _weigh(self, spec: Mapping[str, Any], table: Sequence[bytes]) -> None:
        longest = [0] * 256
        for token in sorted(table, key=len):
            for byte in token:
                longest[byte] = len(token)
        nothing = {byte for byte, size in enumerate(longest) if not size}
        if not spec["model"].get("byte_fallback"):  # a byte that has no token of its own is dropped
            vocab = spec["model"]["vocab"]
            nothing |= {byte for sign, byte in byte_alphabet().items() if sign not in vocab}
        for step in decoder_steps(spec.get("decoder")):
            nothing |= set((space_mark(step) or "").encode())  # typed, it stands for a space
        if any(entry["lstrip"] or entry["rstrip"] for entry in spec.get("added_tokens", [])):
            nothing |= _WHITE
        self._weights = [0.0 if b in nothing else 1 / size for b, size in enumerate(longest)]


def _steps(part: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part[inner]:
            yield from _steps(step, inner)
    else:
        yield part
