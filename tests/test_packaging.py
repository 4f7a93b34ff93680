"""How the packages lie, and what a wheel of them holds (docs/adr/0001-source-roots.md)."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str, **env: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "kernels:sessions", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


@pytest.mark.parametrize("folder", ["kernels", "sessions"])
def test_the_source_roots_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_importing_radchat_brings_in_no_torch() -> None:
    assert python("import sys, radchat, radchat.client; print('torch' in sys.modules)") == "False"


def test_a_transformers_model_class_imports_from_the_repository_root(tmp_path: Path) -> None:
    code = "from transformers import LlamaForCausalLM; print(LlamaForCausalLM.__name__)"
    assert python(code, HOME=str(tmp_path)) == "LlamaForCausalLM"


def test_the_wheel_holds_the_three_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("radchat-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"radchat", "radchat_kernels", "radchat_sessions"}
    assert "radchat/cli/demo_story.md" in names
    assert "radchat/py.typed" in names
    assert "radchat_kernels/resources.csv" in names
