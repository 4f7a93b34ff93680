"""The compile check: every kernel for every architecture, on a machine that need have no GPU.

    python -m radchat_kernels.aot                   the few that CI compiles
    python -m radchat_kernels.aot --all [--write]   all (minutes); --write: into the tables
    python -m radchat_kernels.aot "tree D128 bf16" --target sm90 [--tile 128,64,8,2]

A variant is what a kernel's own wrapper asks for: it is called on small CPU tensors with a launcher
that notes types, constants and alignment instead of launching, so what is compiled is what would
be launched. Checked of each: it compiles; nothing in local memory beyond what resources.csv allows
with a reason; registers and shared memory within bounds; the loads and the matrix unit that its
speed rests on are there; fp32 is multiplied in fp32. What this can't see: races, how fast it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from radchat_kernels import aot_table
from radchat_kernels._triton import INTERPRETED, WHY_NOT, triton
from radchat_kernels.aot_compile import (
    TARGETS,
    Figures,
    compile_for,
    figures,
    most_registers,
)
from radchat_kernels.aot_table import Key, Row
from radchat_kernels.aot_variants import CHOSEN, VARIANTS
from radchat_kernels.tiles import Tile

ALL: tuple[Key, ...] = tuple((name, target) for name in VARIANTS for target in TARGETS)
README = Path(__file__).parents[1] / "README.md"
MARKS = "<!-- resources: written by python -m radchat_kernels.aot --all --write -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Result:
    """seconds: of CPU, tracing and compilers together."""

    variant: str
    target: str
    figures: Figures | None  # None: it did not compile
    problems: list[str]
    seconds: float


def check(name: str, target: str, row: Row | None, tile: Tile | None = None) -> Result:
    """Compile one variant. ``tile``: in place of the table's, for the kernels that have tiles."""
    began = sum(os.times()[:4])
    variant = VARIANTS[name]
    try:
        compiled = compile_for(variant.capture(target, tile), target)
        found = figures(compiled, target)
    except Exception as error:
        problem = f"does not compile: {type(error).__name__}: {error}"
        return Result(name, target, None, [problem], sum(os.times()[:4]) - began)
    wrong = aot_table.problems(
        found,
        target,
        row,
        variant.wants(target),
        triton.__version__,
        is_exact=variant.is_exact,
    )
    return Result(name, target, found, wrong, sum(os.times()[:4]) - began)


def check_all(
    keys: Iterable[Key], rows: dict[Key, Row], tile: Tile | None = None, processes: int = 1
) -> Iterator[Result]:
    """Results in the order of ``keys``; nothing comes from a cache of compiled kernels."""
    keys = list(keys)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        jobs = [(name, target, rows.get((name, target)), tile) for name, target in keys]
        if processes == 1:
            yield from (check(*job) for job in jobs)
            return
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            yield from pool.map(check, *zip(*jobs, strict=True))


def why_not() -> str:
    """Why nothing can be compiled in this process; empty: it can."""
    if WHY_NOT:
        return WHY_NOT
    if INTERPRETED:
        return "TRITON_INTERPRET is set: kernels are Python here; unset it to compile them"
    return ""


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    if why_not():
        print(f"aot: {why_not()}", file=sys.stderr)
        return 1
    keys = [key for key in ALL if key[0] in args.variant or args.all] or list(CHOSEN)
    keys = [key for key in keys if not args.target or key[1] in args.target]
    rows = aot_table.read()
    results: list[Result] = []
    for result in check_all(keys, rows, args.tile, args.processes):
        results.append(result)
        if not args.json:
            print(_line(result, rows.get((result.variant, result.target))), flush=True)
    wrong = [result for result in results if result.problems]
    if args.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        total = sum(result.seconds for result in results)
        print(
            f"{len(results)} variants, {len(wrong)} wrong, triton {triton.__version__}, "
            f"{total:.0f} s of CPU"
        )
    if args.write:
        _write(results, rows)
    return 1 if wrong and not args.write else 0


def _write(results: list[Result], rows: dict[Key, Row]) -> None:
    """Figures into the file and the README; allowances are kept, never made."""
    for result in results:
        if result.figures is None:
            continue
        found, key = result.figures, (result.variant, result.target)
        old = rows.get(key)
        rows[key] = Row(
            variant=result.variant,
            target=result.target,
            registers=found.registers,
            at_most=most_registers(found.registers, found.num_warps, result.target),
            shared=found.shared,
            loads=found.async16 + found.load16,
            stack=old.stack if old else 0,
            why=old.why if old else "",
            triton=triton.__version__,
        )
    rows = {key: rows[key] for key in ALL if key in rows}
    aot_table.write(rows.values())
    if README.exists():
        begin, end = MARKS
        before, rest = README.read_text(encoding="utf-8").split(begin)
        after = rest.split(end, 1)[1]
        head = f"{time.strftime('%Y-%m-%d')}, triton {triton.__version__}."
        shown = f"{head}\n\n{aot_table.tiles()}\n{aot_table.markdown(rows)}"
        README.write_text(f"{before}{begin}\n{shown}{end}{after}", encoding="utf-8")


def _line(result: Result, row: Row | None) -> str:
    head = f"{result.variant:30} {result.target:7}"
    if result.figures is None:
        return f"{head} {result.problems[0]}"
    found = result.figures
    parts = [
        f"{found.registers} registers",
        f"{found.shared} B shared",
        f"{found.load16} + {found.async16} async loads of 16 B",
        f"{found.matrix} matrix",
    ]
    if found.spills or found.stack:
        parts.append(f"{found.spills} spills in loops, {found.stack} B of stack")
    if row is not None and row.registers != found.registers:
        parts.append(f"listed: {row.registers} registers, triton {row.triton}")
    text = f"{head} {', '.join(parts)}; {result.seconds:.1f} s"
    return text + "".join(f"\n{'':38} WRONG: {problem}" for problem in result.problems)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m radchat_kernels.aot",
        description="Compile kernels for GPUs that need not be here, and check what came of it. "
        "WRONG: against what resources.csv allows, or what the kernel's speed rests on.",
        epilog=f"variants: {'; '.join(VARIANTS)}",
    )
    parser.add_argument(
        "variant",
        nargs="*",
        type=_variants,
        metavar="VARIANT",
        help="a name below or a part of some; without any, the few that CI compiles",
    )
    parser.add_argument("--all", action="store_true", help="every variant for every target")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only for it; repeat")
    parser.add_argument(
        "--tile", type=_tile, metavar="M,N,WARPS,STAGES", help="in place of the table's"
    )
    parser.add_argument("--json", action="store_true", help="the results as one JSON list")
    parser.add_argument("--write", action="store_true", help="into resources.csv and the README")
    parser.add_argument("--processes", type=int, default=1, help="at a time (1)")
    args = parser.parse_args(argv)
    args.variant = [name for names in args.variant for name in names]
    if args.tile and (args.write or not all(VARIANTS[name].tiled for name in args.variant)):
        parser.error("--tile is for looking at attention in other tiles")
    return args


def _variants(text: str) -> list[str]:
    """The one of that name, else all that have the text in theirs."""
    found = [text] if text in VARIANTS else [name for name in VARIANTS if text in name]
    if not found:
        raise argparse.ArgumentTypeError(f"no variant has {text!r} in its name (--help lists them)")
    return found


def _tile(text: str) -> Tile:
    try:
        block_m, block_n, warps, stages = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: want M,N,WARPS,STAGES: 64,128,4,2") from None
    if any(n < 1 or n & (n - 1) for n in (block_m, block_n, warps)) or stages < 1:
        raise argparse.ArgumentTypeError(f"{text}: M, N and WARPS must be powers of two")
    return Tile(block_m, block_n, warps, stages)


if __name__ == "__main__":
    sys.exit(main())
