"""The KV pool of a model that is loaded: as large as was said, or as what is free allows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from radchat.config import Size, kv_default
from radchat.engine.forward import KVShape
from radchat.engine.kv_pool import KVPool
from radchat.engine.memory import PAGE_SIZE, gpu_kv, no_pool, num_pages
from radchat.engine.unless_full import unless_full

if TYPE_CHECKING:
    from radchat.engine.model import LoadedModel


def open_pool(model: LoadedModel, budget: Size | None, free: int, *, poison: bool) -> KVPool:
    """Of the budget, else by the ``free`` bytes of the model's device. Raises ModelBroken."""
    device, on_gpu = model.device, model.device.type != "cpu"
    token_bytes = KVShape.of(model.decoder.config).num_values * model.decoder.dtype.itemsize
    default = gpu_kv(free, model.num_bytes) if on_gpu else kv_default(free)
    wanted = num_pages(budget, token_bytes, default)
    # what is free may be in pieces: then a sixth less, where nobody said how much
    for pages in (wanted,) if budget is not None else (wanted, wanted - wanted // 6):
        pool = unless_full("KV", partial(_pool, model, pages, poison=poison))
        if pool is not None:
            return pool
        device.release()
    left, is_set = device.free_bytes(), budget is not None
    tokens = pages * PAGE_SIZE
    raise no_pool(model.folder.name, tokens, token_bytes, left, kv_is_set=is_set, on_gpu=on_gpu)


def _pool(model: LoadedModel, pages: int, *, poison: bool) -> KVPool:
    config = model.decoder.config
    return KVPool(
        config.num_layers,
        pages + 1,  # page 0 is nobody's
        PAGE_SIZE,
        config.num_kv_heads,
        config.head_dim,
        model.decoder.dtype,
        model.device.type,
        poison=poison,
        executor=model.executor,
    )
