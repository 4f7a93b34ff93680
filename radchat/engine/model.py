"""A converted folder as something to talk to: decoder, tokenizer, template, and an engine for it.

Nothing here imports transformers. Memory is counted before anything is loaded (memory.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from radchat.architectures import SAMPLING
from radchat.config import Size
from radchat.engine.about import read_about, repair
from radchat.engine.block_store import BlockStore
from radchat.engine.checks import wants_checks
from radchat.engine.decoder import Decoder, DecoderConfig
from radchat.engine.detokenize import StopChecker
from radchat.engine.device import CPU, Device
from radchat.engine.dtypes import auto_dtype, resolve_dtype, values_dtype
from radchat.engine.engine import Engine
from radchat.engine.fingerprint import fingerprint, kind_of
from radchat.engine.forward import Forward, KVShape, heads_of
from radchat.engine.kv_pool import DTYPE_NAMES, KVPool
from radchat.engine.memory import PAGE_SIZE, Need, need
from radchat.engine.open_pool import open_pool
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Request
from radchat.engine.scheduler_options import SchedulerOptions
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.unless_full import unless_full
from radchat.engine.warm_up import warm_up
from radchat.engine.weights import is_stored_as, load_packed, load_weights, packed_size
from radchat.errors import ModelBroken, UsageError
from radchat_kernels.executor import Executor, Heads, choose
from radchat_kernels.plan import Plan


@dataclass(eq=False)
class LoadedModel:
    """``asked_dtype`` may be auto; ``dtype`` is what it came to. ``sampling``: the model's own."""

    folder: Path
    asked_dtype: str
    dtype: str
    decoder: Forward
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    sampling: dict[str, Any]
    fingerprint: str
    num_bytes: int  # of weights in memory
    system: str | None  # a session's system prompt where none is given
    is_mapped: bool  # they are the file's own pages, which the system counts as free
    device: Device
    executor: Executor
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


def choose_dtype(
    folder: Path, name: str, free: int, kv_budget: Size | None = None, *, device: Device = CPU
) -> str:
    """What ``name`` comes to where so many bytes are free on ``device``. Raises as ``load``."""
    if name != "auto" or device.type == "cpu":
        return resolve_dtype(name, device)
    has_packed = packed_size(folder)[0] > 0
    in_4_bits = needs(folder, "int4", kv_budget, device=device) if has_packed else None
    return auto_dtype(free, needs(folder, "auto", kv_budget, device=device), in_4_bits, device)


def layers_of(folder: Path) -> tuple[Heads, int]:
    """Heads, hidden size; on the general path one query head a KV head, 0. Raises as ``load``."""
    about = read_about(folder)
    if about.get("runs_on") == "transformers":
        shape = KVShape.from_json(about["kv_shape"])
        return Heads(shape.num_kv_heads, shape.num_kv_heads, shape.head_dim), 0
    config = DecoderConfig.from_hf(_json(folder / "config.json"))
    return heads_of(config), config.hidden_size


def needs(folder: Path, dtype: str, kv_budget: Size | None = None, *, device: Device = CPU) -> Need:
    """What loading this takes, from its small files. Raises as ``load`` does."""
    about, chosen = read_about(folder), resolve_dtype(dtype, device)
    values = values_dtype(chosen, device)
    packed, num_packed = packed_size(folder) if chosen == "int4" else (0, 0)
    if chosen == "int4" and not packed:
        raise UsageError(
            f"{about['name']} has no 4-bit weights, its source is {about['dtype_source']}: "
            "take another --dtype, or pull a .gguf file of it in Q4_0 or Q4_1"
        )
    weights = packed + (int(about["parameters"]) - num_packed) * values.itemsize
    if about.get("runs_on") == "transformers":
        shape, context = KVShape.from_json(about["kv_shape"]), int(about["context_length"])
    else:
        config = DecoderConfig.from_hf(_json(folder / "config.json"))
        shape, context = KVShape.of(config), config.max_position_embeddings
    token_bytes = shape.num_values * values.itemsize
    return need(
        folder.name,
        weights,
        kv_budget,
        token_bytes,
        context,
        on_gpu=device.type != "cpu",
        dtype=chosen,
        has_4_bits="packed.safetensors" in about["files"],
    )


def load(
    folder: Path,
    dtype: str = "auto",
    *,
    progress: Callable[[float], None] = lambda _: None,
    free_bytes: int | None = None,
    device: Device | None = None,
    executor: Executor | None = None,
) -> LoadedModel:
    """Map, check and assemble on ``device``; ``progress`` hears the share that is done, 0 to 1.

    ``free_bytes``: what it may take; None: what is free there. ``device``, ``executor``: None is
    the CPU, and what is best on the device.
    Raises ModelBroken with what is wrong and what to type; UsageError for an unknown dtype.
    """
    device = device or Device()
    executor = executor or choose(device.type)
    about = read_about(folder)
    free = device.free_bytes() if free_bytes is None else free_bytes
    chosen = choose_dtype(folder, dtype, free, device=device)
    values = values_dtype(chosen, device)
    config = _json(folder / "config.json")
    is_general = about.get("runs_on") == "transformers"
    if not is_general:
        DecoderConfig.from_hf(config)  # refuses at once what it can't run
    progress(0.1)
    tokenizer = Tokenizer(folder)
    progress(0.4)
    template = Template.load(folder, tokenizer)
    progress(0.6)
    needed = needs(folder, chosen, device=device)
    needed.require(free)
    generation = _json(folder / "generation_config.json")
    eos = generation.get("eos_token_id")
    eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    sampling = {key: generation[key] for key in SAMPLING if generation.get(key) is not None}
    defaults = dict(about.get("defaults") or {})  # that came with it from another program
    open_ = _open_general if is_general else _open_decoder
    decoder = unless_full("weights", lambda: open_(folder, config, chosen, device, executor))
    if decoder is None:
        device.release()
        raise needed.refusal(device.free_bytes())
    if decoder.config.vocab_size < tokenizer.vocab_size:
        raise ModelBroken(
            f"{folder.name}: the tokenizer has {tokenizer.vocab_size} ids and the model rows for "
            f"{decoder.config.vocab_size}"
        )
    if device.type != "cpu":
        device.release()  # what was made on the way is the pool's
    kind = kind_of(chosen, device.type, DTYPE_NAMES[values])
    progress(1.0)
    return LoadedModel(
        folder=folder,
        asked_dtype=dtype,
        dtype=chosen,
        decoder=decoder,
        tokenizer=tokenizer,
        template=template,
        stop_ids=template.stop_ids(eos_ids),
        sampling=sampling | {k: v for k, v in defaults.items() if k != "system"},
        system=defaults.get("system"),
        fingerprint=fingerprint(folder, chosen, kind),
        num_bytes=needed.weights,
        is_mapped=device.type == "cpu" and is_stored_as(values, about),
        device=device,
        executor=executor,
    )


def _open_decoder(
    folder: Path, config: dict[str, Any], dtype: str, device: Device, executor: Executor
) -> Forward:
    packed = load_packed(folder) if dtype == "int4" else {}
    weights = load_weights(folder, None)  # cast as they are used: those packed are not
    values = values_dtype(dtype, device)
    return Decoder(DecoderConfig.from_hf(config), weights, values, device.type, executor, packed)


def _open_general(
    folder: Path, config: dict[str, Any], dtype: str, device: Device, executor: Executor
) -> Forward:
    from radchat.engine.general import open_general, version

    about = read_about(folder)
    is_same = about.get("transformers") == version()
    try:
        weights = load_weights(folder, None)
        values = values_dtype(dtype, device)
        return open_general(config, weights, values, device.type, executor, is_checked=is_same)
    except ModelBroken as error:
        if is_same:
            raise
        raise ModelBroken(
            f"{error.message} (it was converted with transformers {about.get('transformers')}, "
            f"this is {version()}); {repair(about)}"
        ) from error


def build_engine(
    model: LoadedModel,
    *,
    kv_budget: Size | None = None,
    context_length: int | None = None,
    options: SchedulerOptions | None = None,
    check: bool | None = None,
    free_bytes: int | None = None,
    blocks: BlockStore | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Engine:
    """An engine with a pool of the budget's size: given, or a quarter of free memory, ≤ 4 GiB; on
    a GPU what weights and a tenth leave of it. Raises ModelBroken where that can't be had.
    Kernels are compiled here; ``progress`` hears the share of them that is.

    ``free_bytes`` with the model loaded; None: of its device. ``blocks``: those on
    disk of ``model.fingerprint``; None: KV is not kept on disk.

    A request may hold what the model, ``context_length`` and the pool allow, the least of them.
    """
    check = wants_checks() if check is None else check
    config, device = model.decoder.config, model.device
    free = device.free_bytes() if free_bytes is None else free_bytes
    pool = open_pool(model, kv_budget, free, poison=check)
    pages = pool.num_pages - 1
    limits = [config.max_position_embeddings, pages * PAGE_SIZE]
    if context_length is not None:
        limits.append(context_length)
    model.context_length = min(limits)
    cache = PrefixCache(pages + 1, PAGE_SIZE)
    planned = model.executor.limits(heads_of(config), model.decoder.dtype.itemsize)
    if model.executor.name == "triton":
        warm = (model.decoder, pool, device, model.executor, planned, progress)
        unless_full("the first steps of each shape", lambda: warm_up(*warm))
    return Engine(
        model,
        pool,
        cache,
        _text_factory(model.tokenizer),
        options=options,
        check=check,
        blocks=blocks,
        device=model.device,
        executor=model.executor,
        limits=planned,
    )


def _text_factory(tokenizer: Tokenizer) -> Any:
    """What turns a choice's ids into words; an answer that goes on begins in mid-character."""

    def text(request: Request) -> Any:
        said = request.ids[len(request.ids) - request.said :]
        return tokenizer.detokenizer(after=said), StopChecker(request.params.stop)

    return text


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelBroken(f"{path} can't be read: {error}") from error
