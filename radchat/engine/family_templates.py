"""Chat templates of families, for a GGUF file that brings none: told by its control tokens.

Written after what the families' model cards say a conversation looks like.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Family(NamedTuple):
    name: str
    marks: tuple[str, ...]  # control tokens that must all be there
    template: str


_CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
FAMILIES = (
    Family("ChatML", ("<|im_start|>", "<|im_end|>"), _CHATML),
    Family("Llama 3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _LLAMA3),
)


def family_of(meta: Mapping[str, Any]) -> Family | None:
    """The family whose control tokens the file's vocabulary has."""
    tokens: Collection[str] = set(meta.get("tokenizer.ggml.tokens") or ())
    return next((each for each in FAMILIES if all(mark in tokens for mark in each.marks)), None)
