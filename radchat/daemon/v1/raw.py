"""Ids in, ids out: requests of a client that are no conversation, straight to the engine.

Their events are ``init``, ``text`` for each step of a choice, ``end`` of each choice, ``done``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from radchat.daemon.options import logprob_json, sampling_params, usage_json
from radchat.daemon.program_runs import hear
from radchat.daemon.service import Service
from radchat.daemon.v1.caller import Caller
from radchat.engine.grammar import Grammar
from radchat.engine.request import Event as EngineEvent
from radchat.engine.request import Finished, FinishReason, Ids, Request, SamplingParams, Tokens
from radchat.errors import InvalidInput, RadchatError, Unreachable, context_overflow
from radchat.protocol import Event

Prompt = str | Sequence[int]
MOST_SCORED = 50_000  # tokens of prompts whose log probabilities one answer may tell


@dataclass(frozen=True, slots=True)
class Asked:
    model: str | None
    prompts: Sequence[Prompt]
    options: dict[str, Any]
    n: int = 1
    scores: bool = False  # log probabilities of the prompts too
    ends: bool = True  # at the model's own end of a turn
    grammar: Grammar | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))


async def complete(service: Service, caller: Caller, asked: Asked) -> AsyncGenerator[Event]:
    """Closing it ends what is left. A choice's number counts over all prompts."""
    said: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.create_task(_run(service, caller, asked, said.put_nowait))
    task.add_done_callback(lambda _task: said.put_nowait(None))
    try:
        while (event := await said.get()) is not None:
            yield event
        task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RadchatError):
            await task


async def _run(service: Service, caller: Caller, asked: Asked, say: Any) -> None:
    entry = await service.engines.choose(asked.model, None)
    async with service.engines.using(entry, None, lambda _event: None) as loaded:
        given = service.engines.given(loaded, asked.options)
        limit = loaded.context_length

        def encoded() -> list[Ids]:
            found = []
            for index, prompt in enumerate(asked.prompts):
                if isinstance(prompt, str):
                    _require_room(loaded.tokenizer.least_ids(prompt), limit, at_least=True)
                    ids = loaded.tokenizer.encode_text(prompt)
                else:
                    _require_room(len(prompt), limit)
                    ids = _checked(prompt, loaded.model.vocab_size, index)
                if not ids:
                    raise InvalidInput(f"prompt[{index}]: it is empty", field="prompt")
                _require_room(len(ids), limit)
                found.append(ids)
            return found

        prompts = await service.desk.run(encoded)
        if asked.scores and sum(map(len, prompts)) > MOST_SCORED:
            raise InvalidInput(
                f"echo: log probabilities of at most {MOST_SCORED:,} tokens of prompts",
                field="echo",
            )
        params = sampling_params(given, loaded, given.get("max_tokens"))
        params = _with(params, asked)
        compiled = None
        if asked.grammar is not None:
            grammar, grammars = asked.grammar, loaded.grammars
            compiled = await asyncio.to_thread(lambda: grammars.compile(grammar))
        requests = [
            Request(
                f"{asked.id}.{index}",
                array("I", ids),
                params,
                n=asked.n,
                namespace=caller.namespace,
                grammar=compiled,
            )
            for index, ids in enumerate(prompts)
        ]
        for request in requests:  # none of them begins where one can't
            await service.worker.call(lambda each=request: loaded.engine.check_request(each))  # type: ignore[misc]
        first = {request.id: index * asked.n for index, request in enumerate(requests)}
        body = {"request": asked.id, "model": loaded.name, "dtype": loaded.dtype}
        say(Event("init", {**body, "prompts": [list(ids) for ids in prompts]}))

        errors: list[str | None] = []

        def take(event: EngineEvent) -> None:
            if isinstance(event, Tokens):
                number = first[event.request_id] + event.choice
                told = [logprob_json(each) for each in event.logprobs]
                step = {"choice": number, "text": event.text, "ids": list(event.ids)}
                say(Event("text", {**step, "logprobs": told}))
            elif isinstance(event, Finished):
                failed = event.reason is FinishReason.ERROR
                errors.append(event.error or "the engine failed" if failed else None)
                say(Event("end", _end(event, first[event.request_id] + event.choice)))

        await hear(service.worker, loaded.key, requests, take)
        if errors and all(errors):  # of several that went well are told
            kind = Unreachable if loaded.is_remote else RadchatError
            raise kind(str(errors[0]))
        say(Event("done", {}))


def _with(params: SamplingParams, asked: Asked) -> SamplingParams:
    from dataclasses import replace

    own = frozenset(asked.options.get("stop_ids") or ())
    return replace(
        params,
        prompt_logprobs=asked.scores,
        stop_ids=params.stop_ids if asked.ends else own,
    )


def _require_room(num: int, limit: int, *, at_least: bool = False) -> None:
    """Before anything long is tokenized: the desk is all sessions'."""
    if num >= limit:
        error = context_overflow(num, limit, at_least=at_least)
        error.data["field"] = "prompt"
        raise error


def _checked(ids: Sequence[int], vocab_size: int, index: int) -> Ids:
    for place, each in enumerate(ids):
        if not 0 <= each < vocab_size:
            where = f"prompt[{index}][{place}]"
            raise InvalidInput(f"{where}: want ids 0 to {vocab_size - 1}", field="prompt")
    return array("I", ids)


def _end(event: Finished, choice: int) -> dict[str, Any]:
    usage, scores = event.usage, event.prompt_logprobs
    return {
        "choice": choice,
        "text": event.text,
        "reason": event.reason.value,
        "kept": event.kept,
        "error": event.error,
        "usage": usage_json(usage)[0],
        "prompt_logprobs": None
        if scores is None
        else [None if each is None else logprob_json(each) for each in scores],
    }
