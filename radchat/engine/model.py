"""A converted folder as something to talk to: decoder, tokenizer, template, and an engine for it.

Nothing here imports transformers. Memory is counted before anything is loaded: a model that does
not fit is refused with the numbers, since a machine that swaps is worse than one that says no.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from radchat.config import Size
from radchat.engine.checks import wants_checks
from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.detokenize import StopChecker
from radchat.engine.engine import Engine
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Request
from radchat.engine.scheduler import SchedulerOptions
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.weights import fingerprint, load_weights, read_about
from radchat.errors import ContextOverflow, ModelBroken, UsageError
from radchat_kernels import Plan

PAGE_SIZE = 16  # tokens
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHARE_OF_FREE = 0.25  # of free memory, for KV on a CPU
MOST_KV_BYTES = 4 * 1024**3
WORK_BYTES = 256 * 1024**2  # activations and logits of a step, with room
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(eq=False)
class LoadedModel:
    """``asked_dtype`` may be auto; ``dtype`` is what it came to. ``sampling``: the model's own."""

    folder: Path
    asked_dtype: str
    dtype: str
    decoder: Decoder
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    sampling: dict[str, Any]
    fingerprint: str
    num_bytes: int  # of weights in memory
    context_length: int = field(init=False)  # tokens a request may hold

    def __post_init__(self) -> None:
        self.context_length = self.decoder.config.max_position_embeddings

    @property
    def vocab_size(self) -> int:
        return self.decoder.config.vocab_size

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        plan: Plan,
        pool: KVPool,
        logit_rows: Tensor,
    ) -> Tensor:
        return self.decoder.forward(ids, positions, slots, plan, pool, logit_rows)


def resolve_dtype(name: str) -> str:
    """``auto``: bf16 where the CPU multiplies it natively, else fp32."""
    if name != "auto":
        if name not in DTYPES:
            raise UsageError(f"dtype {name!r}: want auto, {' or '.join(DTYPES)}")
        return name
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001 - no public question
    return "bf16" if has_bf16 else "fp32"


def load(
    folder: Path, dtype: str = "auto", *, progress: Callable[[float], None] = lambda _: None
) -> LoadedModel:
    """Map, check and assemble; ``progress`` hears the share that is done, 0 to 1.

    Raises ModelBroken with what is wrong and what to type; UsageError for an unknown dtype.
    """
    about = read_about(folder)
    chosen = resolve_dtype(dtype)
    config = DecoderConfig.from_hf(_json(folder / "config.json"))
    progress(0.1)
    tokenizer = Tokenizer(folder)
    progress(0.4)
    template = Template.load(folder, tokenizer)
    if config.vocab_size < tokenizer.vocab_size:
        raise ModelBroken(
            f"{folder.name}: the tokenizer has {tokenizer.vocab_size} ids and the model rows for "
            f"{config.vocab_size}"
        )
    progress(0.6)
    num_bytes = _weight_bytes(about, chosen)
    _require_memory(folder.name, num_bytes)
    generation = _json(folder / "generation_config.json")
    eos = generation.get("eos_token_id")
    eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    decoder = Decoder(config, load_weights(folder, DTYPES[chosen]), DTYPES[chosen])
    progress(1.0)
    return LoadedModel(
        folder=folder,
        asked_dtype=dtype,
        dtype=chosen,
        decoder=decoder,
        tokenizer=tokenizer,
        template=template,
        stop_ids=template.stop_ids(eos_ids),
        sampling={key: generation[key] for key in SAMPLING if generation.get(key) is not None},
        fingerprint=fingerprint(folder, DTYPES[chosen], f"[layers,2,pages,{PAGE_SIZE},heads,dim]"),
        num_bytes=num_bytes,
    )


def build_engine(
    model: LoadedModel,
    *,
    kv_budget: Size | None = None,
    context_length: int | None = None,
    options: SchedulerOptions | None = None,
    check: bool | None = None,
) -> Engine:
    """An engine with a pool of the budget's size: given, or a quarter of free memory, ≤ 4 GiB.

    A request may hold what the model, ``context_length`` and the pool allow, the least of them.
    """
    check = wants_checks() if check is None else check
    config = model.decoder.config
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    per_token *= DTYPES[model.dtype].itemsize
    num_pages = _num_pages(kv_budget, per_token * PAGE_SIZE)
    pool = KVPool(
        config.num_layers,
        num_pages + 1,  # page 0 is nobody's
        PAGE_SIZE,
        config.num_kv_heads,
        config.head_dim,
        DTYPES[model.dtype],
        poison=check,
    )
    limits = [config.max_position_embeddings, num_pages * PAGE_SIZE]
    if context_length is not None:
        limits.append(context_length)
    model.context_length = min(limits)
    cache = PrefixCache(num_pages + 1, PAGE_SIZE)
    return Engine(model, pool, cache, _text_factory(model.tokenizer), options=options, check=check)


def _text_factory(tokenizer: Tokenizer) -> Any:
    """What turns a choice's ids into words; an answer that goes on begins in mid-character."""

    def text(request: Request) -> Any:
        said = request.ids[len(request.ids) - request.said :]
        return tokenizer.detokenizer(after=said), StopChecker(request.params.stop)

    return text


def _num_pages(budget: Size | None, page_bytes: int) -> int:
    if budget is not None and budget.tokens is not None:
        num_pages = -(-budget.tokens // PAGE_SIZE)
    else:
        given = None if budget is None else budget.bytes
        free = psutil.virtual_memory().available
        most = min(int(SHARE_OF_FREE * free), MOST_KV_BYTES) if given is None else given
        num_pages = most // page_bytes
    if num_pages < 1:
        raise ContextOverflow(
            f"the KV budget holds no page of {PAGE_SIZE} tokens ({page_bytes:,} bytes): "
            "raise kv_device (RADCHAT_KV_DEVICE)"
        )
    return num_pages


def _weight_bytes(about: dict[str, Any], dtype: str) -> int:
    stored = int(about["files"].get("model.safetensors", 0))
    return int(about["parameters"]) * DTYPES[dtype].itemsize if dtype == "fp32" else stored


def _require_memory(name: str, num_bytes: int) -> None:
    free = psutil.virtual_memory().available
    need = num_bytes + WORK_BYTES
    if need > free:
        raise ModelBroken(
            f"{name} needs {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: "
            "close something, choose a smaller model, or --dtype bf16",
            need_bytes=need,
            free_bytes=free,
        )


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelBroken(f"{path} can't be read: {error}") from error
