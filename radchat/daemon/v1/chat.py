"""``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Send

from radchat.daemon.app import App
from radchat.daemon.outgoing import Wire
from radchat.daemon.service import Service
from radchat.daemon.v1 import placing, wires
from radchat.daemon.v1.bodies import ChatBody, NamedTool
from radchat.daemon.v1.caller import Caller, caller_of
from radchat.daemon.v1.collect import ChunkWire, Completion
from radchat.daemon.v1.gate import Answering, CarefulRoute, service_of
from radchat.daemon.v1.messages import digests, given, tools_of
from radchat.daemon.v1.named import model_of
from radchat.daemon.v1.passing import Passing
from radchat.daemon.v1.placing import Placing
from radchat.daemon.v1.recall import Recall
from radchat.errors import InvalidInput
from radchat_sessions.content import text_part

if TYPE_CHECKING:
    from radchat.engine.tokenizer import Tokenizer

EFFORTS = {"none": "off", "minimal": "low", "xhigh": "high"}


def router(app: App) -> APIRouter:
    routes = APIRouter(route_class=CarefulRoute)
    recall: Recall | None = None

    @routes.post("/v1/chat/completions", operation_id="chat", response_model=None)
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        """An answer to a conversation; a stream of chunks with ``stream``."""
        nonlocal recall
        caller = caller_of(request.scope)
        with app.counted():
            service = await service_of(app)
            recall = recall or Recall(service.desk)
            model = await model_of(service, body.model)
            place = await _placing(service, recall, caller, model, body)
            asked = {**_arguments(body), **place.args, "model": model}
        return _answering(app, service, recall, caller, body, place, asked)

    return routes


async def _placing(
    service: Service, recall: Recall, caller: Caller, model: str | None, body: ChatBody
) -> Placing:
    told, wanted = given(body.messages), body.radchat
    if wanted is None:
        return placing.in_passing(recall, caller, model or "", told)
    if wanted.parent is not None:
        return await placing.after_message(service, recall, caller, wanted, told)
    return await placing.in_session(service, caller, wanted, told)


def _answering(
    app: App,
    service: Service,
    recall: Recall,
    caller: Caller,
    body: ChatBody,
    place: Placing,
    asked: dict[str, Any],
) -> Answering:
    is_kept = not place.args.get("passing")
    events = service.generate(**asked, only_terminal=True, where=caller.where, call_parts=True)
    passing = None if is_kept else Passing(events, recall, place, caller.key)

    def answered(message: Mapping[str, Any]) -> None:
        if passing is not None and message["message"] is not None:
            parts = [text_part(str(message["text"]))]
            calls = [{"type": "tool_call", "call": call} for call in message.get("calls") or ()]
            said = {"role": "assistant", "parts": [*parts, *calls]}
            passing.remember(digests([said], place.digest)[0], message)

    def tokenizer_of(model: str, dtype: str) -> Tokenizer | None:
        loaded = service.engines.of(model, dtype)
        return None if loaded is None else loaded.tokenizer

    completion = Completion(tokenizer_of, answered, is_kept=is_kept)

    def make_wire(send: Send) -> Wire:
        if not body.stream:
            return wires.WholeWire(send, completion)
        include = bool(body.stream_options and body.stream_options.include_usage)
        return ChunkWire(send, completion, include_usage=include)

    return Answering(app, "chat", events if passing is None else passing, make_wire)


def _arguments(body: ChatBody) -> dict[str, Any]:
    """Of ``generate``, but where and what is said."""
    options = body.options()
    if body.max_completion_tokens is not None:
        options["max_tokens"] = body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidInput("top_logprobs: it needs logprobs: true", field="top_logprobs")
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    args: dict[str, Any] = {"options": options, "n": body.n or 1}
    if body.reasoning_effort is not None:
        args["think"] = EFFORTS.get(body.reasoning_effort, body.reasoning_effort)
    if body.tools:
        args["tools"] = tools_of(body.tools)
        args["parallel"] = body.parallel_tool_calls is not False
    if body.tools and body.response_format and body.response_format.type != "text":
        raise InvalidInput(
            "response_format: an answer is held to it, or may call tools: not both",
            field="response_format",
        )
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        args["tool_choice"] = {"name": choice.function.name}
    elif choice is not None and (body.tools or choice == "required"):
        args["tool_choice"] = choice
    return args | _grammar(body)


def _grammar(body: ChatBody) -> dict[str, Any]:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"grammar": {"kind": "json_schema", "source": '{"type": "object"}'}}
    if wanted.json_schema is None:
        where = "response_format.json_schema"
        raise InvalidInput(f"{where}: the type json_schema needs one", field=where)
    source = json.dumps(wanted.json_schema.json_schema)
    lenient = wanted.json_schema.strict is False
    return {"grammar": {"kind": "json_schema", "source": source, "lenient": lenient}}
