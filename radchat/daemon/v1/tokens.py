"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request

from radchat.daemon.app import App
from radchat.daemon.past import turn
from radchat.daemon.v1.caller import caller_of
from radchat.daemon.v1.completion_bodies import DetokenizeBody, TokenizeBody
from radchat.daemon.v1.gate import CarefulRoute, service_of
from radchat.daemon.v1.messages import given, tools_of
from radchat.daemon.v1.named import model_of
from radchat.engine.conversation import Settings
from radchat.errors import InvalidInput

MOST_CHARACTERS = 1_000_000


def router(app: App) -> APIRouter:
    routes = APIRouter(route_class=CarefulRoute)

    @routes.post("/tokenize", operation_id="tokenize")
    async def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
        """The ids of a text, or of a conversation as the model's template writes it."""
        caller_of(request.scope)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidInput("give one of prompt and messages", field="prompt")
        if body.prompt is not None and len(body.prompt) > MOST_CHARACTERS:
            raise InvalidInput(f"prompt: at most {MOST_CHARACTERS:,} characters", field="prompt")
        if not body.add_generation_prompt:
            where = "add_generation_prompt"
            raise InvalidInput(f"{where}: a conversation is tokenized as it is asked", field=where)
        with app.counted():
            service = await service_of(app)
            entry = await service.engines.choose(await model_of(service, body.model), None)
            async with service.engines.using(entry, None, lambda _event: None) as loaded:

                def work() -> list[int]:
                    if body.prompt is not None:
                        return list(loaded.tokenizer.encode_text(body.prompt))
                    told = given(body.messages or [])
                    fresh = [turn(each["role"], each["parts"]) for each in told]
                    settings = Settings(
                        clock=datetime.now().astimezone().replace(microsecond=0),
                        tools=tuple(tools_of(body.tools)),
                        tools_in=loaded.template.tool_form.source,
                    )
                    return list(loaded.template.prompt([], fresh, settings).ids)

                ids = await service.desk.run(work)
                most = loaded.context_length
        return {"tokens": ids, "count": len(ids), "max_model_len": most, "token_strs": None}

    @routes.post("/detokenize", operation_id="detokenize")
    async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, str]:
        """The text of ids; control tokens as their names."""
        caller_of(request.scope)
        with app.counted():
            service = await service_of(app)
            entry = await service.engines.choose(await model_of(service, body.model), None)
            async with service.engines.using(entry, None, lambda _event: None) as loaded:
                size = loaded.model.vocab_size
                for place, each in enumerate(body.tokens):
                    if not 0 <= each < size:
                        where = f"tokens[{place}]"
                        raise InvalidInput(f"{where}: want ids 0 to {size - 1}", field=where)
                text = await service.desk.run(lambda: loaded.tokenizer.decode(body.tokens))
        return {"prompt": text}

    return routes
