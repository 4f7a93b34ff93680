"""What does the first token of a long conversation take after a restart?

*In process*: a conversation of ``--tokens``, then a question of some tokens, asked by engines of
one process on the same weights, in turn: cold (an engine without a disk), warm, and restored from
the disk, its files in the page cache or (``posix_fadvise``) not. Sampling included. The bound: the
bytes of KV at the rate at which these same files are read whole, in the same state.
*By the command line*: `ask -c` as a process, the first word as it comes out of the pipe, with the
daemon stopped or killed before, its KV on disk or deleted; told whole, and from ``init`` on, which
the daemon writes when the model is loaded and the prompt is made.

    python benchmarks/restart.py [--model smollm2-135m] [--tokens 2000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

import torch  # noqa: E402

from benchmarks.cli import Home  # noqa: E402
from benchmarks.machine import machine, report  # noqa: E402
from benchmarks.words import words  # noqa: E402
from radchat.config import Size  # noqa: E402
from radchat.daemon.lock import is_held, read_info  # noqa: E402
from radchat.engine.block_store import LOOK_S  # noqa: E402
from radchat.engine.engine import Engine  # noqa: E402
from radchat.engine.fingerprint import fingerprint  # noqa: E402
from radchat.engine.model import build_engine, load  # noqa: E402
from radchat.engine.request import (  # noqa: E402
    Finished,
    Ids,
    Request,
    SamplingParams,
    Tokens,
    Usage,
)
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402
from radchat_sessions.kv_store import KVStore  # noqa: E402

QUESTION = 20  # tokens
GIB = 1024**3


class First(NamedTuple):
    """Seconds to the first token of a question, and where its prompt came from."""

    seconds: float
    usage: Usage


def flush(engine: Engine, timeout_s: float) -> bool:
    """Have all kept paths written now. False: not in time, or the store has refused some."""
    deadline = time.monotonic() + timeout_s
    seconds = engine.save(now=True)
    while seconds is not None and seconds <= LOOK_S and time.monotonic() < deadline:
        if seconds:
            engine.drain(seconds)
        seconds = engine.save()
    return seconds is None


def ask(engine: Engine, name: str, ids: Ids) -> First:
    params = SamplingParams(temperature=0.0, max_tokens=1)
    began, first = time.perf_counter(), None
    engine.submit(Request(name, array("I", ids), params))
    while engine.has_work():
        for event in engine.step():
            if isinstance(event, Tokens) and first is None:
                first = time.perf_counter() - began
            if isinstance(event, Finished):
                if event.error or first is None:
                    raise RuntimeError(event.error or "an answer without a token")
                return First(first, event.usage)
    raise RuntimeError("no answer")


def blocks(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/??/*.safetensors"))


def drop_from_memory(files: list[Path]) -> bool:
    """Whether the next read of them comes from the disk itself."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def read_seconds(files: list[Path], buffer: bytearray) -> float:
    began = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - began


class InProcess:
    """Engines of one model: with a disk, and without one."""

    def __init__(self, folder: Path, dtype: str, num_tokens: int, kv: Path) -> None:
        model = load(folder, dtype)
        size = Size(tokens=2 * num_tokens + 1024)
        self.kv, self.num_tokens = kv, num_tokens
        self.store = KVStore.open(kv, budget=8 * GIB, hourly=None)
        mine = self.store.of(fingerprint(folder, dtype))
        self.engine = build_engine(model, kv_budget=size, blocks=mine)
        self.without = build_engine(model, kv_budget=size)
        self.times: dict[str, list[float]] = {}
        self.shares: list[float] = []  # of the conversation, restored and used

    def round(self, number: int, *, counts: bool) -> None:
        talk = words(self.num_tokens, 1000 * number)
        question = talk + words(QUESTION, 1000 * number + 1)
        self.store.clear()
        self.engine.clear()
        ask(self.engine, f"{number}", talk)
        self.engine.keep("benchmark/main", talk)
        if not flush(self.engine, 60.0):
            raise RuntimeError(f"KV was not written: {self.store.trouble}")
        files, buffer = blocks(self.kv), bytearray(1 << 20)
        seen = {"warm": ask(self.engine, f"{number} warm", question).seconds}
        self.without.clear()
        seen["cold"] = ask(self.without, f"{number} cold", question).seconds
        for name in ("restored", "restored, not in memory"):
            self.engine.clear()
            if name != "restored" and not drop_from_memory(files):
                continue
            seconds, usage = ask(self.engine, f"{number} {name}", question)
            seen[name] = seconds
            if usage.input_tokens != usage.device + usage.disk + usage.computed:
                raise RuntimeError(f"tokens do not add up: {usage}")
            self.shares.append(usage.disk / len(talk))
            if name != "restored":
                drop_from_memory(files)
            seen[f"reading the files ({name})"] = read_seconds(files, buffer)
        if counts:
            for name, value in seen.items():
                self.times.setdefault(name, []).append(value)
        self.num_bytes = sum(file.stat().st_size for file in files)

    def close(self) -> None:
        self.store.close()


class Shell(NamedTuple):
    """Seconds of one `ask -c`, from the start of its process to its first word."""

    whole: float
    from_init: float
    cache: dict[str, int]


def first_word(home: Home, *args: str) -> Shell:
    began = time.perf_counter()
    flags = ("--temp", "0", "--max-tokens", "4", "--output-format", "stream-json")
    process = home.start("ask", *args, *flags)
    init = first = result = None
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "init":
            init = time.perf_counter() - began
        if event["type"] == "text_delta" and first is None:
            first = time.perf_counter() - began
        if event["type"] == "result":
            result = event
    _, err = process.communicate()
    if init is None or first is None or result is None or result["is_error"]:
        raise RuntimeError(f"no answer: {result} {err}")
    return Shell(first, first - init, result["branches"][0]["cache"])


class CommandLine:
    def __init__(self, home: Home, num_tokens: int) -> None:
        self.home, self.num_tokens = home, num_tokens
        self.places = Places.from_env(home.env)
        self.rows: dict[str, list[Shell]] = {}
        self._num_turns = 0

    def round(self, number: int, *, counts: bool) -> None:
        home = self.home
        home.run("ask", self._text(number), "--temp", "0", "--max-tokens", "8")
        home.run("cache", "save")
        seen = {"daemon running, warm": self._go_on()}
        home.run("cache", "clear", "-y")
        seen["daemon running, on disk"] = self._go_on()
        home.run("daemon", "stop")
        seen["daemon stopped, on disk"] = self._go_on()
        home.run("cache", "save")
        self._kill()
        seen["daemon killed, on disk"] = self._go_on()
        home.run("daemon", "stop")
        shutil.rmtree(self.places.kv)
        seen["daemon stopped, KV deleted"] = self._go_on()
        if counts:
            for name, value in seen.items():
                self.rows.setdefault(name, []).append(value)

    def _go_on(self) -> Shell:
        """The next turn, in words of its own, which is then taken back."""
        self._num_turns += 1
        seen = first_word(self.home, f"And then, for the {self._num_turns}th time?", "-c")
        self.home.run("undo")
        return seen

    def _text(self, number: int) -> str:
        """Four tokens a number, about; no two conversations begin alike."""
        picked = [f"{number + 1}0{i % 7}" for i in range(self.num_tokens * 10 // 41)]
        return "Remember: " + " ".join(picked)

    def _kill(self) -> None:
        info = read_info(self.places.lock)
        assert info is not None
        os.kill(info.pid, signal.SIGKILL)
        while is_held(self.places.lock):
            time.sleep(0.01)


@contextlib.contextmanager
def folder_for_a_while() -> Iterator[Path]:
    """On a disk: /tmp may be in memory."""
    folder = Path(tempfile.mkdtemp(prefix="rc-kv-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def spread(values: list[float]) -> str:
    return f"{1000 * median(values):8.1f} ms   ({1000 * min(values):.0f}–{1000 * max(values):.0f})"


def in_process(args: argparse.Namespace) -> dict[str, Any]:
    folder = registry.resolve(Places.from_env(), args.model).folder
    with folder_for_a_while() as kv:
        engines = InProcess(folder, "bf16", args.tokens, kv)
        try:
            for number in range(args.repeat + 1):  # the first warms up
                engines.round(number, counts=number > 0)
        finally:
            engines.close()
    cold = engines.times["cold"]
    kv_bytes = engines.num_bytes
    print(f"in process, {args.tokens:,} + {QUESTION} tokens, {kv_bytes / 1e6:.1f} MB of KV")
    ratios = {}
    for name, values in engines.times.items():
        ratios[name] = median(a / b for a, b in zip(values, cold, strict=True))
        print(f"  {name:50} {spread(values)}   {ratios[name]:.3f}x of cold")
    print(f"  restored and used: at least {100 * min(engines.shares):.2f} % of the conversation")
    return {
        "ms": {name: 1000 * median(values) for name, values in engines.times.items()},
        "of_cold": ratios,
        "restored_share": min(engines.shares),
        "kv_bytes": kv_bytes,
    }


def by_command_line(args: argparse.Namespace) -> dict[str, Any]:
    home = Home(args.model)
    try:
        command_line = CommandLine(home, args.tokens)
        for number in range(args.repeat + 1):
            command_line.round(number, counts=number > 0)
    finally:
        home.close()
    print("by the command line: `ask -c` to its first word: whole, from init; where its prompt was")
    figures: dict[str, Any] = {}
    for name, rows in command_line.rows.items():
        whole, own = [row.whole for row in rows], [row.from_init for row in rows]
        cache = rows[-1].cache
        where = ", ".join(f"{tier} {count:,}" for tier, count in cache.items() if count)
        print(f"  {name:28} {spread(whole)}   {spread(own)}   {where}")
        figures[name] = {"whole_ms": 1000 * median(whole), "from_init_ms": 1000 * median(own)}
        figures[name]["cache"] = cache
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    load_before = machine()["load"]
    torch.set_num_threads(args.threads)
    engines = in_process(args)
    shell = by_command_line(args)
    report(
        load_before=load_before,
        torch=torch.__version__,
        threads=args.threads,
        tokens=args.tokens,
        in_process=engines,
        command_line=shell,
    )


if __name__ == "__main__":
    main()
