"""The stores of other programs, as they lay them out, with tiny models in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Quant

from tests.models.making import gguf_file, hf_folder, model

Q8 = {"general.file_type": 7, "general.size_label": "0.1M"}


def tiny_gguf(path: Path, kind: str = "llama", **meta: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    config, weights = model(kind)
    return gguf_file(path, config, weights, quant=Quant.Q8_0, meta=Q8 | meta)


def add_blob(root: Path, data: bytes) -> dict[str, Any]:
    """A blob of ollama's; its layer, without a media type."""
    digest = hashlib.sha256(data).hexdigest()
    path = root / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def ollama_model(
    root: Path,
    name: str,
    gguf: Path,
    *,
    host: str = "registry.ollama.ai",
    **layers: str | dict[str, Any],
) -> Path:
    """NAMESPACE/NAME:TAG in the store; its manifest. ``layers``: params, system, template …"""
    made = [
        {
            "mediaType": "application/vnd.ollama.image.model",
            **add_blob(root, gguf.read_bytes()),
        }
    ]
    for kind, content in layers.items():
        text = content if isinstance(content, str) else json.dumps(content)
        layer = add_blob(root, text.encode())
        made.append({"mediaType": f"application/vnd.ollama.image.{kind}", **layer})
    repo, _, tag = name.partition(":")
    manifest = root / "manifests" / host / repo / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": made}))
    return manifest


def hub_snapshot(cache: Path, repo: str, commit: str = "c" * 40) -> Path:
    """The folder of a model's commit, main's."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    return snapshot


def hub_gguf(cache: Path, repo: str, name: str, gguf: Path) -> Path:
    """A file in the hub's cache: a link to its blob."""
    snapshot = hub_snapshot(cache, repo)
    data = gguf.read_bytes()
    blob = snapshot.parents[1] / "blobs" / hashlib.sha256(data).hexdigest()
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(data)
    (snapshot / name).symlink_to(blob)
    return snapshot / name


def hub_model(cache: Path, repo: str) -> Path:
    """Safetensors in the hub's cache."""
    snapshot = hub_snapshot(cache, repo)
    hf_folder(snapshot)
    config = json.loads((snapshot / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLM"]
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot
