"""How far one choice is in its grammar: what may come next, and what must.

The only file that knows how llguidance's matcher behaves (measured for 1.9.1):
  - an error never leaves it, so ids are tried before they are taken;
  - it takes no notice of an end that is given to it when it is finished, and a later rollback would
    then remove a real id: so it is never given a stop id, and the count is kept here;
  - where bytes are forced the mask allows only the tokens our own tokenizer would write there:
    skipping the model can not change the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = NDArray[np.int32]  # bit i % 32 of word i // 32: id i may come next; [ceil(vocab / 32)]
NOTHING_FITS = "the grammar allows no token of this model here"


class Matcher:
    """Of one choice; used by one thread at a time."""

    __slots__ = ("_inner", "_stop_ids", "_trouble", "count", "end_id", "vocab_size")

    def __init__(self, inner: LLMatcher, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._inner = inner
        self._stop_ids = stop_ids
        self._trouble = ""
        self.vocab_size = vocab_size
        self.count = 0  # ids taken
        # the one that ends it: always the same, so that an end that is forced is the one drawn
        self.end_id = min(stop_ids, default=None)

    def forced(self) -> list[int]:
        """The ids that must come next, not taken yet: none where there is a choice, or no way on.

        A finished grammar forces its end.
        """
        if self.trouble:
            return []
        if self.is_finished:
            return [] if self.end_id is None else [self.end_id]
        return self._inner.compute_ff_tokens()

    def mask(self) -> Mask:
        """The ids that may come next, its end among them; none: a dead end, with ``trouble``."""
        words = np.zeros((self.vocab_size + 31) // 32, dtype=np.int32)
        if self.trouble:
            return words
        if not self.is_finished:
            self._inner.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            if self._inner.is_error():  # a limit was met on the way: the mask says nothing
                words[:] = 0
                return words
            _set(words, self._stop_ids, value=False)
        if self.end_id is not None and self.is_accepting:
            _set(words, (self.end_id,), value=True)
        if not words.any():
            self._trouble = NOTHING_FITS
        return words

    def take(self, ids: Sequence[int]) -> bool:
        """Go on with these; False, and nothing has changed, where they are not allowed."""
        ids = list(ids)
        if self.trouble or not self._stop_ids.isdisjoint(ids):
            return False
        if self._inner.validate_tokens(ids) < len(ids):
            return False
        if ids and not self._inner.consume_tokens(ids):
            return False  # a limit was met: ``trouble`` says which
        self.count += len(ids)
        return True

    def copy(self) -> Matcher:
        other = Matcher(self._inner.deep_copy(), self.vocab_size, self._stop_ids)
        other.count, other._trouble = self.count, self._trouble
        return other

    def rollback(self, num: int) -> None:
        """As if the last ``num`` ids had not been taken."""
        assert 0 <= num <= self.count
        if num:
            self._inner.rollback(num)
            self.count -= num
        self._trouble = ""

    @property
    def is_finished(self) -> bool:
        """Nothing may follow but the end."""
        return self._inner.is_stopped() and not self._inner.is_error()

    @property
    def is_accepting(self) -> bool:
        """What was taken is whole: the end may follow."""
        return self._inner.is_accepting()

    @property
    def trouble(self) -> str:
        """Why there is no way on; empty as long as there is one."""
        if self._inner.is_error():
            first = self._inner.get_error().strip().partition("\n")[0]
            return f"the grammar can't be followed any further: {first}"
        return self._trouble


def _set(words: Mask, ids: Sequence[int] | frozenset[int], *, value: bool) -> None:
    bits = words.view(np.uint32)
    for each in ids:
        bit = np.uint32(1 << (each % 32))
        if value:
            bits[each // 32] |= bit
        else:
            bits[each // 32] &= ~bit
