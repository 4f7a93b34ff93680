"""Mixed load on a daemon for a long time: does anything of it stay?

    python benchmarks/soak.py [--minutes 30] [--clients 6]

Clients of two keys over TCP: turns, forks, conversations told again, streams, schemas, tools, ids,
samples, bad requests, and many that vanish in the midst. Resident memory, open files and threads of
the daemon are looked at every few seconds, the engine's counters too, and how long `status` takes.
At the end all clients have gone: then nothing may be locked, running or open that was not before,
and no session be listed that nobody named.
Memory may move by 5 % once it is warm. The exit code is 1 where any of this does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for root in (ROOT, ROOT / "kernels", ROOT / "sessions"):
    sys.path.insert(0, str(root))

from benchmarks.machine import report  # noqa: E402
from benchmarks.soak_loads import SESSION, Client  # noqa: E402
from radchat.client import Client as Daemon  # noqa: E402
from radchat.paths import Places  # noqa: E402
from radchat.whereabouts import where  # noqa: E402
from tests.e2e.tiny_models import converted  # noqa: E402

EVERY_S = 2.0
WARM = 0.3  # of the time: until then memory may grow
GROWTH = 0.05
SETTLED = 10_000  # requests: of fewer, what is kept on purpose still fills when it counts as warm
SLACK = 4 * 2**20  # bytes; of a small process 5 % are less than one list of its allocator
KEY = "the-other-key-of-the-soak"
POOL = "16384tok"


@dataclass(frozen=True)
class Sample:
    """Of one moment."""

    at_s: float
    rss: int
    files: int
    threads: int
    status_ms: float


@dataclass(frozen=True)
class End:
    """When all clients have gone. Counts are tokens, but for running and waiting."""

    total: int
    free: int
    evictable: int
    pinned: int
    locked: int
    running: int
    waiting: int
    active: int  # requests that the daemon still counts
    files_before: int
    files: int
    strangers: int = 0  # sessions that no client has named


def verdict(samples: Sequence[Sample], end: End, requests: int = SETTLED) -> list[str]:
    """What does not hold; nothing where all is well. Memory is judged from SETTLED requests on."""
    wrong = []
    warm = [each for each in samples if each.at_s >= WARM * samples[-1].at_s]
    quarter = max(1, len(warm) // 4)
    first = statistics.median(each.rss for each in warm[:quarter])
    last = statistics.median(each.rss for each in warm[-quarter:])
    if requests >= SETTLED and last - first > max(GROWTH * first, SLACK):
        wrong.append(f"memory has grown from {first / 1e6:.0f} to {last / 1e6:.0f} MB")
    if end.files > end.files_before:
        wrong.append(f"{end.files - end.files_before} files or sockets are left open")
    if end.locked or end.running or end.waiting or end.active:
        wrong.append(
            f"at the end {end.locked} tokens are locked, {end.running} requests run, {end.waiting} "
            f"wait, {end.active} are counted"
        )
    lost = end.total - end.free - end.evictable - end.pinned - end.locked
    if lost:
        wrong.append(f"of {end.total} tokens of KV {lost} are lost")
    if end.strangers:
        wrong.append(f"{end.strangers} sessions are listed that nobody named")
    threads = [each.threads for each in warm]
    if max(threads[-quarter:]) > max(threads[:quarter]) + 4:
        wrong.append(f"threads: {max(threads[:quarter])} became {max(threads[-quarter:])}")
    return wrong


class Watched:
    """A daemon's process, from outside."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.pid = daemon, int(daemon.health["pid"])

    def sample(self, begun: float) -> Sample:
        at = time.monotonic()
        self.daemon.call("status")
        took = time.monotonic() - at
        proc = Path(f"/proc/{self.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        return Sample(
            at - begun,
            pages * os.sysconf("SC_PAGE_SIZE"),
            self.num_files(),
            len(list((proc / "task").iterdir())),
            1000 * took,
        )

    def num_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _strangers(self) -> int:
        listed = self.daemon.call("sessions.list", where=where(), begun=True, limit=None)
        return sum(not (row["name"] or "").startswith(SESSION) for row in listed["sessions"])

    def end(self, files_before: int, patience_s: float = 20.0) -> End:
        """Once all is quiet, or when that has not come."""
        until = time.monotonic() + patience_s
        while True:
            status = self.daemon.call("status")
            stats = self.daemon.call("cache.stats", where=where())
            found = End(
                stats["total_tokens"],
                stats["free_tokens"],
                stats["evictable_tokens"],
                stats["pinned_tokens"],
                stats["locked_tokens"],
                status["running"],
                status["waiting"],
                status["answers"],
                files_before,
                self.num_files(),
                self._strangers(),
            )
            is_quiet = not (found.locked or found.running or found.active)
            if (is_quiet and found.files <= files_before) or time.monotonic() > until:
                return found
            time.sleep(0.2)


@contextlib.contextmanager
def home() -> Iterator[dict[str, str]]:
    """A daemon of its own, with a tiny model of random weights."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    env = {
        **os.environ,
        "RADCHAT_HOME": str(folder),
        "RADCHAT_KV_DEVICE": POOL,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "kernels", ROOT / "sessions"))),
    }
    (folder / "cache").mkdir(mode=0o700)
    converted(folder / "cache" / "models", "tiny")
    try:
        yield env
    finally:
        command = [sys.executable, "-P", "-m", "radchat", "daemon", "stop", "--force", "-q"]
        subprocess.run(command, env=env, check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


def soak(
    minutes: float, num_clients: int, rest_s: float = 0.0
) -> tuple[list[Sample], End, Counter[str], list[str]]:
    with home() as env, contextlib.ExitStack() as stack:
        command = [sys.executable, "-P", "-m", "radchat", "serve", "--port", "0"]
        serve = subprocess.Popen(
            [*command, "--api-key", KEY, "-m", "tiny"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(serve.wait)
        stack.callback(serve.terminate)
        assert serve.stdout is not None
        stack.callback(serve.stdout.close)
        url = serve.stdout.readline().strip()
        places = Places.from_env(env)
        own = (places.state / "api-key").read_text().strip()
        watched = Watched(Daemon.connect(places, start=False))
        warm = Client(url, own, "tiny", 10**6)
        for one in (warm.turn, warm.complete, warm.form, warm.call):
            one()  # what is imported with the first of its kind
        warm.http.close()
        files_before = watched.end(10**6, 2.0).files
        clients = [Client(url, (own, KEY)[i % 2], "tiny", i, rest_s) for i in range(num_clients)]
        samples, failures = _run(clients, watched, 60 * minutes)
        done: Counter[str] = sum((client.done for client in clients), Counter())
        return samples, watched.end(files_before), done, failures


def _run(
    clients: Sequence[Client], watched: Watched, seconds: float
) -> tuple[list[Sample], list[str]]:
    stop, failures = threading.Event(), []

    def live(client: Client) -> None:
        try:
            client.live(stop)
        except Exception as error:  # told at the end: the others go on
            failures.append(f"client {client.number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=live, args=(each,), daemon=True) for each in clients]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        samples = [watched.sample(begun)]
        while time.monotonic() - begun < seconds and not failures:
            time.sleep(min(EVERY_S, seconds / 20))
            samples.append(watched.sample(begun))
    finally:
        stop.set()
    until = time.monotonic() + 150
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    return samples, failures + [f"{stuck} clients still wait for an answer"] * bool(stuck)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=6)
    options = parser.parse_args()
    samples, end, done, failures = soak(options.minutes, options.clients)
    wrong = [*failures, *verdict(samples, end, done.total())]
    status = sorted(each.status_ms for each in samples)
    p99 = status[min(len(status) - 1, int(0.99 * len(status)))]
    warm = [each for each in samples if each.at_s >= WARM * samples[-1].at_s]
    rows = [
        ("requests", f"{done.total():,}"),
        *((f"  {name}", f"{num:,}") for name, num in done.most_common()),
        ("memory, warm to end", f"{warm[0].rss / 1e6:.0f} to {warm[-1].rss / 1e6:.0f} MB"),
        ("open files", f"{end.files_before} before, {end.files} after"),
        ("threads", f"{samples[-1].threads}"),
        ("status, median / p99", f"{statistics.median(status):.1f} / {p99:.1f} ms"),
        ("KV", f"{end.free + end.evictable:,} of {end.total:,} tokens free or evictable"),
    ]
    for name, value in rows:
        print(f"{name:<24}{value}")
    if done.total() < SETTLED:
        print(f"memory is not judged: under {SETTLED:,} requests it has not settled")
    for each in wrong:
        print(f"WRONG: {each}")
    figures: dict[str, Any] = {"minutes": options.minutes, "clients": options.clients}
    report(
        benchmark="soak",
        **figures,
        requests=done.total(),
        done=dict(done),
        memory_mb=[warm[0].rss / 1e6, warm[-1].rss / 1e6],
        files=[end.files_before, end.files],
        status_ms=[statistics.median(status), p99],
        wrong=wrong,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
