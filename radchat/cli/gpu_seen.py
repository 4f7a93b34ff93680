"""What files say of a GPU and of the packages that would use it. Nothing is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.cli.machine_checks import version

if TYPE_CHECKING:
    from radchat.config import Config

_DRIVER = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_BUILT = re.compile(r"^(\w+)(?:: [\w\[\]]+)? = '([^']*)'$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Here:
    """What files say of this machine and of the packages. None: there is none, or not known."""

    gpu: str | None  # whose, and of which driver
    torch: str | None  # as it says of itself: 2.13.0+cpu
    built_for: str | None  # CUDA 13.0, ROCm 7.0; None: the CPU alone
    triton: str | None

    def is_used(self, config: Config) -> bool:
        """Whether models run on the GPU, as far as that can be known from here."""
        return config.device != "cpu" and self.gpu is not None and self.built_for is not None


def look(root: Path = Path("/"), torch: Path | None = None) -> Here:
    """``torch``: the package's folder, if not the one that would be imported."""
    if torch is None and (spec := util.find_spec("torch")) and spec.origin:
        torch = Path(spec.origin).parent
    built = {} if torch is None else dict(_BUILT.findall(_text(torch / "version.py")))
    names = {"CUDA": built.get("cuda"), "ROCm": built.get("rocm") or built.get("hip")}
    built_for = next((f"{name} {number}" for name, number in names.items() if number), None)
    return Here(_gpu(root), built.get("__version__") or version("torch"), built_for,
                version("triton"))  # fmt: skip


def _gpu(root: Path) -> str | None:
    driver = root / "proc/driver/nvidia"
    if driver.exists() or (root / "dev/nvidiactl").exists():
        found = _DRIVER.search(_text(driver / "version"))
        return "NVIDIA" + (f", driver {found[0]}" if found else "")
    if (root / "dev/kfd").exists():
        return "AMD"
    return "of Windows (WSL)" if (root / "dev/dxg").exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
