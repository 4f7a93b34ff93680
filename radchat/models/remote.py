"""Models that run elsewhere: a folder with tokenizer and template, and where the engine is.

It lies among the converted models and is listed, named and removed like them; it has no weights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from radchat.errors import NotFound, RadchatError
from radchat.models.child import Progress, Step, run_module
from radchat.models.registry import ModelEntry, list_models, read_entry
from radchat.models.sources import tidy_name
from radchat.paths import Places, private_folder

PROBE = "radchat.daemon.remote.probe"  # run by its name, as a child
KEPT = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _silent(step: Step) -> None:
    pass


def pull_remote(
    places: Places,
    url: str,
    tokenizer: str | None = None,
    *,
    name: str | None = None,
    progress: Progress = _silent,
    key: str | None = None,
) -> ModelEntry:
    """The entry of what is behind ``url``, made if it is not there or has changed.

    ``tokenizer``: a model on this machine, a Hugging Face folder, a hub id, or the name by which
    the server knows the model. Raises Unreachable, NotFound with what to type.
    """
    progress(Step(f"asking {url}"))
    wanted = [tokenizer] if tokenizer and _local(places, tokenizer) is None else []
    served = _probe(url, wanted, key)
    name = name or _name(served)
    for entry in list_models(places):
        same = entry.engine is not None and entry.engine["url"] == served["url"]
        if same and entry.engine == served and entry.problem is None and tokenizer is None:
            return entry
    source = _source(places, served, tokenizer, progress)
    private_folder(places.models)
    work = Path(tempfile.mkdtemp(prefix=".pull-", suffix=".part", dir=places.models))
    try:
        return _make(places, served, name, source, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _probe(url: str, wanted: list[str], key: str | None) -> dict[str, Any]:
    """Where the name given is not one of the server's, it is the tokenizer's alone."""
    try:
        return dict(_run([url, *wanted], key))
    except NotFound:
        if not wanted:
            raise
        return dict(_run([url], key))


def _run(arguments: list[str], key: str | None) -> Mapping[str, Any]:
    before = os.environ.get("RADCHAT_ENGINE_KEY")
    if key:
        os.environ["RADCHAT_ENGINE_KEY"] = key  # to the child alone, and not in its command line
    try:
        found: Mapping[str, Any] = run_module(PROBE, arguments, _silent, {})
        return found
    finally:
        if key and before is None:
            del os.environ["RADCHAT_ENGINE_KEY"]


def _name(served: Mapping[str, Any]) -> str:
    last = str(served["model"]).replace("\\", "/").rstrip("/").rpartition("/")[2]
    where = urlsplit(str(served["url"])).netloc
    return f"{tidy_name(last.removesuffix('.gguf'))[:60]}@{where.lower()}"


def _local(places: Places, ref: str) -> Path | None:
    """A folder with a tokenizer on this machine: a model of ours, or a Hugging Face folder."""
    for entry in list_models(places):
        if ref in (entry.name, entry.source, entry.folder.name) and entry.problem is None:
            return entry.folder
    path = Path(ref).expanduser()
    return path if (path / "tokenizer.json").is_file() else None


def _source(
    places: Places, served: Mapping[str, Any], tokenizer: str | None, progress: Progress
) -> Path:
    """Where tokenizer and template are taken from: what was named, else where the server's are."""
    names = [tokenizer] if tokenizer else [served.get("root"), served["model"]]
    for each in names:
        found = _local(places, str(each)) if each else None
        if found is not None:
            return found
    for each in names:
        if each and _HUB_ID.fullmatch(str(each)):
            progress(Step(f"fetching the tokenizer of {each}"))
            try:
                got = run_module("radchat.models.hub", [str(each), "--small"], progress, {})
                return Path(got["folder"])
            except RadchatError as error:
                raise NotFound(f"{error.message}; {_way_out(served)}") from error
    raise NotFound(f"no tokenizer of {names[0]!r} is here; {_way_out(served)}")


def _way_out(served: Mapping[str, Any]) -> str:
    return (
        f"{served['url']} serves {served['model']}: name where its tokenizer is with -m, a model "
        "of `radchat models ls`, a Hugging Face folder or a hub id"
    )


def _make(
    places: Places, served: Mapping[str, Any], name: str, source: Path, work: Path
) -> ModelEntry:
    part = work / "model"
    part.mkdir(mode=0o700)
    for file in KEPT:
        if (source / file).is_file():
            shutil.copyfile(source / file, part / file)
    _template_of_its_own(part)
    config = _json(part / "config.json")
    about = {
        "format": 1,
        "name": name,
        "source": served["url"],
        "license": None,
        "steps": [f"engine {served['dialect']} at {served['url']}", f"tokenizer of {source}"],
        "runs_on": "remote",
        "engine": dict(served),
        "architecture": str((config.get("architectures") or [served["dialect"]])[0]),
        "parameters": 0,
        "dtype_source": "remote",
        "weights_sha256": "",
        "context_length": served["context_length"] or config.get("max_position_embeddings") or 8192,
        "template": _json(source / "radchat.json").get("template"),
        "files": {path.name: path.stat().st_size for path in sorted(part.iterdir())},
    }
    (part / "radchat.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
    for path in part.iterdir():
        path.chmod(0o600)
    final = places.models / f"{name}-remote"
    if final.exists():
        final.replace(work / "older")
    part.replace(final)
    return read_entry(final)


def _template_of_its_own(folder: Path) -> None:
    """Older Hugging Face folders have the template inside tokenizer_config.json."""
    target = folder / "chat_template.jinja"
    if target.exists():
        return
    found = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = next((e.get("template") for e in found if e.get("name") == "default"), None)
    if not isinstance(found, str):
        raise NotFound(
            "the tokenizer has no chat template: name another with -m, one of an instruct model"
        )
    target.write_text(found, encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
