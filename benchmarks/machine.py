"""On what a figure was measured: printed with every result."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": commit,
    }


def report(**figures: Any) -> None:
    """The last line of a benchmark: one JSON document, fit for results/."""
    print(json.dumps({**machine(), **_rounded(figures)}))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return {k: _rounded(v) for k, v in value.items()} if isinstance(value, dict) else value
