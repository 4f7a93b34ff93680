"""How fast is tree decode on a GPU, beside its byte bound, our per-sequence plan and others?

    python benchmarks/gpu.py [--minutes 8] [--sglang FOLDER]
    TRITON_INTERPRET=1 python benchmarks/gpu.py --tiny      on a CPU: that all is right; no times

First every method is held against float64 on two layers; a method that is wrong is not timed. Then
what the device can do, the trees of kernels.md, sweeps, the smaller kernels, whole models; tables
last, then one JSON line. What the minutes do not suffice for is named. Layers have memory of their
own (none is found in L2) and run in one captured graph; times are the median of its replays.

That the shared part is read once, a profiler shows:
    ncu --clock-control none --metrics dram__bytes_read.sum \\
        python benchmarks/gpu.py --once "8k + 64 x 256"

SGLang's kernel is timed where FOLDER holds its decode_attention.py and score_mod.py. Imports: torch
and triton, and transformers for one part, where it is there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402

from benchmarks.gpu_cases import MAIN, OTHERS, TINY_MAIN, TINY_OTHERS, Case, Values  # noqa: E402
from benchmarks.gpu_parts import Bench, all_methods, all_sweeps  # noqa: E402
from benchmarks.gpu_peers import sglang_kernel  # noqa: E402
from benchmarks.gpu_report import Results  # noqa: E402
from benchmarks.gpu_timing import Budget, GraphTimer, Timer, WallTimer  # noqa: E402
from radchat_kernels import _triton  # noqa: E402
from radchat_kernels.tiles import Gpu  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    why_not = _why_not(tiny=args.tiny)
    if why_not:
        print(f"gpu.py: {why_not}", file=sys.stderr)
        return 1
    bench = bench_of(args)
    if args.once:
        return bench.once(args.once)
    bench.run(without_transformers=args.without_transformers)
    return bench.close()


def arguments(argv: list[str] | None) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=8, help="at most; what they don't suffice for is named (8)"
    )
    parser.add_argument(
        "--sglang", type=Path, metavar="FOLDER", help="has its decode_attention.py and score_mod.py"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="with TRITON_INTERPRET=1, on a CPU: that all of it runs and is right; no times",
    )
    parser.add_argument("--without-transformers", action="store_true", help="leave it out")
    parser.add_argument("--once", metavar="CASE", help="one layer of the tree plan, once: for ncu")
    return parser.parse_args(argv)


def _why_not(*, tiny: bool) -> str:
    if tiny and not _triton.INTERPRETED:
        return "--tiny needs TRITON_INTERPRET=1 in the environment"
    if tiny:
        return _triton.WHY_NOT
    if _triton.INTERPRETED:
        return "TRITON_INTERPRET is set: nothing would run on the GPU; unset it"
    if not torch.cuda.is_available():
        return "torch sees no GPU here; --tiny (with TRITON_INTERPRET=1) runs everything on a CPU"
    return _triton.why_not("cuda")


def bench_of(args: argparse.Namespace) -> Bench:
    budget = Budget(60 * args.minutes)
    sglang = sglang_kernel(args.sglang) if args.sglang else None
    timer: Timer
    if args.tiny:
        dtype, gpu = torch.float32, Gpu("interpret", 2)
        main_cases: tuple[Case, ...] = TINY_MAIN
        others: tuple[Case, ...] = TINY_OTHERS
        device, timer = "cpu", WallTimer()
    else:
        dtype, gpu = torch.bfloat16, Gpu.of(torch.cuda.get_device_properties(0))
        main_cases, others, device, timer = MAIN, OTHERS, "cuda", GraphTimer()
    return Bench(
        device=device,
        tiny=args.tiny,
        dtype=dtype,
        gpu=gpu,
        timer=timer,
        budget=budget,
        values=Values((*main_cases, *others), dtype, device),
        results=Results(),
        main=main_cases,
        others=others,
        methods=all_methods(gpu, sglang, tiny=args.tiny),
        sweeps=list(all_sweeps(gpu, main_cases, tiny=args.tiny)),
    )


if __name__ == "__main__":
    sys.exit(main())
