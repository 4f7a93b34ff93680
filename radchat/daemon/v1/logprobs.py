"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radchat.engine.tokenizer import Tokenizer

LEAST = -9999.0  # in the place of minus infinity, of which JSON knows nothing


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Of a token that is no text, a control token say: its name."""
    table = tokenizer.table
    if table is not None and 0 <= token < len(table) and table[token]:
        return bytes(table[token])
    return tokenizer.decode([token]).encode()


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Half a character shows as U+FFFD: what it is made of, its bytes tell."""
    return token_bytes(tokenizer, token).decode("utf-8", "replace")


def chat_shape(tokenizer: Tokenizer, told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``told``: ``{"id", "logprob", "top"}`` each, as ``generate`` tells them. Control tokens, the
    one that ends an answer first of all, are no words of it.
    """

    def one(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(tokenizer, token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": max(logprob, LEAST),
            "bytes": list(raw),
        }

    return [
        {
            **one(each["id"], each["logprob"]),
            "top_logprobs": [one(token, logprob) for token, logprob in each["top"]],
        }
        for each in told
        if each["id"] not in tokenizer.control_ids
    ]


def legacy_shape(
    tokenizer: Tokenizer,
    told: Sequence[Mapping[str, Any]],
    *,
    offset: int = 0,
    as_ids: bool = False,
) -> dict[str, Any]:
    """Of completions: lists side by side; null for what is not known of a token. ``offset``:
    characters of the tokens before. ``as_ids``: tokens are called ``token_id:N``, as vLLM has it.
    """
    tokens, offsets = [], []

    def name(token: int) -> str:
        return f"token_id:{token}" if as_ids else token_text(tokenizer, token)

    for each in told:
        tokens.append(name(each["id"]))
        offsets.append(offset)
        offset += len(token_text(tokenizer, each["id"]))
    return {
        "tokens": tokens,
        "token_logprobs": [None if (lp := e["logprob"]) is None else max(lp, LEAST) for e in told],
        "top_logprobs": [
            None
            if each["top"] is None
            else {name(t): max(lp, LEAST) for t, lp in reversed(each["top"])}
            for each in told
        ],
        "text_offset": offsets,
    }
