"""A command's options as the engine's parameters, and the counts that come back as JSON."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from radchat.config import DEFAULT_TEMPERATURE, DEFAULT_TOP_P
from radchat.engine.request import Request, SamplingParams, TokenLogprob, Usage
from radchat.errors import InvalidInput

if TYPE_CHECKING:
    from radchat.daemon.loaded import Loaded


def switches(loaded: Loaded, think: str | None) -> tuple[dict[str, Any], str | None]:
    """The template's own switches for a level of reasoning, and what to say of it."""
    return ({}, None) if think is None else loaded.template.thinking(think)


def context_limit(loaded: Loaded, options: Mapping[str, Any]) -> int:
    asked = options.get("num_ctx")
    if asked is not None and asked < 1:
        raise InvalidInput(f"num_ctx: want 1 or more (got {asked})", field="num_ctx")
    return loaded.context_length if asked is None else min(asked, loaded.context_length)


def sampling_params(options: Mapping[str, Any], loaded: Loaded, most: int | None) -> SamplingParams:
    seed = options.get("seed")
    given = {
        name: options[name]
        for name in (
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "logprobs",
        )
        if options.get(name) is not None
    }
    temperature, top_p = options.get("temperature"), options.get("top_p")
    bias = options.get("logit_bias") or {}
    return SamplingParams(
        temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
        top_p=DEFAULT_TOP_P if top_p is None else top_p,
        seed=secrets.randbits(32) if seed is None else seed,
        max_tokens=most,
        stop=tuple(options.get("stop") or ()),
        stop_ids=loaded.model.stop_ids | set(options.get("stop_ids") or ()),
        logit_bias={_token_id(text): value for text, value in bias.items()},
        **given,
    )


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidInput(f"logit_bias: want token ids as keys (got {text!r})", field="logit_bias")
    return int(text)


def checked_params(given: Mapping[str, Any], loaded: Loaded) -> SamplingParams:
    """Refused here, where the caller's line is known, rather than by the engine."""
    params = sampling_params(given, loaded, given.get("max_tokens"))
    params.validate(loaded.model.vocab_size)
    return params


def params_json(params: SamplingParams) -> dict[str, Any]:
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "max_tokens": params.max_tokens,
        "stop": list(params.stop),
    }


def sampling_json(request: Request) -> dict[str, Any]:
    """What is kept of how an answer is made: `continue` goes on under its grammar."""
    if request.grammar is None:
        return params_json(request.params)
    return {**params_json(request.params), "grammar": asdict(request.grammar.grammar)}


REMOTE = "remote"  # in the place of a dtype, of what runs elsewhere
Counts = dict[str, int | None]  # null: not known


def _remote_usage(usage: Usage) -> tuple[Counts, Counts]:
    """As its server tells it: null is not known, 0 a measured zero."""
    computed = None if usage.remote is None else usage.input_tokens - usage.remote
    counts: Counts = {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.remote,
        "output_tokens": usage.output_tokens,
        "forced_tokens": 0,
    }
    none: Counts = dict.fromkeys(("device", "host", "disk"), 0)
    return counts, {**none, "remote": usage.remote, "computed": computed}


def usage_json(usage: Usage) -> tuple[Counts, Counts]:
    if usage.is_remote:
        return _remote_usage(usage)
    counts: dict[str, int | None] = {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "forced_tokens": usage.forced_tokens,
    }
    tiers: dict[str, int | None] = {
        "device": usage.device,
        "host": usage.host,
        "disk": usage.disk,
        "computed": usage.computed,
    }
    return counts, tiers


def logprob_json(each: TokenLogprob) -> dict[str, Any]:
    return {"id": each.id, "logprob": each.logprob, "top": [list(pair) for pair in each.top]}
