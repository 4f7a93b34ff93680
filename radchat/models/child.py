"""Run one of our own modules as a child whose stdout is JSON lines: progress, result or error.

A child keeps heavy imports out of the terminal's process, dies at once with Ctrl-C and ends when
the parent is killed (its side: ``parent.py``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import radchat
from radchat.errors import RadchatError, from_json


@dataclass(frozen=True, slots=True)
class Step:
    """What a pull is doing. ``done`` and ``total`` are bytes; a total of 0 means not known."""

    text: str
    done: int = 0
    total: int = 0


Progress = Callable[[Step], None]


def run_module(
    module: str, arguments: Sequence[str], progress: Progress, labels: Mapping[str, str]
) -> Any:
    """The child's ``result``; its ``error`` is raised here. ``labels``: its steps in words."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise, env=_env()
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said = json.loads(line)
                if "error" in said:
                    raise from_json(said["error"])
                if "result" in said:
                    process.wait()
                    return said["result"]
                step = labels.get(said["step"], said["step"])
                progress(Step(step, int(said["done"]), int(said["total"])))
            raise _died(module, process.wait(), _tail(noise))
        finally:
            if process.poll() is None:
                process.kill()


def _died(module: str, code: int, last_words: str) -> RadchatError:
    if code == -signal.SIGKILL:
        return RadchatError(f"{module} was killed, most likely for want of memory")
    return RadchatError(f"{module} ended with {code}: {last_words or 'no reason given'}")


def _tail(noise: Any) -> str:
    noise.seek(0)
    lines = noise.read()[-4000:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _env() -> dict[str, str]:
    """The environment, with the place of a radchat that is not installed (a checkout)."""
    env = dict(os.environ)
    root = Path(radchat.__file__).parents[1]
    installed = {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    if root not in installed:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    return env
