"""What does it cost to keep KV on disk?

*Saving*: CPU time of all threads to write the KV of a prompt, beside the CPU time to compute it:
what is paid once beside what is saved at each restart. *Beside an answer*: wall-clock time a token
of an answer that begins while KV of 2,000 tokens waits to be written, beside one that begins when
it is written. *Starting*: a daemon with 10,000 blocks on disk, beside one without (the store alone:
`kv_store.py`).

    python benchmarks/saving.py [--model smollm2-135m] [--repeat 5]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402

from benchmarks.cli import Home  # noqa: E402
from benchmarks.machine import machine, report  # noqa: E402
from benchmarks.restart import GIB, ask, flush, folder_for_a_while  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.client import Client  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.daemon.lock import read_info  # noqa: E402
from radchat.engine.engine import Engine  # noqa: E402
from radchat.engine.fingerprint import fingerprint  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.request import Request, SamplingParams  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402
from radchat_sessions.kv_store import BLOCK_TOKENS, KVStore  # noqa: E402

TALK, CONTEXT, ANSWER = 2048, 512, 64  # tokens
PAIRS = 3  # of answers a round
BLOCKS = 10_000


class Writing:
    """An engine with a disk, and what it costs it."""

    def __init__(self, folder: Path, kv: Path) -> None:
        self.store = KVStore.open(kv, budget=8 * GIB, hourly=None)
        mine = self.store.of(fingerprint(folder, "bf16"))
        self.engine: Engine = build_engine(
            load(folder, "bf16"), kv_budget=Size(tokens=6 * TALK), blocks=mine
        )

    def forget(self) -> None:
        self.engine.unkeep("")
        self.engine.clear()
        self.store.clear()

    def compute(self, number: int) -> None:
        """A talk, whose KV is to be kept from now on."""
        self.talk = words(TALK, 1000 * number)
        ask(self.engine, f"talk {number}", self.talk)
        self.engine.keep("benchmark/main", self.talk)

    def flush(self) -> None:
        if not flush(self.engine, 60.0):
            raise RuntimeError(f"KV was not written: {self.store.trouble}")

    def costs(self, number: int) -> tuple[float, float]:
        """CPU seconds to (compute, save) a talk."""
        self.forget()
        began = time.process_time()
        self.compute(number)
        computed = time.process_time()
        self.flush()
        return computed - began, time.process_time() - computed

    def answer(self, number: int, *, beside: bool) -> tuple[float, float]:
        """Seconds a token of an answer, ``beside`` the talk's KV being written; the share of its
        time that there was some to write.
        """
        self.store.clear()
        self.engine.keep("benchmark/main", self.talk)
        context = words(CONTEXT, 1)
        ask(self.engine, f"context {number} {beside}", context)
        if beside:
            while self.engine.save(now=True) == 0.0:
                pass  # a block has been copied, and there is another
        else:
            self.flush()
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER)
        ids = array("I", [*context, 300 + number])
        self.engine.submit(Request(f"answer {number} {beside}", ids, params))
        self.engine.step()  # its prompt
        began, busy = time.perf_counter(), 0.0
        at = began
        while self.engine.has_work():
            self.engine.step()
            now = time.perf_counter()
            if self.engine.stats()["disk"]["staged_bytes"]:
                busy += now - at
            at = now
        return (at - began) / (ANSWER - 1), busy / (at - began)


def saving(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with folder_for_a_while() as kv:
        writing = Writing(folder, kv)
        costs = [writing.costs(number) for number in range(args.repeat + 1)][1:]
        computed, saved = (median(column) for column in zip(*costs, strict=True))
        shares = [save / compute for compute, save in costs]
        count = TALK // BLOCK_TOKENS
        print(f"{count} blocks of {BLOCK_TOKENS} tokens, CPU time of all threads, one for torch:")
        print(f"  to compute one {1000 * computed / count:.1f} ms, to save it", end=" ")
        print(f"{1000 * saved / count:.2f} ms: {100 * median(shares):.2f} %", end=" ")
        print(f"(worst {100 * max(shares):.2f} %)")
        torch.set_num_threads(args.threads)
        slower, busy = [], []
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(PAIRS * args.repeat + 1):
            pair = {}
            for beside in (False, True) if number % 2 else (True, False):
                pair[beside], share = writing.answer(number, beside=beside)
                if beside and number:  # the first warms up
                    busy.append(share)
            if number:
                slower.append(pair[True] / pair[False] - 1)
                for beside, seconds in pair.items():
                    times[beside].append(seconds)
        writing.store.close()
    print(f"an answer of {ANSWER} tokens that begins while the KV of {TALK:,} is to be written:")
    least = min(times[True]) / min(times[False]) - 1
    print(f"  {1000 * median(times[False]):.1f} ms a token without; with it", end=" ")
    print(f"{100 * median(slower):+.1f} % ({100 * min(slower):+.1f} to {100 * max(slower):+.1f});")
    print(f"  the fastest of each: {1000 * min(times[False]):.1f} ms, {100 * least:+.1f} %")
    print(f"  there was some to write for {100 * median(busy):.0f} % of the answer")
    return {
        "compute_block_ms": 1000 * computed / count,
        "save_block_ms": 1000 * saved / count,
        "save_share": [median(shares), max(shares)],
        "answer_slower": [median(slower), min(slower), max(slower)],
        "fastest_answer_slower": least,
        "answer_busy": median(busy),
    }


# -- starting --------------------------------------------------------------------------------------


def fill(kv: Path, name: str) -> None:
    """10,000 blocks of next to no bytes each: made in memory, since each write is synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as fast:
        store = KVStore.open(Path(fast) / "kv", budget=8 * GIB, hourly=None)
        mine, shape = store.of(name), (1, 2, BLOCK_TOKENS, 1, 1)
        data = bytes(2 * BLOCK_TOKENS * 2)
        for number in range(BLOCKS):
            raw = words(BLOCK_TOKENS, number).tobytes()
            if not mine.write(raw, 0, data, shape=shape, dtype="bf16"):
                raise RuntimeError(f"block {number} was not written: {store.trouble}")
        store.close()
        shutil.copytree(Path(fast) / "kv", kv, dirs_exist_ok=True)


def start_times(home: Home) -> tuple[float, float]:
    """(wall-clock, CPU of the daemon) seconds from `daemon start` until it tells of its disk."""
    places = Places.from_env(home.env)
    began = time.perf_counter()
    home.run("daemon", "start")
    stats = Client.connect(places, start=False).call("cache.stats")
    spent = time.perf_counter() - began
    info = read_info(places.lock)
    if info is None or stats["persist_off"]:
        raise RuntimeError(f"no daemon, or none with a disk: {stats}")
    fields = Path(f"/proc/{info.pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    home.run("daemon", "stop")
    return spent, cpu


@contextlib.contextmanager
def two_homes(args: argparse.Namespace, full: Path) -> Iterator[dict[str, Home]]:
    homes = {"no blocks": Home(args.model), f"{BLOCKS:,} blocks": Home(args.model)}
    kv = Places.from_env(homes[f"{BLOCKS:,} blocks"].env).kv
    shutil.copytree(full, kv)
    try:
        yield homes
    finally:
        for home in homes.values():
            home.close()


def starting(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    times: dict[str, list[tuple[float, float]]] = {}
    with folder_for_a_while() as full:
        fill(full, fingerprint(folder, "bf16"))
        with two_homes(args, full) as homes:
            for number in range(args.repeat + 1):
                for name, home in homes.items():
                    started = start_times(home)
                    if number:
                        times.setdefault(name, []).append(started)
    figures = {}
    for name, rows in times.items():
        wall, cpu = (1000 * median(column) for column in zip(*rows, strict=True))
        print(f"`daemon start` with {name:14} {wall:7.1f} ms, CPU time {cpu:6.1f} ms")
        figures[name] = {"wall_ms": wall, "cpu_ms": cpu}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    load_before = machine()["load"]
    torch.set_num_threads(1)
    folder = registry.resolve(Places.from_env(), args.model).folder
    costs = saving(args, folder)
    started = starting(args, folder)
    report(
        load_before=load_before,
        torch=torch.__version__,
        threads=args.threads,
        saving=costs,
        starting=started,
    )


if __name__ == "__main__":
    main()
