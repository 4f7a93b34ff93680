"""How long does one wait for the command line itself?

Everything real: commands as processes, a chat in a terminal, a daemon, the model; in a home of its
own that is gone afterwards. CPU time where a command is all there is to measure, wall-clock time
where somebody waits: that one says little on a machine that does much else, so the load is given.

    python benchmarks/cli.py [--model smollm2-135m] [--repeat 5] [--record]

``--record`` writes results/cli.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
for root in (HERE.parent, HERE.parent / "kernels", HERE.parent / "sessions"):
    sys.path.insert(0, str(root))

from benchmarks.machine import machine, report  # noqa: E402
from radchat.models import registry  # noqa: E402
from radchat.paths import Places  # noqa: E402
from tests.e2e.harness import Terminal, clean_env, radchat  # noqa: E402

TALKATIVE = "Write a very long story about a ferry, its captain, its crew and a flood."
KEPT = "what came so far is kept"


class Row(NamedTuple):
    """Milliseconds."""

    key: str
    question: str
    target: float
    times: list[float]

    @property
    def cells(self) -> list[str]:
        measured, worst = median(self.times), max(self.times)
        told = "" if measured <= self.target else " (missed)"
        return [
            self.question,
            f"≤ {self.target:.0f} ms",
            f"{measured:.0f} ms{told}",
            f"{worst:.0f}",
        ]


class Home:
    """A home with one model, linked, that new sessions use."""

    def __init__(self, model: str) -> None:
        folder = registry.resolve(Places.from_env(), model).folder
        self.root = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))  # a socket's path is short
        self.env = clean_env(self.root / "h")
        places = Places.from_env(self.env)
        places.models.mkdir(parents=True)
        (places.models / folder.name).symlink_to(folder)
        registry.set_default(places, model)

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            radchat(*args),
            env=self.env,
            cwd=self.root,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *args: str) -> str:
        """What the command wrote. Raises RuntimeError where it failed."""
        process = self.start(*args)
        out, err = process.communicate()
        if process.returncode:
            raise RuntimeError(f"radchat {' '.join(args)}: exit {process.returncode}\n{err}")
        return out

    def chat(self, *args: str) -> Terminal:
        return Terminal(radchat("chat", *args), self.env, cwd=self.root)

    def close(self) -> None:
        self.run("daemon", "stop")
        shutil.rmtree(self.root)


def cpu_ms(home: Home, *args: str) -> float:
    process = subprocess.Popen(
        radchat(*args), env=home.env, cwd=home.root, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"radchat {' '.join(args)}: exit {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def added_ms(home: Home) -> float:
    """From the start of `ask` to its first word, less the engine's own part of it."""
    began = time.perf_counter()
    process = home.start("ask", "hello", "--max-tokens", "8", "--output-format", "stream-json")
    first = own = None
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if first is None and event["type"] == "text_delta":
            first = time.perf_counter() - began
        if event["type"] == "result":
            own = event["branches"][0]["timing"]["first_token_s"]
    process.communicate()
    if first is None or own is None:
        raise RuntimeError("an answer without a word")
    return 1000 * (first - float(own))


def keys_ms(home: Home) -> float:
    """From the start of `chat`, no daemon running, until a letter typed at its prompt is there."""
    home.run("daemon", "stop")
    began = time.perf_counter()
    with home.chat() as terminal:
        terminal.wait_for("> ")
        terminal.type("zq")
        terminal.wait_for("> zq")
        spent = time.perf_counter() - began
        terminal.type("\x15\x04")
        terminal.wait_end()
    return 1000 * spent


def read_ms(home: Home, *args: str) -> float:
    """A command that only reads, no daemon running; it must not load a model."""
    home.run("daemon", "stop")
    began = time.perf_counter()
    home.run(*args)
    spent = time.perf_counter() - began
    status = json.loads(home.run("daemon", "status", "--json"))
    if status.get("models"):
        raise RuntimeError(f"radchat {' '.join(args)} loaded a model")
    return 1000 * spent


def _is_talking(terminal: Terminal) -> bool:
    return len(terminal.text.partition(TALKATIVE)[2].strip()) > 40


def interrupts_ms(home: Home, repeat: int) -> list[float]:
    """From Ctrl+C in an answer that streams until a letter typed after it is at the prompt."""
    times = []
    with home.chat("--temp", "0") as terminal:
        terminal.wait_for("> ")
        for _ in range(repeat):
            terminal.type(TALKATIVE + "\r")
            terminal.wait_for(_is_talking)
            began = time.perf_counter()
            terminal.type("\x03")
            terminal.wait_for(KEPT)
            terminal.type("zq")
            terminal.wait_for("> zq")
            times.append(1000 * (time.perf_counter() - began))
            terminal.type("\x15\x0c")  # clears the line and the screen
            terminal.wait_for(lambda t: KEPT not in t.text and "zq" not in t.text)
        terminal.type("\x04")
        terminal.wait_end()
    return times


def measure(home: Home, repeat: int) -> list[Row]:
    """The daemon runs, its model loaded and the session made, but where a row says otherwise."""
    home.run("ask", "hello", "--max-tokens", "8")

    def times(one: Callable[..., float], *args: str) -> list[float]:
        return [one(home, *args) for _ in range(repeat)]

    shown, read = [("tree",), ("sessions", "ls")], [("tree",), ("log",), ("sessions", "ls")]
    rows = [Row("help_cpu_ms", "`--help`, CPU time", 90, times(cpu_ms, "--help"))]
    for args in shown:
        name = " ".join(args)
        rows.append(Row(f"{args[0]}_cpu_ms", f"`{name}`, CPU time", 160, times(cpu_ms, *args)))
    added = times(added_ms)
    rows.append(Row("ask_adds_ms", "`ask` before its first word, beside the engine", 200, added))
    interrupts = interrupts_ms(home, repeat)
    rows.append(Row("interrupt_ms", "Ctrl+C in a streaming answer to a prompt", 100, interrupts))
    keys = times(keys_ms)
    rows.append(Row("chat_keys_ms", "no daemon: `chat` takes a letter", 300, keys))
    for args in read:
        name = f"no daemon: `{' '.join(args)}`, no model loaded"
        rows.append(Row(f"{args[0]}_cold_ms", name, 500, times(read_ms, *args)))
    return rows


def written(rows: list[Row], repeat: int, about: dict[str, Any]) -> str:
    head = ["question", "target", "median", "worst"]
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * 4, *(r.cells for r in rows)]]
    machine_ = f"{about['cores']} cores, {about['cpu']}, Python {about['python']}"
    return "\n".join(
        [
            f"# What the command line takes, {about['date']}",
            "",
            f"`benchmarks/cli.py --repeat {repeat}`, commit {about['commit']}; {machine_},",
            f"load {about['load']} at the beginning.",
            "",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="write results/cli.md")
    args = parser.parse_args()
    about = machine()  # before we are the load
    home = Home(args.model)
    try:
        rows = measure(home, args.repeat)
    finally:
        home.close()
    for row in rows:
        question, target, measured, worst = row.cells
        print(f"{question:50} {target:>9}   {measured:18} worst {worst:>5} ms")
    if args.record:
        (HERE / "results" / "cli.md").write_text(written(rows, args.repeat, about))
    report(load_before=about["load"], **{r.key: [median(r.times), max(r.times)] for r in rows})


if __name__ == "__main__":
    main()
