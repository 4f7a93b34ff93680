"""What completions and the routes beside them are asked with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from radchat.daemon.v1.bodies import MOST_OF_NAME, STRICT, Message, Sampling, StreamOptions, Tool

MAX_PROMPTS = 128


class CompletionBody(Sampling):
    model: str = Field(max_length=MOST_OF_NAME)
    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="text, or token ids that are taken as they are; one, or a list of them"
    )
    best_of: int | None = Field(None, ge=1, le=128, description="as many as n, or absent")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # as vLLM calls them
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = Field(None, description="in logprobs: token_id:N")
    stop_token_ids: list[int] | None = Field(None, max_length=128)
    ignore_eos: bool | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None, description='one of "json", "regex", "choice", "grammar" (Lark)'
    )


class TokenizeBody(BaseModel):
    model_config = STRICT

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True


class DetokenizeBody(BaseModel):
    model_config = STRICT

    model: str = ""
    tokens: list[int] = Field(max_length=1_000_000)
