"""benchmarks/gpu.py where there is no GPU: it says so, and needs nothing that only radchat has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
# a GPU machine for benchmarks has torch, triton, numpy, safetensors and tokenizers
ABSENT = ("transformers", "psutil", "xxhash", "jinja2", "typer", "rich", "starlette", "gguf")
CODE = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ImportError(f"{{name}} is absent here")

sys.meta_path.insert(0, Absent())
from benchmarks.gpu import main
sys.exit(main([]))
"""


def test_without_triton_it_says_so() -> None:
    code = CODE.replace(repr(ABSENT), repr((*ABSENT, "triton"))).replace("([])", "(['--tiny'])")
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("gpu.py: triton can't be imported (ImportError: triton is absent")


def test_without_a_gpu_it_refuses_and_imports_no_more_than_it_says() -> None:
    if torch.cuda.is_available():
        return  # it would run
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("gpu.py: torch sees no GPU here; --tiny ")
    assert run.stdout == ""
