"""What radchat reads, by the names other programs' files have for it.

On neither side of the socket: the converter takes it from here, and the terminal side says before
anything is converted what can't be.
"""

from __future__ import annotations

from collections.abc import Mapping

# a GGUF file's general.architecture -> the class of transformers it is
GGUF: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
