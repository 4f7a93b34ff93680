"""Tiny random models, converted, for daemons that load one in a moment.

Bytes are tokens, so a text has as many ids as letters; the chat template is ChatML. At temperature
0 an answer is letters and spaces and never ends by itself: everything else scores 0, and some
letter always scores more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from radchat.engine.convert import convert
from tests.models.making import SPECIALS, hf_folder, vocabulary

CONTEXT = 8192  # tokens
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")
CONTROL_IDS = frozenset(range(len(SPECIALS)))


def converted(
    models: Path,
    name: str,
    *,
    seed: int = 0,
    eos: Sequence[str] = (),
    template: str = CHATML,
    context: int = CONTEXT,
    favours: Sequence[str] = (),
    follows: Mapping[str, str] | None = None,
    added: Sequence[str] = (),
    backwards: bool = False,
    **overrides: Any,
) -> Path:
    """A folder in ``models`` as ``radchat models pull`` leaves it.

    ``eos``: tokens that end an answer, besides the template's own. ``favours``: tokens that
    follow one another for ever, whatever was said before. ``follows``: what follows which token;
    "" stands for every other. ``added``: tokens of its own, that stand for their text.
    ``backwards``: a tokenizer with other ids.
    """
    source = models.parent / f"{name}-source"
    weights = hf_folder(
        source,
        seed=seed,
        max_position_embeddings=context,
        added=added,
        backwards=backwards,
        **overrides,
    )
    tokens = [*vocabulary(backwards=backwards), *added]
    ids = {token: number for number, token in enumerate(tokens)}
    head = weights["lm_head.weight"]
    head[[number for token, number in ids.items() if token not in LETTERS]] = 0.0
    if favours:
        follows = dict(zip(favours, (*favours[1:], favours[0]), strict=True)) | {"": favours[0]}
    if follows:
        rest = ids[follows[""]]
        _only_follow(weights, {ids[a]: ids[b] for a, b in follows.items() if a}, rest)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    if eos:
        config = {"eos_token_id": [ids[token] for token in eos]}
        (source / "generation_config.json").write_text(json.dumps(config))
    models.mkdir(parents=True, exist_ok=True)
    folder = models / f"{name}-new"
    about = convert(source, folder, {"name": name})
    return folder.rename(models / f"{name}-{about['weights_sha256'][:8]}")


def _only_follow(weights: dict[str, torch.Tensor], following: Mapping[int, int], rest: int) -> None:
    """Make an id's embedding alone decide the next; ``rest`` follows those without a place."""
    embed, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    size = embed.shape[1]
    embed.zero_()
    head.zero_()
    weights["model.norm.weight"].fill_(1.0)
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()  # layers add nothing to the embedding
    for index, (token, after) in enumerate(following.items()):
        embed[token, index] = 1.0
        head[after, index] = 8.0
    others = [token for token in range(embed.shape[0]) if token not in following]
    embed[others, size - 1] = 1.0
    head[rest, size - 1] = 8.0
