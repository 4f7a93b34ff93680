"""llama.cpp's server, by its own ``/completion`` over token ids.

Facts: the README of llama.cpp's server: ``prompt`` may be ids, ``return_tokens`` gives those of
each event, ``timings.cache_n`` of the last is what the slot had of the prompt. The token that ends
a turn is told like any other (seen: 0.6.0-dev of 2026, tests/remote/test_real_llamacpp.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.daemon.remote import gbnf
from radchat.daemon.remote.dialect import (
    Asked,
    Finish,
    Piece,
    Served,
    choices_of,
    refused,
    schema_of,
    usual,
)
from radchat.engine.request import TokenLogprob


class LlamaCpp:
    name, title, takes_ids = "llamacpp", "llama.cpp", True

    def call(self, served: Served, asked: Asked) -> tuple[str, dict[str, Any]]:
        params = asked.params
        body: dict[str, Any] = {
            "model": served.model,
            "prompt": list(asked.ids),
            "n_predict": asked.max_tokens,
            "seed": asked.seed,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            **usual(params),
            "top_k": params.top_k,
            "repeat_penalty": params.repetition_penalty,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        }
        if params.logit_bias:
            body["logit_bias"] = [[token, value] for token, value in params.logit_bias.items()]
        if params.stop:
            body["stop"] = list(params.stop)
        if params.logprobs is not None:
            body["n_probs"] = max(1, params.logprobs)
        if asked.grammar is not None:
            body |= self._constraint(asked)
        return "/completion", body

    def _constraint(self, asked: Asked) -> dict[str, Any]:
        grammar = asked.grammar
        assert grammar is not None
        if grammar.kind == "json_schema":
            return {"json_schema": schema_of(grammar)}
        if grammar.kind == "choices":
            told = " | ".join(map(gbnf.literal, choices_of(grammar)))
            return {"grammar": f"root ::= {told}"}
        if grammar.kind != "regex":
            raise refused(self.title, "a grammar of Lark")
        try:
            return {"grammar": gbnf.of_regex(grammar.source)}
        except gbnf.NoForm as error:
            raise refused(self.title, f"this regex ({error})") from error

    def reading(self) -> _Reading:
        return _Reading()


class _Reading:
    def read(self, data: Mapping[str, Any]) -> Piece:
        ids = [int(each) for each in data.get("tokens") or ()]
        finish: Finish | None = None
        cached = None
        if data.get("stop"):
            finish = "length" if data.get("stop_type") == "limit" else "stop"
            cache_n = (data.get("timings") or {}).get("cache_n")
            cached = cache_n if isinstance(cache_n, int) else None
        return Piece(ids, finish=finish, cached=cached, logprobs=_logprobs(data))


def _logprobs(data: Mapping[str, Any]) -> list[TokenLogprob]:
    found = []
    for each in data.get("completion_probabilities") or ():
        top = tuple((int(t["id"]), float(t["logprob"])) for t in each.get("top_logprobs") or ())
        found.append(TokenLogprob(int(each["id"]), float(each["logprob"]), top))
    return found
