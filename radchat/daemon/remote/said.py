"""What one sample has said: ids, and their words up to a stop string."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radchat.daemon.remote.dialect import Piece
from radchat.engine.detokenize import StopChecker
from radchat.engine.request import FinishReason, Ids, Request
from radchat.engine.words import Words
from radchat.errors import RadchatError

if TYPE_CHECKING:
    from radchat.engine.tokenizer import Tokenizer


class Said:
    def __init__(self, tokenizer: Tokenizer, vocab_size: int, request: Request) -> None:
        before = request.ids[len(request.ids) - request.said :]
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._params, self._prompt = request.params, request.ids
        self.words = Words(
            self._tokenizer.detokenizer(after=before), StopChecker(request.params.stop)
        )
        self._limit = request.params.max_tokens
        self.ids: Ids = array("I")
        self.cached: int | None = None
        self.is_stopped = False  # by an id that ends a turn
        self.reason: FinishReason | None = None

    def take(self, piece: Piece) -> tuple[str, list[int], list[Any]]:
        """New words with their ids and log probabilities."""
        if piece.cached is not None:
            self.cached = min(piece.cached, len(self._prompt))
        if self.reason is not None:
            return "", [], []
        ids = self._ids(piece)
        text, taken = "", 0
        for token in ids:
            taken += 1
            self.ids.append(token)
            if token in self._params.stop_ids:
                self.words.skip()
                self.is_stopped, self.reason = True, FinishReason.STOP
                break
            text += self.words.push(token)
            if self.words.matched:
                self.reason = FinishReason.STOP
                break
            if self._limit is not None and len(self.ids) >= self._limit:
                self.reason = FinishReason.LENGTH
                break
        if self.reason is None and piece.finish is not None:
            self.reason = FinishReason.LENGTH if piece.finish == "length" else FinishReason.STOP
        most = self._params.logprobs or 0  # some tell of the drawn one among the best
        scores = [replace(each, top=each.top[:most]) for each in piece.logprobs[:taken]]
        return text, ids[:taken], scores

    def _ids(self, piece: Piece) -> list[int]:
        """Those that came. Of a text, or where some were not told, its encoding: the same words,
        and as a rule the same ids.
        """
        if piece.text and (piece.missing or not piece.ids):
            return list(self._tokenizer.encode_text(piece.text, self._prompt + self.ids))
        for token in piece.ids:
            if not 0 <= token < self._vocab_size:
                raise RadchatError(
                    f"it says token {token}, and the tokenizer here has {self._vocab_size:,}: its "
                    "model is another one; make it anew with the tokenizer of that model (-m)"
                )
        return list(piece.ids)
