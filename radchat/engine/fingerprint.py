"""The name of a model's KV: content only, so that what is on disk is read by its own model alone.

No torch here: the daemon asks without a model in memory.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from radchat.engine.about import read_about

# raised with what else changes the values: their order of computation, RoPE's tables, rounding …
KV_FORMAT = 1
LAYOUT = "[layers,2,tokens,heads,dim]"  # of a block's values
# keys of config.json that say who wrote it, not what the model is
_UNIMPORTANT = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")


# Which KV of one dtype is not another's. An exact answer (fp32) goes on only from what its own
# device computed; beside 4-bit weights KV has the dtype that the device multiplies (ADR 0018).
KINDS = {"fp32": ("cpu", "gpu"), "bf16": ("any",), "int4": ("bf16", "fp32")}


def kind_of(dtype_name: str, device: str, values: str) -> str:
    """On a ``device`` (torch's word) where KV is held as ``values`` (bf16, fp32)."""
    if dtype_name == "fp32":
        return "cpu" if device == "cpu" else "gpu"
    return values if dtype_name == "int4" else "any"


def fingerprint(
    folder: Path, dtype_name: str, kind: str | None = None, *, kv_format: int = KV_FORMAT
) -> str:
    """32 hex digits over all that makes KV of one model comparable, each under its name.

    Weights, config.json (RoPE is in it), tokenizer, dtype (``bf16``, ``fp32``, ``int4``), kind
    (None: the first), KV layout, whose code runs it, format of the KV (not of the folder). Raises
    ModelBroken.
    """
    kinds = KINDS[dtype_name]
    kind = kind or kinds[0]
    assert kind in kinds
    about = read_about(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = (folder / "tokenizer.json").read_bytes()
    content = {
        "format": kv_format,
        "weights": str(about["weights_sha256"]),
        "config": {key: value for key, value in config.items() if key not in _UNIMPORTANT},
        "tokenizer": hashlib.sha256(tokenizer).hexdigest(),
        "dtype": dtype_name,
        "layout": LAYOUT,
        "runs_on": str(about.get("runs_on")),
    }
    if kind != kinds[0]:
        content["kind"] = kind
    if dtype_name == "int4":
        content["packed"] = str(about.get("packed_sha256"))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
