"""A model that runs elsewhere, as the daemon sees a loaded one: tokenizer and template, no weights.

Nothing here imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from radchat.architectures import SAMPLING
from radchat.daemon.remote.dialect import Served
from radchat.engine.about import read_about
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer

USUAL_CONTEXT = 8192  # where the server doesn't say


@dataclass(eq=False)
class RemoteModel:
    """What ``engine.model.LoadedModel`` has of it that others ask for."""

    folder: Path
    served: Served
    tokenizer: Tokenizer
    template: Template
    stop_ids: frozenset[int]
    sampling: dict[str, Any]
    fingerprint: str
    context_length: int
    system: str | None = None
    dtype: str = "remote"
    num_bytes: int = 0  # in memory here
    is_mapped: bool = False
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    @property
    def vocab_size(self) -> int:
        return max(self.tokenizer.vocab_size, self._rows)

    _rows: int = 0


def open_remote(folder: Path) -> RemoteModel:
    """Raises ModelBroken for a folder that is not whole, as ``engine.model.load`` does."""
    about = read_about(folder)
    engine = about["engine"]
    served = Served(**engine)
    tokenizer = Tokenizer(folder)
    template = Template.load(folder, tokenizer)
    generation = _json(folder / "generation_config.json")
    eos = generation.get("eos_token_id")
    eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    rows = _json(folder / "config.json").get("vocab_size")
    return RemoteModel(
        folder,
        served,
        tokenizer,
        template,
        template.stop_ids(eos_ids),
        {key: generation[key] for key in SAMPLING if generation.get(key) is not None},
        blake2b(f"remote {folder.name}".encode(), digest_size=16).hexdigest(),
        served.context_length or int(about.get("context_length") or USUAL_CONTEXT),
        _rows=rows if isinstance(rows, int) else 0,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
