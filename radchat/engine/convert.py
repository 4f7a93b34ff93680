"""Convert a model once into the files every later start maps (docs/adr/0006-models-on-disk.md).

    python -P -m radchat.engine.convert SOURCE FOLDER '{"name": "my-model", …}'

SOURCE is a Hugging Face folder or a ``.gguf`` file; the JSON goes into radchat.json. FOLDER must
not exist; it is complete and fsynced when this ends with 0, and gone otherwise. stdout carries one
JSON object a line: ``{"step", "done", "total"}`` (bytes) on the way, then ``{"result": …}`` with
radchat.json, or ``{"error": …}`` and exit code 1. It runs as a child of ``radchat models pull``, so
that the terminal side imports no torch.
"""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radchat.engine.convert_checks import check_special_ids
from radchat.engine.convert_read import pretty, read_gguf_file, read_hf_folder
from radchat.engine.convert_write import (
    OpenFile,
    Progress,
    create_private,
    sync_folder,
    write_bytes,
    write_tensors,
)
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import RadchatError
from radchat.parent import Say, end_with_parent, say_to_parent

FORMAT = 1  # of the folder; weights.py refuses others
MARGIN = 64 << 20  # bytes kept free beside the weights: tokenizer, file system


@dataclass(frozen=True, slots=True)
class Outside:
    """What the converter needs of the world; tests give a full disk."""

    progress: Progress = lambda *_: None
    open_file: OpenFile = create_private
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


def convert(
    source: Path, folder: Path, about: Mapping[str, Any], outside: Outside | None = None
) -> dict[str, Any]:
    """Build ``folder`` from ``source``, return its radchat.json; on any failure leave no folder.

    ``about`` gives at least the name. Raises ModelBroken for a source that can't be used,
    RadchatError when the disk is too full, before or while writing.
    """
    folder.mkdir(mode=0o700)
    base = {"format": FORMAT, "source": str(source), "license": None, "steps": []} | dict(about)
    try:
        return _fill(source, folder, base, outside or Outside())
    except BrokenPipeError:  # whoever started us is gone
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(folder, "no room left") from error
        raise RadchatError(f"converting {source} failed: {error}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _no_room(folder: Path, what: str) -> RadchatError:
    return RadchatError(
        f"{what} on the disk of {folder.parent} for the converted model; nothing was kept: "
        "free some space, or set RADCHAT_CACHE_DIR to a folder on another disk"
    )


def _fill(
    source: Path,
    folder: Path,
    about: dict[str, Any],
    outside: Outside,
) -> dict[str, Any]:
    progress, open_file = outside.progress, outside.open_file
    if source.is_file():
        progress("reading", 0, 0)
        read = read_gguf_file(source, about)
    else:
        read = read_hf_folder(source, folder, progress)
    check_special_ids(read.config | {"vocab_size": read.vocab_size}, read.tokenizer_files)
    need = sum(item.nbytes for item in (*read.items, *read.packed)) + MARGIN
    free = outside.free_bytes(folder)
    if need > free:
        raise _no_room(folder, f"{need / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free")
    for file, data in read.tokenizer_files.items():
        write_bytes(folder / file, data, open_file)
    write_bytes(folder / "config.json", read.config_bytes, open_file)
    about["template"] = _template(folder)
    about["weights_sha256"] = write_tensors(
        folder / "model.safetensors",
        read.items,
        lambda a, b: progress("weights", a, b),
        open_file,
    )
    if read.packed:
        about["packed_sha256"] = write_tensors(
            folder / "packed.safetensors",
            read.packed,
            lambda a, b: progress("packed", a, b),
            open_file,
        )
    about["architecture"] = read.architecture
    about["parameters"] = sum(item.nbytes // item.dtype.itemsize for item in read.items)
    about["dtype_source"] = read.dtype_source
    about["context_length"] = read.context_length
    about |= read.more
    about["files"] = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    write_bytes(folder / "radchat.json", pretty(about), open_file)
    sync_folder(folder)
    return about


def _template(folder: Path) -> dict[str, Any] | None:
    """What the chat template was found to do (probes.py), for `models show`; None: there is none.

    One that can't be used does not hinder the conversion: whoever loads the model is told.
    """
    if not (folder / "chat_template.jinja").is_file():
        return None
    try:
        facts = Template.load(folder, Tokenizer(folder)).describe()
    except RadchatError as error:
        return {"problem": error.message}
    return dict(json.loads(json.dumps(facts)))  # as whoever reads it will see it


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m radchat.engine.convert")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("about", type=json.loads)
    options = parser.parse_args(arguments)
    say = say_to_parent()
    try:
        about = convert(
            options.source,
            options.folder,
            options.about,
            Outside(progress=_at_most_ten_a_second(say)),
        )
    except RadchatError as error:
        say({"error": error.to_json()})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # the parent is gone or going; it tells the user
        return 130
    say({"result": about})
    return 0


def _at_most_ten_a_second(say: Say) -> Progress:
    last = ("", 0.0)

    def progress(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step != last[0] or now - last[1] > 0.1 or done == total:
            last = (step, now)
            say({"step": step, "done": done, "total": total})

    return progress


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
