"""What a chat completion may be asked with. The names are OpenAI's; ``radchat`` and what stands
under "ours" are not.

A name that is not here is refused. Those in ``Ignored`` are taken and change nothing: clients send
them along, and an answer is right without them. Ranges that the engine checks are checked there.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
LOOSE = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

MAX_MESSAGES = 10_000
MOST_OF_NAME = 500  # characters, of a model's
DEFAULT_MODEL = frozenset(("", "default"))  # whichever a chat would begin with
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Ignored(BaseModel):
    """What means nothing here: who asks, where it is billed, what is kept for whom."""

    model_config = STRICT

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    verbosity: Any = None


class Sampling(Ignored):
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | list[str] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = Field(None, ge=1)
    # ours, as other local servers call them
    top_k: int | None = Field(None, ge=-1, description="0 or -1: off")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)

    def options(self) -> dict[str, Any]:
        """As ``generate`` takes them."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": None if self.seed is None else self.seed % 2**64,
            "max_tokens": self.max_tokens,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "logit_bias": self.logit_bias,
        }
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(BaseModel):
    model_config = LOOSE

    include_usage: bool | None = None


class ContentPart(BaseModel):
    model_config = LOOSE

    type: str
    text: str | None = None


class FunctionCalled(BaseModel):
    model_config = LOOSE

    name: str
    arguments: str | dict[str, Any] | None = None


class Called(BaseModel):
    model_config = LOOSE

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCalled


class Message(BaseModel):
    """``extra`` names are left out: clients send back whatever other servers put there."""

    model_config = LOOSE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(BaseModel):
    model_config = LOOSE

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = LOOSE

    type: Literal["function"]
    function: Function


class Named(BaseModel):
    model_config = LOOSE

    name: str


class NamedTool(BaseModel):
    model_config = LOOSE

    type: Literal["function"]
    function: Named


class JsonSchema(BaseModel):
    model_config = ConfigDict(**LOOSE, populate_by_name=True, protected_namespaces=())

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = LOOSE

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Radchat(BaseModel):
    """Where the answer goes: docs/serve.md."""

    model_config = STRICT

    session: str | None = Field(None, min_length=1, max_length=200)
    parent: str | None = Field(None, min_length=4, max_length=32)
    branch: str | None = Field(None, min_length=1, max_length=200)


class ChatBody(Sampling):
    model: str = Field(max_length=MOST_OF_NAME)
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    modalities: list[Literal["text"]] | None = None
    radchat: Radchat | None = None
