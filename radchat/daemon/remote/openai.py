"""Any OpenAI-compatible server: text in, text out.

With the conversation's messages the server's own template is used; without them (a search, a
program) the prompt is completed as text. What the model reads is then the server's business, and
so are its counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.daemon.remote.dialect import Asked, Finish, Piece, Served, refused, schema_of
from radchat.daemon.remote.vllm import cached_in


class OpenAI:
    name, title, takes_ids = "openai", "this server", False

    def call(self, served: Served, asked: Asked) -> tuple[str, dict[str, Any]]:
        params = asked.params
        body: dict[str, Any] = {
            "model": served.model,
            "seed": asked.seed,
            "temperature": min(params.temperature, 2.0),
            "top_p": params.top_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if params.stop:
            body["stop"] = list(params.stop)
        if params.logprobs is not None:
            raise refused(self.title, "log probabilities")
        if params.logit_bias:
            raise refused(self.title, "a bias of token ids")
        if asked.grammar is not None:
            body |= self._format(asked)
        if asked.messages:
            # no limit of ours: with what its own template adds to the prompt it may be too much
            most = {} if params.max_tokens is None else {"max_tokens": asked.max_tokens}
            return "/v1/chat/completions", {**body, **most, "messages": list(asked.messages)}
        most = {"max_tokens": asked.max_tokens}  # there a few tokens are usual without
        return "/v1/completions", {**body, **most, "prompt": asked.text}

    def _format(self, asked: Asked) -> dict[str, Any]:
        grammar = asked.grammar
        assert grammar is not None
        if grammar.kind != "json_schema":
            raise refused(self.title, "an answer of choices, a regex or a grammar")
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema_of(grammar), "strict": True},
            }
        }

    def reading(self) -> _Reading:
        return _Reading()


class _Reading:
    def read(self, data: Mapping[str, Any]) -> Piece:
        cached = cached_in(data.get("usage"))
        choices = data.get("choices") or ()
        if not choices:
            return Piece(cached=cached)
        choice = choices[0]
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        finish: Finish | None = None
        if choice.get("finish_reason"):
            finish = "length" if choice["finish_reason"] == "length" else "stop"
        return Piece(text=text, finish=finish, cached=cached)
