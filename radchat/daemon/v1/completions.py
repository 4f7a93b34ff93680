"""``POST /v1/completions``: text or ids that go on, without a template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from radchat.daemon.app import App
from radchat.daemon.v1 import raw
from radchat.daemon.v1.caller import caller_of
from radchat.daemon.v1.completed import Completion, wire_of
from radchat.daemon.v1.completion_bodies import MAX_PROMPTS, CompletionBody
from radchat.daemon.v1.gate import Answering, CarefulRoute, service_of
from radchat.daemon.v1.named import model_of
from radchat.engine.grammar import Grammar
from radchat.errors import InvalidInput

if TYPE_CHECKING:
    from radchat.engine.tokenizer import Tokenizer

KINDS = {"json": "json_schema", "regex": "regex", "choice": "choices", "grammar": "lark"}


def router(app: App) -> APIRouter:
    routes = APIRouter(route_class=CarefulRoute)

    @routes.post("/v1/completions", operation_id="complete", response_model=None)
    async def completions(request: Request, body: CompletionBody) -> Response:
        """What follows a text, or token ids; a stream of chunks with ``stream``."""
        caller, asked = caller_of(request.scope), _asked(body)
        with app.counted():
            service = await service_of(app)
            asked = replace(asked, model=await model_of(service, body.model))

        def tokenizer_of(model: str, dtype: str) -> Tokenizer | None:
            loaded = service.engines.of(model, dtype)
            return None if loaded is None else loaded.tokenizer

        completion = Completion(body, tokenizer_of)
        events = raw.complete(service, caller, asked)
        return Answering(app, "completions", events, wire_of(completion))

    return routes


def _asked(body: CompletionBody) -> raw.Asked:
    if body.suffix:
        raise InvalidInput("suffix: nothing can be put before a text here", field="suffix")
    n = body.n or 1
    if body.best_of not in (None, n):
        raise InvalidInput("best_of: as many as n are made, and all are given", field="best_of")
    if body.echo and body.stream and body.logprobs is not None:
        raise InvalidInput("echo: with logprobs it is not streamed", field="echo")
    if body.echo and body.logprobs is not None and n > 1:
        raise InvalidInput("echo: with logprobs there is one choice (n)", field="echo")
    prompts = _prompts(body.prompt)
    if len(prompts) * n > MAX_PROMPTS:
        raise InvalidInput(f"n: prompts times n are at most {MAX_PROMPTS}", field="n")
    options = body.options()
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    if body.stop_token_ids:
        options["stop_ids"] = body.stop_token_ids
    return raw.Asked(
        None,
        prompts,
        options,
        n=n,
        scores=bool(body.echo and body.logprobs is not None),
        ends=not body.ignore_eos,
        grammar=None if body.structured_outputs is None else _grammar(body.structured_outputs),
    )


def _prompts(prompt: Any) -> list[raw.Prompt]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not 0 < len(prompt) <= MAX_PROMPTS:
        raise InvalidInput(f"prompt: want 1 to {MAX_PROMPTS} of them", field="prompt")
    return list(prompt)


def _grammar(given: dict[str, Any]) -> Grammar:
    if len(given) != 1 or (name := next(iter(given))) not in KINDS:
        raise InvalidInput(
            f"structured_outputs: want one of {', '.join(KINDS)}", field="structured_outputs"
        )
    source = given[name]
    if name in ("json", "choice") and not isinstance(source, str):
        source = json.dumps(source)
    if not isinstance(source, str):
        raise InvalidInput(f"structured_outputs.{name}: want a text", field="structured_outputs")
    return Grammar(KINDS[name], source)  # type: ignore[arg-type]
