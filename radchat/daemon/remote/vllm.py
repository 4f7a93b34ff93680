"""vLLM, by its OpenAI-compatible completions over token ids; radchat's own `serve` speaks it too.

Facts: vLLM's documentation of its OpenAI-compatible server (extra parameters of completions):
``prompt`` may be ids, ``return_token_ids`` gives ``token_ids`` in each choice of a chunk,
``return_tokens_as_token_ids`` writes tokens of log probabilities as ``token_id:N``; cached tokens
are told in the usage where the server was started with --enable-prompt-tokens-details.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.daemon.remote.dialect import (
    Asked,
    Finish,
    Piece,
    Served,
    bias,
    choices_of,
    refused,
    schema_of,
    usual,
)
from radchat.engine.request import TokenLogprob
from radchat.errors import RadchatError

FINISH: Mapping[str | None, Finish | None] = {"stop": "stop", "length": "length"}


class Vllm:
    takes_ids = True

    def __init__(self, name: str = "vllm", title: str = "vLLM") -> None:
        self.name, self.title = name, title

    def call(self, served: Served, asked: Asked) -> tuple[str, dict[str, Any]]:
        params = asked.params
        body: dict[str, Any] = {
            "model": served.model,
            "prompt": list(asked.ids),
            "max_tokens": asked.max_tokens,
            "seed": asked.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **usual(params),
            **bias(params),
            "top_k": params.top_k or -1,
            "repetition_penalty": params.repetition_penalty,
            "stop_token_ids": sorted(params.stop_ids),
        }
        if params.stop:
            body["stop"] = list(params.stop)
        if params.logprobs is not None:
            body |= {"logprobs": params.logprobs, "return_tokens_as_token_ids": True}
        if asked.grammar is not None:
            body["structured_outputs"] = self._structured(asked)
        return "/v1/completions", body

    def _structured(self, asked: Asked) -> dict[str, Any]:
        grammar = asked.grammar
        assert grammar is not None
        if grammar.kind == "json_schema":
            return {"json": schema_of(grammar)}
        if grammar.kind == "regex":
            return {"regex": grammar.source}
        if grammar.kind == "choices":
            return {"choice": choices_of(grammar)}
        raise refused(self.title, "a grammar of Lark")

    def reading(self) -> _Reading:
        return _Reading(self.title)


class _Reading:
    def __init__(self, title: str) -> None:
        self._title = title

    def read(self, data: Mapping[str, Any]) -> Piece:
        cached = cached_in(data.get("usage"))
        choices = data.get("choices") or ()
        if not choices:
            return Piece(cached=cached)
        choice = choices[0]
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            raise RadchatError(
                f"{self._title} tells no token ids (return_token_ids): it is too old for radchat"
            )
        ids = [int(each) for each in ids or ()]
        return Piece(
            ids,
            finish=FINISH.get(choice.get("finish_reason")),
            cached=cached,
            logprobs=_logprobs(choice.get("logprobs"), ids),
        )


def cached_in(usage: Mapping[str, Any] | None) -> int | None:
    """None where the server doesn't tell; 0 is a measured zero."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    found = details.get("cached_tokens")
    return found if isinstance(found, int) else None


def _logprobs(told: Mapping[str, Any] | None, ids: list[int]) -> list[TokenLogprob]:
    if not told:
        return []
    values, tops = told.get("token_logprobs") or [], told.get("top_logprobs") or []
    found = []
    for place, (token, value) in enumerate(zip(ids, values, strict=False)):
        top = (tops[place] if place < len(tops) else None) or {}
        named = {name: float(lp) for name, lp in top.items() if name.startswith("token_id:")}
        best = sorted(((int(n[9:]), lp) for n, lp in named.items()), key=lambda each: -each[1])
        found.append(TokenLogprob(token, float(value or 0.0), tuple(best)))
    return found
