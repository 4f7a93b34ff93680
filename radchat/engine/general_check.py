"""A model opened on the general path is held against transformers' own attention, once.

What a class does can't be known from its config: tokens mixed outside of attention, an argument we
don't know, a mask of its own. So a few short texts are run both ways, ours two tokens of each at a
time, so that every other row stands beside a stranger, and the logits must agree.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from radchat.engine.general import GeneralModel
from radchat.engine.general_attention import NAME
from radchat.engine.kv_pool import KVPool
from radchat.errors import ModelBroken
from radchat_kernels import Segment, plan

NUM_TEXTS = 6
LENGTH = 8  # tokens of each
AT_ONCE = 2
PAGE_SIZE = 3
# Share of the logits' spread by which ROWS of the rows may differ at most. Seen: 2e-6, and 0.03 for
# bf16, where of a mixture of experts some rows may be routed otherwise.
BOUNDS = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.15}
ROWS = 0.7


def check_against_transformers(model: GeneralModel) -> None:
    """Raise ModelBroken if our attention gives other logits than transformers' own."""
    error = difference(model)
    if not error <= BOUNDS[model.dtype]:  # nan too
        raise ModelBroken(
            f"{model.config.architecture!r} gives other logits with radchat's attention than with "
            f"its own (off by {error:.1%} of their spread): it does more with tokens than attend "
            "to them"
        )


def difference(model: GeneralModel) -> float:
    """How far our logits are from transformers', as a share of their spread."""
    special = _special_ids(model.module.config)
    ids = [i for i in range(model.config.vocab_size) if i not in special] or [0]
    length = min(LENGTH, model.config.max_position_embeddings)
    chance = random.Random(0)
    drawn = [chance.choices(ids, k=length) for _ in range(NUM_TEXTS)]
    texts = torch.tensor(drawn, device=model.device)
    theirs, ours = _theirs(model.module, texts), _ours(model, texts)
    spread = theirs - theirs.mean(dim=-1, keepdim=True)
    errors = (ours - theirs).norm(dim=-1) / spread.norm(dim=-1)
    return float(errors.flatten().quantile(ROWS))


def _special_ids(config: Any) -> set[int]:
    """Ids with a meaning of their own (images, padding): no text for a check."""
    found: set[int] = set()
    for part in (config, config.get_text_config()):
        for key, value in part.to_dict().items():
            if key.endswith(("_token_id", "_token_index", "_token_ids")):
                found |= {i for i in (value if isinstance(value, list) else [value]) if i}
    return found


def _theirs(module: Any, texts: Tensor) -> Tensor:
    """[texts, tokens, vocab] float32 by transformers' plain attention over the whole texts."""
    module.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            out = module(input_ids=texts, use_cache=False)
    finally:
        module.set_attn_implementation(NAME)
    logits: Tensor = out.logits.float()
    return logits


def _ours(model: GeneralModel, texts: Tensor) -> Tensor:
    """The same by our path."""
    length, config = texts.shape[1], model.config
    num_pages = -(-length // PAGE_SIZE)
    pool = KVPool(
        config.num_layers,
        NUM_TEXTS * num_pages,
        PAGE_SIZE,
        config.num_kv_heads,
        config.head_dim,
        model.dtype,
        model.device,
        poison=True,
        executor=model.executor,
    )
    pages = torch.randperm(NUM_TEXTS * num_pages, generator=torch.Generator().manual_seed(0))
    tables = pages.view(NUM_TEXTS, num_pages)
    found = []
    before = model.tokens_computed
    for begin in range(0, length, AT_ONCE):
        new = texts[:, begin : begin + AT_ONCE]
        at = torch.arange(begin, begin + new.shape[1])
        slots = tables[:, at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
        segments = [
            Segment(row * len(at), len(at), begin, table)
            for row, table in enumerate(tables.tolist())
        ]
        ids, positions, slots, rows = (
            values.flatten().to(model.device)
            for values in (new, at.repeat(NUM_TEXTS), slots, torch.arange(new.numel()))
        )
        made = plan(segments, PAGE_SIZE)
        logits = model.forward(ids, positions, slots, made, pool, rows)
        found.append(logits.view(NUM_TEXTS, len(at), -1))
    model.tokens_computed = before
    return torch.cat(found, dim=1)
