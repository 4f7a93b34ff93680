"""The converted models on this machine: find, name, choose, remove.

One folder a model, ``<models>/<name>-<sha8>/`` with a ``radchat.json`` (docs/adr/0006). Reading it
imports nothing heavy and never looks into the weights; a folder whose files are not as radchat.json
says is listed with its problem, and refused when asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.errors import ModelBroken, NotFound
from radchat.models import stores
from radchat.models.sources import ALIASES
from radchat.paths import Places, private_folder

FORMAT = 1  # of the folder, as the converter writes it


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A converted model. ``bytes`` is what its folder takes on disk."""

    name: str
    folder: Path
    bytes: int
    context_length: int  # tokens
    architecture: str
    parameters: int
    source: str  # what was pulled, as one would type it
    dtype_source: str
    weights_sha256: str
    license: str | None = None
    runs_on: str = "decoder"  # radchat's own, or "transformers": the general path
    context_limit: str | None = None  # why it is less than the model's own
    source_state: str | None = None  # changes when the source does
    steps: tuple[str, ...] = ()  # how it was found
    defaults: Mapping[str, Any] = field(default_factory=dict)  # that came with it: docs/cli.md
    template: Mapping[str, Any] | None = None  # what the chat template was found to do
    engine: Mapping[str, Any] | None = None  # of one that runs elsewhere: where, and what
    problem: str | None = None  # why it can't be loaded

    @property
    def dtypes(self) -> tuple[str, ...]:
        """What ``--dtype`` can be: int4 is of weights that came in 4 bits, kept as they are."""
        if self.engine is not None:
            return ()  # that is its server's
        has_packed = (self.folder / "packed.safetensors").is_file()
        return ("fp32", "bf16", "int4") if has_packed else ("fp32", "bf16")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": str(self.folder),
            "bytes": self.bytes,
            "context_length": self.context_length,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "source": self.source,
            "dtype_source": self.dtype_source,
            "dtypes": list(self.dtypes),
            "weights_sha256": self.weights_sha256,
            "license": self.license,
            "runs_on": self.runs_on,
            "context_limit": self.context_limit,
            "steps": list(self.steps),
            "defaults": dict(self.defaults),
            "engine": None if self.engine is None else dict(self.engine),
            "problem": self.problem,
        }


def read_entry(folder: Path) -> ModelEntry:
    """The entry of a folder, whole or not; ``problem`` says what is wrong with it."""
    try:
        about = json.loads((folder / "radchat.json").read_text(encoding="utf-8"))
        files = {str(name): int(size) for name, size in about["files"].items()}
        problem = None
        if about["format"] != FORMAT:
            problem = f"{folder} has format {about['format']}, not {FORMAT}"
        return ModelEntry(
            name=str(about["name"]),
            folder=folder,
            bytes=sum(files.values()),
            context_length=int(about["context_length"]),
            architecture=str(about["architecture"]),
            parameters=int(about["parameters"]),
            source=str(about["source"]),
            dtype_source=str(about["dtype_source"]),
            weights_sha256=str(about["weights_sha256"]),
            license=about.get("license"),
            runs_on=str(about.get("runs_on", "decoder")),
            context_limit=about.get("context_limit"),
            source_state=about.get("source_state"),
            steps=tuple(about.get("steps") or ()),
            defaults=dict(about.get("defaults") or {}),
            template=about.get("template"),
            engine=about.get("engine"),
            problem=problem or _file_problem(folder, files),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "can't be read"
        name = folder.name.rpartition("-")[0] or folder.name
        problem = f"{folder / 'radchat.json'} {reason}"
        return ModelEntry(name, folder, 0, 0, "", 0, name, "", "", problem=problem)


def _file_problem(folder: Path, files: dict[str, int]) -> str | None:
    for name, size in files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{folder / name} is missing"
        if found != size:
            return f"{folder / name} has {found:,} bytes instead of {size:,}"
    return None


def list_models(places: Places) -> list[ModelEntry]:
    """By name. Work folders of a pull (hidden) are not models."""
    try:
        folders = [path for path in places.models.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    return sorted(
        (read_entry(folder) for folder in folders if folder.is_dir()),
        key=lambda entry: (entry.name, entry.folder.name),
    )


def resolve(places: Places, ref: str) -> ModelEntry:
    """The model that ``ref`` means: a name, its unique prefix, what was pulled, or a path.

    Raises NotFound with what to type, ModelBroken for one that can't be loaded.
    """
    entry = find(places, ref)
    if entry.problem:
        raise ModelBroken(
            f"{entry.problem}; to repair it: radchat models pull {shlex.quote(entry.source)}",
            model=entry.name,
        )
    return entry


def find(places: Places, ref: str) -> ModelEntry:
    """As ``resolve``, but a broken model is returned too: for ``rm`` and ``show``."""
    entries = sorted(list_models(places), key=lambda entry: entry.problem is not None)
    if stores.is_ref(ref):
        return _from_store(entries, ref)
    path = _as_path(ref)
    if path is not None:
        if (path / "radchat.json").is_file():
            return read_entry(path)
        for entry in entries:
            if entry.source == str(path):
                return entry
        raise _unconverted(ref) if path.exists() else NotFound(f"{ref} does not exist", model=ref)
    for keys in (_exact_keys, _folded_keys):
        for entry in entries:
            if ref in keys(entry) or ref.lower() in keys(entry):
                return entry
    begins = [entry for entry in entries if entry.name.startswith(ref.lower())] if ref else []
    if len(begins) > 1:
        names = ", ".join(entry.name for entry in begins)
        raise NotFound(f"several models begin with {ref!r}: {names}", model=ref)
    if begins:
        return begins[0]
    raise _unknown(ref, entries)


def _from_store(entries: list[ModelEntry], ref: str) -> ModelEntry:
    """The converted model that came from another program's store."""
    exact = [entry for entry in entries if entry.source == ref]
    hits = exact or [entry for entry in entries if stores.answers_to(entry.source, ref)]
    if len(hits) > 1:
        names = ", ".join(entry.source for entry in hits)
        raise NotFound(f"{ref} may be any of {len(hits)}: {names}", model=ref)
    if not hits:
        stores.resolve(ref)  # raises where there is nothing to convert either
        raise _unconverted(ref)
    return hits[0]


def _unconverted(ref: str) -> NotFound:
    how = f"radchat models pull {shlex.quote(ref)}"
    return NotFound(f"{ref} has not been converted yet; first: {how}", model=ref)


def _exact_keys(entry: ModelEntry) -> tuple[str, ...]:
    return (entry.name, entry.folder.name, entry.source)


def _folded_keys(entry: ModelEntry) -> tuple[str, ...]:
    return (entry.name.lower(), entry.source.lower())


def _as_path(ref: str) -> Path | None:
    """``ref`` as a path if it is written like one, or something is there; else it is a name."""
    is_written_so = ref.startswith(("/", "./", "../", "~")) or ref.endswith(".gguf")
    try:
        path = Path(ref).expanduser()
        is_there = os.sep in ref and path.exists()
    except RuntimeError:  # ~somebody who is not here
        return None
    except (OSError, ValueError):
        path, is_there = Path(ref), False
    return path.resolve() if is_written_so or is_there else None


def _unknown(ref: str, entries: list[ModelEntry]) -> NotFound:
    if ref in ALIASES:
        return NotFound(f"{ref} is not here yet; fetch it: radchat models pull {ref}", model=ref)
    names = [entry.name for entry in entries]
    known = list(dict.fromkeys((*names, *ALIASES)))
    near = difflib.get_close_matches(ref.lower(), known, n=3, cutoff=0.5)
    if near:
        return NotFound(f"no model {ref!r}; did you mean: {', '.join(near)}?", model=ref)
    here = f"here: {', '.join(names)}" if names else "no model is here yet"
    how = f"radchat models pull {ref if '/' in ref else 'smollm2-135m'}"
    return NotFound(f"no model {ref!r}; {here}; to fetch one: {how}", model=ref)


def choose(places: Places, asked: str | None) -> ModelEntry:
    """The model to use. ``asked`` is the flag, else RADCHAT_MODEL, else config.toml's ``model``.

    Then the chosen default, then the last used. Raises NotFound where none of these gives one.
    """
    if asked:
        return resolve(places, asked)
    for name in _remembered(places).values():
        try:
            entry = find(places, name)
        except NotFound:  # removed since
            continue
        return resolve(places, entry.folder.name)
    entries = [entry for entry in list_models(places) if entry.problem is None]
    if len(entries) == 1:
        return entries[0]
    if entries:
        names = ", ".join(entry.name for entry in entries)
        raise NotFound(f"which model? {names}; to choose: radchat models default NAME")
    raise NotFound(
        "no model is here yet; to see what fits this machine: radchat models ls; "
        "the smallest: radchat models pull smollm2-135m"
    )


def get_default(places: Places) -> str | None:
    """The name chosen by ``models default``, else the one last used."""
    return next(iter(_remembered(places).values()), None)


def set_default(places: Places, ref: str) -> ModelEntry:
    entry = resolve(places, ref)
    _remember(places, {**_remembered(places), "default": entry.name})
    return entry


def note_used(places: Places, name: str) -> None:
    """Remember the model of the last session; writes only when it changed."""
    remembered = _remembered(places)
    if remembered.get("last_used") != name:
        _remember(places, {**remembered, "last_used": name})


def remove(places: Places, ref: str) -> ModelEntry:
    """Delete a converted model, a broken one too. A daemon that has it loaded keeps its mapping."""
    entry = find(places, ref)
    if entry.folder.parent != places.models:
        raise NotFound(f"{entry.folder} is not one of radchat's models: nothing removed")
    doomed = entry.folder.with_name(f".removed-{entry.folder.name}.part")
    shutil.rmtree(doomed, ignore_errors=True)
    entry.folder.rename(doomed)
    shutil.rmtree(doomed)
    if all(other.name != entry.name for other in list_models(places)):
        kept = {key: name for key, name in _remembered(places).items() if name != entry.name}
        _remember(places, kept)
    return entry


def _memory(places: Places) -> Path:
    return places.state / "models.json"


def _remembered(places: Places) -> dict[str, str]:
    """``default`` first, then ``last_used``; an unreadable file remembers nothing."""
    try:
        value = json.loads(_memory(places).read_text(encoding="utf-8"))
        return {key: str(value[key]) for key in ("default", "last_used") if value.get(key)}
    except (OSError, ValueError, AttributeError):
        return {}


def _remember(places: Places, value: dict[str, str]) -> None:
    path = _memory(places)
    if not value and not path.exists():
        return
    private_folder(path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)
    part.replace(path)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
