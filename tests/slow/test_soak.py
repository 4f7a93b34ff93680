"""Some minutes of random chat life through the real daemon, its engine recounted at every step.

Half of it in one daemon, whose memory, threads and open files must stay as they were; half with
kills and restarts in between. SOAK_SECONDS makes it longer, SOAK_SEED another life.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Homes, homes, other, sources, tiny
from tests.e2e.homes import Home
from tests.slow.life import Life
from tests.waiting import alive, wait_until

__all__ = ["homes", "other", "sources", "tiny"]  # fixtures

SECONDS = float(os.environ.get("SOAK_SECONDS", "240"))
SEED = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
WARM = 150  # steps after which a daemon has what it needs
THREADS = 20  # asyncio and torch make some when there is much to do, and keep them
GROWTH = 24 * 2**20  # bytes that its memory may still move


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    names = []
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(str(one.readlink()).partition(":")[0])
    return sorted(names)


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


class Steady:
    """A daemon that is warm: it may not grow any more."""

    def __init__(self, pid: int) -> None:
        self.pid, self.bytes, self.files = pid, resident(pid), open_files(pid)

    def check(self, pid: int) -> None:
        assert pid == self.pid, "another daemon: the first one died"
        now = resident(pid)
        assert now <= self.bytes + GROWTH, f"{now:,} bytes, it was {self.bytes:,}"
        assert num_threads(pid) <= THREADS
        wait_until(lambda: len(open_files(pid)) <= len(self.files))


def live(life: Life, seconds: float, *, deaths: bool) -> None:
    deadline, steps = time.monotonic() + seconds, 0
    steady: Steady | None = None
    while time.monotonic() < deadline:
        life.step(deaths=deaths)
        steps += 1
        if steps % 10 == 0:
            life.check()
        if deaths or steps % 50:
            continue
        if steady is None and steps >= WARM:
            steady = Steady(life.home.pid)
        if steady is not None:
            steady.check(life.home.pid)
    life.check()
    assert deaths or steady is not None, f"only {steps} steps"


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS * 3 + 600))
def test_a_random_life_is_what_its_books_say(
    homes: Homes, tiny: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home: Home = homes({"tiny": tiny, "other": other}, RADCHAT_KV_DEVICE="2048tok")
    for name, value in home.env.items():  # of the daemons that this process starts
        monkeypatch.setenv(name, value)
    life = Life(home, SEED)
    try:
        live(life, SECONDS / 2, deaths=False)
        live(life, SECONDS / 2, deaths=True)
    except BaseException:
        print(f"SOAK_SEED={SEED}: {dict(life.done)}; last: {' '.join(life.history[-12:])}")
        print(home.log()[-3000:])
        raise
    print(dict(life.done), life.restored)
    assert life.restored > 0, "nothing ever came from disk"
    home.stop()
    assert [pid for pid in home.pids if alive(pid)] == []
    assert os.listdir(home.places.running) == []  # noqa: PTH208
    log = home.log()
    assert "Traceback" not in log
    assert not any(word in log for word in ("messages and a cache", "in common"))
    with home.store() as store:
        assert store.verify() == []
        assert store.running() == []
