"""SGLang, by its own ``/generate`` over token ids.

Facts: SGLang's documentation of native APIs and sampling parameters. A chunk's ``output_ids`` are
all so far, or, where the server was started to stream increments, the new ones:
``meta_info.completion_tokens`` tells which. ``meta_info.cached_tokens`` is what its radix tree had.
"""

from __future__ import annotations

import json
import re
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
    usual,
)
from radchat.engine.request import TokenLogprob
from radchat.errors import RadchatError


class Sglang:
    name, title, takes_ids = "sglang", "SGLang", True

    def call(self, served: Served, asked: Asked) -> tuple[str, dict[str, Any]]:  # noqa: ARG002
        params = asked.params
        sampling: dict[str, Any] = {
            "max_new_tokens": asked.max_tokens,
            "sampling_seed": asked.seed,
            **usual(params),
            **bias(params),
            "top_k": params.top_k or -1,
            "repetition_penalty": params.repetition_penalty,
            "stop_token_ids": sorted(params.stop_ids),
            "skip_special_tokens": False,
        }
        if params.stop:
            sampling["stop"] = list(params.stop)
        if asked.grammar is not None:
            sampling |= self._constraint(asked)
        body: dict[str, Any] = {
            "input_ids": list(asked.ids),
            "sampling_params": sampling,
            "stream": True,
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        return "/generate", body

    def _constraint(self, asked: Asked) -> dict[str, Any]:
        grammar = asked.grammar
        assert grammar is not None
        if grammar.kind == "json_schema":
            return {"json_schema": json.dumps(json.loads(grammar.source))}
        if grammar.kind == "regex":
            return {"regex": grammar.source}
        if grammar.kind == "choices":
            return {"regex": "|".join(f"({_literal(each)})" for each in choices_of(grammar))}
        raise refused(self.title, "a grammar of Lark")

    def reading(self) -> _Reading:
        return _Reading()


class _Reading:
    def __init__(self) -> None:
        self._num = 0  # ids so far
        self._num_logprobs = 0

    def read(self, data: Mapping[str, Any]) -> Piece:
        about = data.get("meta_info") or {}
        ids = data.get("output_ids")
        if ids is None:
            raise RadchatError("SGLang tells no output_ids: it is too old for radchat")
        total = int(about.get("completion_tokens") or 0)
        is_all = len(ids) >= total or self._num + len(ids) > total
        new = [int(each) for each in (ids[self._num :] if is_all else ids)]
        self._num += len(new)
        finish: Finish | None = None
        why = about.get("finish_reason")
        if why:
            kind = why.get("type") if isinstance(why, Mapping) else why
            if kind == "abort":
                message = why.get("message") if isinstance(why, Mapping) else None
                raise RadchatError(f"SGLang ended the answer: {message or 'aborted'}")
            finish = "length" if kind == "length" else "stop"
        cached = about.get("cached_tokens")
        return Piece(
            new,
            finish=finish,
            cached=cached if isinstance(cached, int) else None,
            logprobs=self._logprobs(about, len(new)),
        )

    def _logprobs(self, about: Mapping[str, Any], num: int) -> list[TokenLogprob]:
        told = about.get("output_token_logprobs")
        if not told:
            return []
        tops = about.get("output_top_logprobs") or []
        first = self._num_logprobs if len(told) > num else 0
        self._num_logprobs += num
        found = []
        for place in range(first, min(first + num, len(told))):
            value, token = told[place][0], told[place][1]
            top = (tops[place] if place < len(tops) else None) or ()
            found.append(
                TokenLogprob(int(token), float(value), tuple((int(t[1]), float(t[0])) for t in top))
            )
        return found


def _literal(text: str) -> str:
    """As a regex. ``re.escape`` escapes more than the regexes of its grammars know."""
    return re.sub(r"[\\.^$*+?{}()|\[\]]", r"\\\g<0>", text)
