"""llama.cpp's server, by its own ``/completion`` over token ids.

Facts: the README of llama.cpp's server: ``prompt`` may be ids, ``return_tokens`` gives those of
an event, and with ``timings_per_token`` each tells ``timings``: ``cache_n``, what the slot had of
the prompt, and ``predicted_n``, the tokens so far. The token that ends a turn is told too.
Of a character that takes several tokens only the last one's id is told, with the whole character:
``predicted_n`` tells that some are missing (seen: tests/remote/test_real_llamacpp.py).
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
            "timings_per_token": True,
            "cache_prompt": True,
            **usual(params),
            "top_k": params.top_k,
            "repeat_penalty": params.repetition_penalty,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        }
        if params.logit_bias:
            body["logit_bias"] = [[token, value] for token, value in params.logit_bias.items()]
        if params.repetition_penalty != 1.0:
            body["repeat_last_n"] = -1  # all there is, as here
        # stop strings are looked for here alone: it would hold words back that go with what is
        # missing, and it ends within a token when it is no longer heard
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
    def __init__(self) -> None:
        self._num = 0  # tokens so far, told or not

    def read(self, data: Mapping[str, Any]) -> Piece:
        ids = [int(each) for each in data.get("tokens") or ()]
        timings = data.get("timings") or {}
        num = timings.get("predicted_n")
        missing = max(0, num - self._num - len(ids)) if isinstance(num, int) and ids else 0
        self._num += missing + len(ids)
        finish: Finish | None = None
        if data.get("stop"):
            finish = "length" if data.get("stop_type") == "limit" else "stop"
        cached = timings.get("cache_n")
        return Piece(
            ids,
            str(data.get("content") or "") if missing else "",
            finish,
            cached if isinstance(cached, int) else None,
            _logprobs(data),
            missing,
        )


def _logprobs(data: Mapping[str, Any]) -> list[TokenLogprob]:
    found = []
    for each in data.get("completion_probabilities") or ():
        top = tuple((int(t["id"]), float(t["logprob"])) for t in each.get("top_logprobs") or ())
        found.append(TokenLogprob(int(each["id"]), float(each["logprob"]), top))
    return found
