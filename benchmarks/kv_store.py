"""What does the byte store cost beside the bytes themselves?

*Open* and *lookup* at 96 and 10,000 blocks, in paths of eight; their files are tiny, since neither
looks at a file. *Write* and *read* of one block of SmolLM2-135M ([30, 2, 256, 3, 64]
bf16, 5.9 MB), CPU time: beside a plain copy of the bytes in memory, and a plain write and read of a
file. What fsync waits for is the disk's and is not CPU time. Median of several.

    python benchmarks/kv_store.py [--repeat 9] [--folder DIR]
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

from benchmarks.machine import report  # noqa: E402
from radchat_sessions.kv_files import Files  # noqa: E402
from radchat_sessions.kv_store import BLOCK_TOKENS, KVStore  # noqa: E402

SHAPE = (30, 2, BLOCK_TOKENS, 3, 64)
BLOCK_BYTES = 30 * 2 * BLOCK_TOKENS * 3 * 64 * 2
TINY = (1, 1, BLOCK_TOKENS, 1, 1)
DEPTH = 8  # blocks of a path
ROOM = 1 << 40


class Unsynced(Files):
    """The 10,000 are written to be looked up, not to last."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


def some_path(rng: random.Random, blocks: int) -> bytes:
    return array("I", (rng.randrange(49152) for _ in range(blocks * BLOCK_TOKENS))).tobytes()


def cpu(call: Callable[[], object], repeat: int) -> float:
    """Median CPU seconds of this process; the first warms up."""
    taken = []
    for _ in range(repeat + 1):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return median(taken[1:])


def filled(folder: Path, blocks: int) -> list[bytes]:
    rng, paths = random.Random(blocks), []
    store = KVStore.open(folder, budget=ROOM, hourly=None, reserve=0, files=Unsynced())
    for number in range(blocks):
        if number % DEPTH == 0:
            paths.append(some_path(rng, DEPTH))
        end = number % DEPTH + 1
        raw = paths[-1][: end * BLOCK_TOKENS * 4]
        data = bytes(2 * BLOCK_TOKENS)
        assert store.of("f").write(raw, (end - 1) * BLOCK_TOKENS, data, shape=TINY, dtype="bf16")
    store.close()
    return paths


def open_and_look_up(folder: Path, blocks: int, repeat: int) -> tuple[float, float, float]:
    """CPU seconds: (open and close, a block looked up where it is, one that is not there)."""
    paths = filled(folder, blocks)

    def opened() -> KVStore:
        return KVStore.open(folder, budget=ROOM, hourly=None, reserve=0)

    both = cpu(lambda: opened().close(), repeat)
    rng = random.Random(1)
    unknown = [array("I", [100_000 + at] * BLOCK_TOKENS).tobytes() for at in range(200)]
    wanted = rng.sample(paths, min(200, len(paths)))  # once each: answers are remembered
    here: list[float] = []
    for paths_asked, per in ((wanted, DEPTH), (unknown, 1)):
        taken = []
        for _ in range(repeat):
            store = opened()  # nothing is remembered
            asked = store.of("f")
            began = time.process_time()
            found = sum(len(asked.lookup(raw, 0)) for raw in paths_asked)
            taken.append((time.process_time() - began) / len(paths_asked) / per)
            assert found == (DEPTH * len(wanted) if paths_asked is wanted else 0)
            store.close()
        here.append(median(taken))
    return both, here[0], here[1]


def one_block(folder: Path, repeat: int) -> dict[str, float]:
    """CPU seconds of writing and reading 5.9 MB, and what they are compared with."""
    rng = random.Random(2)
    data, place = bytearray(rng.randbytes(BLOCK_BYTES)), folder / "plain"
    target = bytearray(BLOCK_BYTES)
    store = KVStore.open(folder / "kv", budget=ROOM, hourly=None, reserve=0)
    blocks = store.of("f")

    def copy() -> None:
        target[:] = data

    def plain_write() -> None:
        place.write_bytes(data)

    def write() -> None:
        raw = some_path(rng, 1)
        assert blocks.write(raw, 0, data, shape=SHAPE, dtype="bf16")

    raw = some_path(rng, 1)
    blocks.write(raw, 0, data, shape=SHAPE, dtype="bf16")
    (block,) = blocks.lookup(raw, 0)
    found = {
        "copy": cpu(copy, repeat),
        "plain_write": cpu(plain_write, repeat),
        "plain_read": cpu(place.read_bytes, repeat),
        "write": cpu(write, repeat),
        "read": cpu(lambda: blocks.read(block), repeat),
    }
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        figures: dict[str, float] = {}
        for blocks in (96, 10_000):
            opened, hit, miss = open_and_look_up(home / str(blocks), blocks, args.repeat)
            print(
                f"{blocks:>6,} blocks: open and close {1e3 * opened:.2f} ms, a block looked up "
                f"{1e6 * hit:.0f} µs, a miss {1e6 * miss:.0f} µs (CPU)"
            )
            figures |= {
                f"open_ms_{blocks}": 1e3 * opened,
                f"lookup_us_{blocks}": 1e6 * hit,
                f"miss_us_{blocks}": 1e6 * miss,
            }
            index = home / str(blocks) / "index.db"
            figures[f"index_kb_a_block_{blocks}"] = index.stat().st_size / 1024 / blocks
        one = one_block(home, args.repeat)
        for what, plain in (("write", "plain_write"), ("read", "plain_read")):
            print(
                f"{what} of {BLOCK_BYTES / 1e6:.1f} MB: {1e3 * one[what]:.2f} ms of CPU, "
                f"{one[what] / one['copy']:.1f}x a copy in memory, "
                f"{one[what] / one[plain]:.2f}x a plain {what} of a file"
            )
            figures |= {
                f"{what}_ms": 1e3 * one[what],
                f"{what}_of_copy": one[what] / one["copy"],
                f"{what}_of_plain": one[what] / one[plain],
            }
        report(**figures)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
