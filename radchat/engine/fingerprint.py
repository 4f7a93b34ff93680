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


def fingerprint(folder: Path, dtype_name: str, kv_format: int = KV_FORMAT) -> str:
    """32 hex digits over all that makes KV of one model comparable, each under its name.

    Weights, config.json (RoPE is in it), tokenizer, dtype (``bf16``, ``fp32``, ``int4``), KV
    layout, whose code runs it, format of the KV (not of the folder). Raises ModelBroken.
    """
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
    if dtype_name == "int4":
        content["packed"] = str(about.get("packed_sha256"))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
