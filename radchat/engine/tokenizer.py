"""Text to ids and back. Control stays control, text stays text.

*Control tokens* are looked up by their text in a rendering that the template wrote; everything
between two of them is one *run*, encoded by a *twin* of the tokenizer that knows no control tokens.
What a person typed reaches the rendering under a *mask* (random letters standing for the control
token's text), so it always lands in a run. A run is encoded between two *stand-ins*, extra tokens
of the twin with the strip flags of the real neighbours; so run by run gives the ids of the whole.

An object of this class is never changed after loading, so threads may share it: what raises
"Already borrowed" in `tokenizers` are setters on shared objects, and none is called here.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import secrets
import string
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from radchat.engine.detokenize import (
    MAX_PENDING,
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    byte_table,
)
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.least_ids import LeastIds
from radchat.engine.request import Ids
from radchat.errors import InvalidInput, ModelBroken

# One text at a time, and torch has its own threads: more would only be forked and warned about.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Marks that are control wherever a vocabulary has them as added tokens, though often not "special".
KNOWN_CONTROL = frozenset(
    f"{left}{word}{right}"
    for word in ("think", "tool_call", "tool_response", "tools")
    for left, right in (("<", ">"), ("</", ">"))
)
NUM_PROBES = 200
_ANCHOR = "\x01"  # text that merges with nothing
_LETTERS = string.ascii_letters + string.digits
_PROBE_WORDS = (
    *("the", " cat", "s", "  ", " ", "\n", "\n\n", "\t", "12", "345", "é", "— ", "한글", "🙂"),
    *("<", "|", ">", "x=1", "'ll", " A", ".", " \n", "<|", "/", "[", "]"),
)


class Mark(NamedTuple):
    """A control token of a rendering: characters [start, end), and how many ids precede it."""

    start: int
    end: int
    num_ids: int


class Encoded(NamedTuple):
    ids: Ids
    marks: tuple[Mark, ...]


class Tokenizer:
    """A tokenizer.json, loaded by the `tokenizers` library and probed.

    ModelBroken if the file cannot be read or if run by run does not give the ids of the whole.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        template = folder / "chat_template.jinja"
        try:
            text = path.read_text(encoding="utf-8")
            source = template.read_text(encoding="utf-8") if template.is_file() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ModelBroken(f"{path}: {error}") from error
        self._load(text, CompiledTemplate(source).literals)

    @classmethod
    def from_json(cls, text: str, template: str = "") -> Tokenizer:
        """From the text of a tokenizer.json, and of the chat template it will be used with."""
        self = cls.__new__(cls)
        self._load(text, CompiledTemplate(template).literals)
        return self

    def _load(self, text: str, literals: Iterable[str]) -> None:
        try:
            spec: dict[str, Any] = json.loads(text)
            real = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every fault of a file
            raise ModelBroken(f"tokenizer.json cannot be read: {error}") from error
        real.no_truncation()
        real.no_padding()
        added: list[dict[str, Any]] = spec.get("added_tokens", [])
        used = "\0".join(literals)
        chosen = [
            entry
            for entry in added
            if entry["content"].strip()
            and (entry["special"] or entry["content"] in KNOWN_CONTROL or entry["content"] in used)
        ]
        self._real = real
        self.hash = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self.control: Mapping[str, int] = {entry["content"]: entry["id"] for entry in chosen}
        self.control_ids = frozenset(self.control.values())
        self._lstrip = {entry["content"] for entry in chosen if entry["lstrip"]}
        self._rstrip = {entry["content"] for entry in chosen if entry["rstrip"]}
        vocab = real.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        # longest first: of two control tokens that begin alike the longer is meant
        names = sorted(self.control, key=len, reverse=True)
        self._scan = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._order = sorted(self.control)
        self._mask_head = "".join(secrets.choice(_LETTERS) for _ in range(12))
        self._masks = {name: f"{self._mask_head}{n:05d}z" for n, name in enumerate(self._order)}
        self._unmask_scan = re.compile(self._mask_head + r"(\d{5})z")
        self._table = byte_table(spec, vocab, {e["id"]: e["content"] for e in added})
        self._least = LeastIds(spec, self._table)
        self._make_twin(spec)
        self._probe()

    def _make_twin(self, spec: dict[str, Any]) -> None:
        twin_spec = {**spec, "truncation": None, "padding": None}
        twin_spec["added_tokens"] = [
            {**entry, "special": entry["special"] or entry["content"] in self.control}
            for entry in spec.get("added_tokens", [])
        ]
        twin = tokenizers.Tokenizer.from_str(json.dumps(twin_spec))
        twin.encode_special_tokens = True
        head = "".join(secrets.choice(_LETTERS) for _ in range(12))
        self._plain, self._strips_right, self._strips_left = (head + c for c in "nrl")
        twin.add_tokens(
            [
                tokenizers.AddedToken(self._plain, normalized=False),
                tokenizers.AddedToken(self._strips_right, normalized=False, rstrip=True),
                tokenizers.AddedToken(self._strips_left, normalized=False, lstrip=True),
            ]
        )
        self._twin = twin
        self._anchor_ids = _ids(twin, _ANCHOR)
        # A layout that writes a space before every run must not do so in the middle of a text.
        whole = _ids(twin, f"{self._plain}x")
        self._spaces_runs = self.decode(whole[1:]).startswith(" ")

    # -- text to ids ---------------------------------------------------------------------------

    def encode(self, rendering: str, after: Sequence[int] = ()) -> Encoded:
        """Ids of a masked rendering, or of the part of one that follows the ids ``after``.

        Such a part begins at a control token, or goes on in the text that ``after`` ends with.
        """
        ids: Ids = array("I")
        marks: list[Mark] = []
        left = self._left(after)
        position = 0
        for found in self._scan.finditer(rendering):
            name = found.group()
            right = self._strips_left if name in self._lstrip else self._plain
            ids.extend(self._run(rendering[position : found.start()], left, right))
            marks.append(Mark(found.start(), found.end(), len(ids)))
            ids.append(self.control[name])
            left = self._strips_right if name in self._rstrip else self._plain
            position = found.end()
        ids.extend(self._run(rendering[position:], left, None))
        return Encoded(ids, tuple(marks))

    def encode_text(self, text: str, after: Sequence[int] = ()) -> Ids:
        """Ids of plain text that follows ``after``: names of control tokens in it stay text."""
        return array("I", self._run(join_surrogates(text), self._left(after), None))

    def least_ids(self, text: str) -> int:
        """No encoding of ``text`` (plain, or a masked rendering) has fewer ids than this.

        Found without tokenizing, in a hundredth of the time; 0 where the layout allows no bound.
        """
        return self._least.of(self.unmask(join_surrogates(text)))

    def _left(self, after: Sequence[int]) -> str | None:
        """What stands to the left of a run: nothing, a stand-in, or text that never merges."""
        if not after:
            return None
        if after[-1] in self.control_ids:
            strips = self._name(after[-1]) in self._rstrip
            return self._strips_right if strips else self._plain
        return _ANCHOR if self._spaces_runs else self._plain

    def _run(self, text: str, left: str | None, right: str | None) -> list[int]:
        if not text:
            return []
        text = self.unmask(text)
        try:
            ids = _ids(self._twin, f"{left or ''}{text}{right or ''}")
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidInput(f"text cannot be tokenized: {error}") from error
        end = len(ids) - (right is not None)
        if left == _ANCHOR:
            begin = len(self._anchor_ids)
            if ids[:begin] == self._anchor_ids:
                return ids[begin:end]
            return self._run(text, self._plain, right)  # it merged after all
        return ids[left is not None : end]

    # -- masks ---------------------------------------------------------------------------------

    def mask(self, text: str) -> str:
        """The text with every control token's name replaced, so that it cannot be one."""
        return self._scan.sub(lambda found: self._masks[found.group()], text)

    def unmask(self, text: str) -> str:
        if self._mask_head not in text:
            return text
        return self._unmask_scan.sub(lambda found: self._order[int(found.group(1))], text)

    def canonical(self, rendering: str) -> bytes:
        """The same bytes in every process: masks (random letters) become their number.

        NUL introduces a mask, and is itself doubled, so no text can look like one.
        """
        text = rendering.replace("\0", "\0\0")
        if self._mask_head in text:
            text = self._unmask_scan.sub(lambda found: f"\0m{found.group(1)}", text)
        return text.encode("utf-8", "surrogatepass")

    def mask_spans(self, rendering: str) -> list[tuple[int, int]]:
        if self._mask_head not in rendering:
            return []
        return [found.span() for found in self._unmask_scan.finditer(rendering)]

    def control_spans(self, rendering: str) -> list[tuple[int, int]]:
        return [found.span() for found in self._scan.finditer(rendering)]

    # -- ids to text ---------------------------------------------------------------------------

    def detokenizer(self, after: Iterable[int] = ()) -> Detokenizer:
        """A new stream of text that follows the ids ``after`` (the prompt, or a cut answer)."""
        tail = list(after)[-MAX_PENDING:]
        if self._table is not None:
            return ByteDetokenizer(self._table, tail)
        return WindowDetokenizer(self._decode_window, tail)

    @property
    def table(self) -> Sequence[bytes] | None:
        """The bytes of each id; None where a token's text is no matter of bytes alone."""
        return self._table

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all the ids; control tokens as their names. Equal to any stream of them."""
        if self._table is not None:
            size = len(self._table)
            return b"".join([self._table[i] for i in ids if i < size]).decode("utf-8", "replace")
        stream = self.detokenizer()
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def decode_masked(self, ids: Iterable[int]) -> str:
        """As ``decode``, but names of control tokens are only left where a control id stood."""
        stream = self.detokenizer()
        parts: list[str] = []
        text = ""
        for i in ids:
            if i in self.control_ids:
                parts += [self.mask(text + stream.flush()), self._name(i)]
                text = ""
            else:
                text += stream.push(i)
        return "".join(parts) + self.mask(text + stream.flush())

    def _name(self, token_id: int) -> str:
        return str(self._real.id_to_token(token_id))

    def _decode_window(self, ids: list[int]) -> str:
        return str(self._real.decode(ids, skip_special_tokens=False))

    # -- the probe -----------------------------------------------------------------------------

    def _probe(self) -> None:
        """Refuses a tokenizer with which this module's promises would not hold."""
        if any(not 0 <= i < self.vocab_size for i in self.control_ids):
            raise ModelBroken("tokenizer: a control token's id is outside the vocabulary")
        dice = random.Random(8)
        for _ in range(NUM_PROBES):
            whole = probe_string(dice, self._order)
            want = _ids(self._real, whole)
            got = list(self.encode(whole).ids)
            if got != want:
                raise ModelBroken(
                    f"tokenizer: text and control tokens cannot be encoded apart (on {whole!r})"
                )
        for name in self._order:
            ids = self.encode_text(name)
            if self.control_ids.intersection(ids) or max(ids, default=0) >= self.vocab_size:
                raise ModelBroken(f"tokenizer: typed text {name!r} becomes a control token")


def _ids(
    tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False
) -> list[int]:
    """``encode`` holds the GIL to its end, seconds for a long text; a batch of one does not."""
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def probe_string(dice: random.Random, control: list[str]) -> str:
    """A random string of words, white space, signs and control tokens."""
    names = [*control[:6], dice.choice(control)] if control else []
    sources = [
        names if names and dice.random() < 0.35 else _PROBE_WORDS
        for _ in range(dice.randint(1, 10))
    ]
    return "".join(dice.choice(source) for source in sources)


def join_surrogates(text: str) -> str:
    """Halves of a surrogate pair joined; a half alone becomes U+FFFD (tokenizers refuse it)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
