"""The models other programs have on this machine, where they lie: nothing is copied or fetched.

``ollama:NAME[:TAG]`` · ``lmstudio:PUBLISHER/MODEL/FILE`` · ``llamacpp:FILE`` · ``hf:ORG/NAME`` or
``hf:ORG/NAME/FILE``. The end of a name is enough where only one ends so, and ``hf:ORG/NAME:Q4_K_M``
takes the file of that quantisation. Places as those programs look for them, in their order.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from radchat.architectures import check_source, kind_of, quantised
from radchat.errors import ModelBroken, NotFound
from radchat.models import ollama
from radchat.models.found import Found, digest, look_at, stat_state

SCHEMES = ("ollama", "lmstudio", "llamacpp", "hf")
SERVICE = Path("/usr/share/ollama/.ollama/models")  # where ollama's installer puts the service's
_MOST = 4096  # files looked at in one store
_BLOB = re.compile(r"[0-9a-f]{40,64}")
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")


def is_ref(text: str) -> bool:
    return text.partition(":")[0] in SCHEMES and bool(text.partition(":")[2])


def find_all(env: Mapping[str, str] | None = None, service: Path = SERVICE) -> list[Found]:
    """Every one, in the order of the stores; each file once."""
    found: list[Found] = []
    for scheme in SCHEMES:
        found += find_in(scheme, env, service)
    seen: set[Path] = set()
    unique: list[Found] = []
    for each in found:
        place = each.path.resolve() if each.kind == "gguf" and each.bytes else each.path
        if each.store != "ollama" and place in seen:  # two tags of one blob are two models
            continue
        seen.add(place)
        unique.append(each)
    return unique


def find_in(
    scheme: str, env: Mapping[str, str] | None = None, service: Path = SERVICE
) -> list[Found]:
    """Those of one store, by name."""
    env = os.environ if env is None else env
    finders: dict[str, Callable[[], Iterator[Found]]] = {
        "ollama": lambda: _ollama(env, service),
        "lmstudio": lambda: _lmstudio(env),
        "llamacpp": lambda: _llamacpp(env),
        "hf": lambda: _hub(env),
    }
    by_ref: dict[str, Found] = {}
    for each in finders[scheme]():
        by_ref.setdefault(each.ref, each)
    return [by_ref[ref] for ref in sorted(by_ref)]


def resolve(ref: str, env: Mapping[str, str] | None = None) -> Found:
    """The one that ``ref`` means, fit to be converted. Raises NotFound, ModelBroken."""
    scheme = ref.partition(":")[0]
    there = find_in(scheme, env)
    hits = [each for each in there if each.ref == ref] or [
        each for each in there if answers_to(each.ref, ref)
    ]
    fit = [each for each in hits if each.problem is None] or hits
    if len(fit) > 1:
        names = ", ".join(each.ref for each in fit[:8])
        raise NotFound(f"{ref} may be any of {len(fit)}: {names}", model=ref)
    if not fit:
        known = [each.ref for each in there if each.problem is None]
        near = difflib.get_close_matches(ref, known, n=3, cutoff=0.5) or known[:5]
        here = f"there: {', '.join(near)}" if near else "nothing radchat can run is there"
        more = ""
        if scheme == "hf":
            more = f"; to fetch it: radchat models pull {ref.partition(':')[2]}"
        raise NotFound(f"no model {ref} on this machine; {here}{more}", model=ref)
    if fit[0].problem is not None:
        raise ModelBroken(f"{fit[0].ref} can't be run: {fit[0].problem}", model=ref)
    return fit[0]


def answers_to(full: str, asked: str) -> bool:
    """Whether the model called ``full`` is one that ``asked`` may mean; both with their store."""
    scheme, _, name = full.partition(":")
    wanted_scheme, _, wanted = asked.partition(":")
    if scheme != wanted_scheme:
        return False
    name, wanted = name.lower(), wanted.lower()
    if scheme == "ollama":
        return name == ollama.canonical(wanted)
    repo, _, quant = wanted.partition(":")
    if quant:
        return name.startswith(repo + "/") and quant in name.rpartition("/")[2]
    names = {name, name.removesuffix(".gguf")}
    return (
        wanted in names
        or name.startswith(wanted + "/")
        or any(each.endswith("/" + wanted) for each in names)
    )


# -- places ----------------------------------------------------------------------------------------


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home())


def _cache(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or _home(env) / ".cache")


def _ollama(env: Mapping[str, str], service: Path) -> Iterator[Found]:
    own = [Path(env["OLLAMA_MODELS"])] if env.get("OLLAMA_MODELS") else []
    for root in (*own, _home(env) / ".ollama" / "models", service):
        yield from ollama.models(root)


def _lmstudio(env: Mapping[str, str]) -> Iterator[Found]:
    home = _home(env)
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    try:  # LM Studio's own note of where it lives
        pointer = ollama.read_bounded(home / ".lmstudio-home-pointer")
        homes.insert(0, Path(os.fsdecode(pointer.strip())))
    except OSError:
        pass
    for root in homes:
        for path in _ggufs(root / "models", 4):
            yield _file("lmstudio", path.relative_to(root / "models"), path)


def _llamacpp(env: Mapping[str, str]) -> Iterator[Found]:
    own = Path(env["LLAMA_CACHE"]) if env.get("LLAMA_CACHE") else None
    for root in (*([own] if own else []), _cache(env) / "llama.cpp"):
        for path in _ggufs(root, 1):
            yield _file("llamacpp", path.relative_to(root), path)
    if own is not None:  # since 2026 it keeps what it fetches as the hub's library does
        for each in _hub_in(own):
            yield replace(each, ref=f"llamacpp:{each.ref.partition(':')[2]}")


def _hub(env: Mapping[str, str]) -> Iterator[Found]:
    given = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    home = Path(env.get("HF_HOME") or _cache(env) / "huggingface")
    yield from _hub_in(Path(given) if given else home / "hub")


# -- looking ---------------------------------------------------------------------------------------


def _file(scheme: str, name: Path, path: Path) -> Found:
    return look_at(f"{scheme}:{name.as_posix()}", path, state=stat_state(path))


def _ggufs(folder: Path, depth: int, left: list[int] | None = None) -> Iterator[Path]:
    """GGUF files at most ``depth`` levels down, by name; no hidden ones."""
    left = [_MOST] if left is None else left
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, _is_folder(entry)) for entry in entries)
    except OSError:
        return
    for name, is_folder in found:
        left[0] -= 1
        if left[0] < 0:
            return
        if name.startswith("."):
            continue
        if is_folder and depth > 1:
            yield from _ggufs(folder / name, depth - 1, left)
        elif not is_folder and name.lower().endswith(".gguf"):
            yield folder / name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or to itself
        return False


def _hub_in(cache: Path) -> Iterator[Found]:
    """``models--ORG--NAME/snapshots/COMMIT/``: of each model the commit of main, else the last."""
    try:
        with os.scandir(cache) as entries:
            names = sorted(e.name for e in entries if e.name.startswith("models--"))
    except OSError:
        return
    for name in names[:_MOST]:
        repo = name.removeprefix("models--").replace("--", "/")
        snapshot = _snapshot(cache / name)
        if snapshot is not None and "/" in repo:
            yield from _hub_model(repo, snapshot)


def _snapshot(model: Path) -> Path | None:
    try:
        commit = os.fsdecode(ollama.read_bounded(model / "refs" / "main")).strip()
    except OSError:
        commit = ""
    if _BLOB.fullmatch(commit) and (model / "snapshots" / commit).is_dir():
        return model / "snapshots" / commit
    try:
        there = [path for path in (model / "snapshots").iterdir() if path.is_dir()]
        return max(there, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def _hub_model(repo: str, snapshot: Path) -> Iterator[Found]:
    for path in _ggufs(snapshot, 2):
        blob = path.resolve().name
        state = digest(blob) if _BLOB.fullmatch(blob) else stat_state(path)
        yield look_at(f"hf:{repo}/{path.relative_to(snapshot).as_posix()}", path, state=state)
    try:
        weights = [path for path in snapshot.iterdir() if path.suffix == ".safetensors"]
    except OSError:
        return
    if weights and (snapshot / "config.json").is_file():
        yield _hub_folder(repo, snapshot, weights)


def _hub_folder(repo: str, snapshot: Path, weights: list[Path]) -> Found:
    """A snapshot with safetensors: its config.json says what it is."""
    ref = f"hf:{repo}"
    try:
        config = dict(ollama.read_json(snapshot / "config.json"))
        size = sum(path.stat().st_size for path in weights)
    except (OSError, ValueError, TypeError):
        return Found(ref, snapshot, "folder", problem="config.json or weights can't be read")
    context = config.get("max_position_embeddings")
    return Found(
        ref,
        snapshot,
        "folder",
        bytes=size,
        architecture=kind_of(config),
        quantisation=_weights_form(config),
        context_length=context if isinstance(context, int) else None,
        state=digest(snapshot.name),
        problem=_folder_problem(config, weights),
    )


def _folder_problem(config: Mapping[str, Any], weights: list[Path]) -> str | None:
    """What the converter would say of its config.json; and whether all of it is here."""
    try:
        check_source(config)
    except ModelBroken as error:
        return error.message
    shards = [match for path in weights if (match := _SHARD.fullmatch(path.name))]
    if shards and len(shards) < int(shards[0][1]):
        return f"{len(shards)} of {int(shards[0][1])} files are here"
    return None


def _weights_form(config: Mapping[str, Any]) -> str:
    """As the converter calls it where it unpacks them; else their dtype."""
    try:
        form = quantised(config)
    except ModelBroken:
        form = None
    return form.upper() if form else str(config.get("dtype") or config.get("torch_dtype") or "")
