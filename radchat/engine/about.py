"""What a converted model folder says of itself (docs/adr/0006-models-on-disk.md).

No torch here: the daemon asks without a model in memory.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radchat.errors import ModelBroken

FORMAT = 1  # of the folder, as convert.py writes it


def read_about(folder: Path) -> dict[str, Any]:
    """radchat.json, after its files have been found with the sizes it gives. Raises ModelBroken."""
    path = folder / "radchat.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        files, version = dict(about["files"]), int(about["format"])
    except FileNotFoundError as error:
        raise ModelBroken(
            f"{folder} is not a converted model: radchat.json is missing; {repair(None)}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelBroken(f"{path} can't be read ({error}); {repair(None)}") from error
    if version != FORMAT:
        raise ModelBroken(f"{folder} has format {version}, not {FORMAT}; {repair(about)}")
    for name, size in files.items():
        check_file(folder / name, int(size), about)
    return dict(about)


def check_file(path: Path, size: int, about: Mapping[str, Any]) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ModelBroken(f"{path} is missing; {repair(about)}", file=str(path)) from error
    if found != size:
        raise ModelBroken(
            f"{path} has {found:,} bytes instead of {size:,}; {repair(about)}", file=str(path)
        )


def repair(about: Mapping[str, Any] | None) -> str:
    """What to type to have a folder made anew."""
    what = "MODEL" if about is None else shlex.quote(str(about.get("source", "MODEL")))
    return f"to repair it: radchat models pull {what}"
