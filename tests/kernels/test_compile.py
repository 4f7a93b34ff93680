"""The compile check on six variants, in a process that compiles, and on a tile that is too large.

``make kernels`` has all of them. No GPU is needed, none is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radchat_kernels import aot, aot_table
from radchat_kernels._triton import WHY_NOT
from radchat_kernels.aot_compile import Capture, Figures, most_registers
from radchat_kernels.aot_variants import CHOSEN, VARIANTS

ROOT = Path(__file__).parents[2]
SECONDS = 5  # of CPU, for a variant: none may make CI slow

needs_triton = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "radchat_kernels.aot", *arguments],
        env=kept | {"PYTHONPATH": str(ROOT / "kernels")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def results(*arguments: str) -> list[dict[str, Any]]:
    run = check(*arguments, "--json")
    assert run.stdout, run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


@needs_triton
def test_six_variants_compile_within_their_bounds() -> None:
    found = results()
    assert [(each["variant"], each["target"]) for each in found] == list(CHOSEN)
    assert not [each for each in found if each["problems"]]
    assert all(each["seconds"] < SECONDS for each in found), found
    tree = found[0]["figures"]
    assert tree["matrix"] > 0
    assert tree["async16"] > 0


@needs_triton
def test_a_tile_that_is_too_large_is_refused() -> None:
    (found,) = results("attend tree D128 bf16", "--target", "sm90", "--tile", "128,128,4,2")
    assert found["problems"][0].endswith("loads and stores of local memory in loops")
    assert found["figures"]["spills"] > 100


@needs_triton
def test_fp32_is_multiplied_in_fp32() -> None:
    (found,) = results("attend tree D64 fp32", "--target", "sm80")
    assert not found["problems"]
    assert found["figures"]["tensor"] == 0


@needs_triton
def test_a_process_of_the_interpreter_compiles_nothing_and_says_so() -> None:
    run = check(TRITON_INTERPRET="1")
    assert run.returncode == 1
    assert run.stderr == (
        "aot: TRITON_INTERPRET is set: kernels are Python here; unset it to compile them\n"
    )
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "variants: attend decode D64 bf16;"),
        (("rope of sand",), "no variant has 'rope of sand' in its name"),
        (("--tile", "64,128"), "64,128: want M,N,WARPS,STAGES"),
        (("--tile", "60,128,4,2"), "60,128,4,2: M, N and WARPS must be powers of two"),
    ],
)
def test_what_can_be_asked_for_is_said(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        aot.main(list(arguments))
    assert said in " ".join("".join(capsys.readouterr()).split())


def test_a_variant_is_named_by_a_part_of_its_name() -> None:
    assert aot._variants("merge") == [name for name in VARIANTS if "merge" in name] != []
    assert aot._variants("store D128") == ["store D128"]


FINE = Figures(
    registers=96,
    spills=0,
    stack=0,
    shared=40_000,
    async16=4,
    load16=4,
    matrix=4,
    tensor=4,
    num_warps=4,
)
ROW = aot_table.Row("x", "sm86", 96, 96, 40_000, 8, 0, "", "3.9.0")


@pytest.mark.parametrize(
    ("figures", "row", "said"),
    [
        (replace(FINE, shared=102_000), ROW, "shared memory"),
        (replace(FINE, spills=1), ROW, "in loops"),
        (replace(FINE, stack=16), replace(ROW, stack=8, why="because"), "16 bytes of stack"),
        (replace(FINE, registers=97), ROW, "97 registers, at most 96"),
        (replace(FINE, async16=0, load16=8), ROW, "straight into shared memory"),
        (replace(FINE, async16=8, load16=0), ROW, "16 bytes a thread"),
        (replace(FINE, async16=2), ROW, "6 loads of 16 bytes, at least 8"),
        (replace(FINE, matrix=0), ROW, "matrix unit"),
        (FINE, None, "not in resources.csv"),
    ],
)
def test_each_bound_is_held(figures: Figures, row: aot_table.Row | None, said: str) -> None:
    wants = ("async16", "load16", "matrix")
    assert aot_table.problems(FINE, "sm86", ROW, wants, "3.9.0") == []
    (found,) = aot_table.problems(figures, "sm86", row, wants, "3.9.0")
    assert said in found


def test_fp32_that_is_rounded_is_wrong() -> None:
    (found,) = aot_table.problems(FINE, "sm86", ROW, (), "3.9.0", is_exact=True)
    assert found == "4 products of numbers that were fp32 and are rounded (tf32)"
    exact = replace(FINE, tensor=0)
    assert aot_table.problems(exact, "sm86", ROW, (), "3.9.0", is_exact=True) == []


def test_registers_and_loads_of_another_compiler_are_only_reported() -> None:
    many = replace(FINE, registers=160, load16=1)
    assert aot_table.problems(many, "sm86", ROW, (), "3.6.0") == []


def test_bounds_are_where_a_block_less_would_run() -> None:
    assert most_registers(90, 4, "sm90") == 96  # five blocks of 128 threads
    assert most_registers(97, 4, "sm90") == 128
    assert most_registers(130, 8, "sm90") == 255
    assert most_registers(20, 4, "sm86") == 40  # 48 warps at most: twelve blocks
    assert most_registers(201, 4, "gfx942") == 256
    assert most_registers(12, 1, "gfx942") == 64


def test_the_table_has_every_variant_and_the_readme_shows_it() -> None:
    rows = aot_table.read()
    assert list(rows) == list(aot.ALL)
    assert set(CHOSEN) <= set(rows)
    assert all(bool(row.stack) == bool(row.why) for row in rows.values())
    readme = aot.README.read_text(encoding="utf-8")
    assert aot_table.markdown(rows) in readme
    assert aot_table.tiles() in readme


@needs_triton
def test_a_launch_is_captured_as_the_compiler_would_see_it() -> None:
    names = ["x", "y", "n", "one", "scale", "none", "rows", "BLOCK"]
    kernel = type("Kernel", (), {"arg_names": names, "do_not_specialize": ("rows",)})
    capture = Capture()
    x = torch.zeros(64, dtype=torch.bfloat16)
    capture(kernel, (1,), [x, x[1:], 32, 1, 0.5, None, 1], {"BLOCK": 8}, num_warps=2, num_stages=3)
    (found,) = capture.launches
    assert found.types == {"x": "*bf16", "y": "*bf16", "n": "i32", "scale": "fp32", "rows": "i32"}
    assert found.consts == {"BLOCK": 8, "one": 1, "none": None}
    assert found.aligned == ("x", "n")
    assert (found.num_warps, found.num_stages) == (2, 3)


@needs_triton
def test_the_variants_of_large_pools_have_wide_offsets() -> None:
    wide = [name for name, each in VARIANTS.items() if each.capture("sm90").consts.get("I64")]
    assert wide == [name for name in VARIANTS if name.endswith("64-bit")]
    assert len(wide) == 4
