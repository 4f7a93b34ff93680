"""ollama's store: ``manifests/HOST/NAMESPACE/NAME/TAG``, JSON with layers, and ``blobs/sha256-…``.

The model is a layer, a GGUF file; settings, system prompt and template are layers beside it. The
template is Go text, which nobody here reads: the GGUF file's own chat template is used.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radchat.models.found import Found, digest, look_at

DEFAULT_HOSTS = ("registry.ollama.ai", "ollama.com")
_MAX_JSON = 1 << 20
_MOST = 4096  # manifests looked at
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LAYER = "application/vnd.ollama.image."
_SETTINGS = {  # ollama's name: ours
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_WHOLE = ("top_k", "seed")


def canonical(name: str) -> str:
    """NAME[:TAG] with the tag written out."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def models(root: Path) -> Iterator[Found]:
    """Every tag in the store at ``root``, a broken one with its problem."""
    for number, path in enumerate(_files(root / "manifests", 4)):
        if number == _MOST:
            return
        host, namespace, name, tag = path.parts[-4:]
        short = host in DEFAULT_HOSTS
        words = [
            *([] if short else [host]),
            *([] if short and namespace == "library" else [namespace]),
        ]
        yield _model(root, "/".join([*words, name]) + f":{tag}", path)


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Files exactly ``depth`` levels down."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return
    for name in found:
        path = folder / name
        if depth > 1:
            yield from _files(path, depth - 1)
        elif path.is_file():
            yield path


def _model(root: Path, name: str, manifest: Path) -> Found:
    ref = f"ollama:{name}"
    try:
        layers = [dict(layer) for layer in read_json(manifest)["layers"]]
        kinds = [str(layer["mediaType"]).removeprefix(_LAYER) for layer in layers]
        blobs = [_blob(root, str(layer["digest"])) for layer in layers]
    except (OSError, ValueError, KeyError, TypeError):
        return Found(ref, manifest, problem="its manifest can't be read")
    of_kind: dict[str, list[int]] = {}
    for index, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(index)
    main = of_kind.get("model", [])
    if not main:
        return Found(ref, manifest, problem="it has no GGUF file")
    path, want = blobs[main[0]], layers[main[0]].get("size")
    problem = None
    if len(main) > 1:
        problem = f"in {len(main)} parts, which radchat does not join"
    elif "adapter" in of_kind:
        problem = "an adapter goes with it, which radchat does not apply"
    elif path.is_file() and path.stat().st_size != want:
        problem = "not whole: ollama pull it again"
    defaults, notes = _settings(blobs[i] for i in of_kind.get("params", []))
    system = "".join(_text(blobs[i]) for i in of_kind.get("system", []))
    if system.strip():
        defaults["system"] = system
    if "projector" in of_kind:
        notes.append("its projector for images is left out: text only")
    if "messages" in of_kind:
        notes.append("its example messages are left out")
    used = ("model", "params", "system")
    state = digest(*(layers[i]["digest"] for kind in used for i in of_kind.get(kind, [])))
    return look_at(ref, path, state=state, defaults=defaults, notes=tuple(notes), problem=problem)


def _blob(root: Path, name: str) -> Path:
    """Raises ValueError for a digest that is none: it would be a path of somebody's choice."""
    match = _DIGEST.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return root / "blobs" / f"sha256-{match[1]}"


def _settings(blobs: Iterator[Path]) -> tuple[dict[str, Any], list[str]]:
    """The params layers as generation settings, and what does not come along."""
    ours: dict[str, Any] = {}
    left: list[str] = []
    for blob in blobs:
        try:
            given = dict(read_json(blob))
        except (OSError, ValueError, TypeError):
            left.append("settings that can't be read")
            continue
        for key, value in given.items():
            if key == "stop" and _is_texts(value):
                ours["stop"] = [value] if isinstance(value, str) else list(value)
            elif key == "num_predict" and _is_number(value, whole=True) and value > 0:
                ours["max_tokens"] = value
            elif key in _SETTINGS and _is_number(value, whole=key in _WHOLE):
                ours[_SETTINGS[key]] = value
            else:
                left.append(str(key))
    return ours, [f"ollama's {', '.join(sorted(left))}: left out"] if left else []


def _is_texts(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, str) and item for item in items)


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and (not whole or isinstance(value, int))


def _text(path: Path) -> str:
    try:
        return read_bounded(path).decode("utf-8", "replace")
    except OSError:
        return ""


def read_json(path: Path) -> Any:
    return json.loads(read_bounded(path))


def read_bounded(path: Path) -> bytes:
    """A small file of somebody else's; OSError for one that is not small, or no file."""
    if not path.is_file() or path.stat().st_size > _MAX_JSON:
        raise OSError(f"{path} is not a small file")
    return path.read_bytes()
