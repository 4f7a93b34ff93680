"""The disk tier's tests must be able to fail: each bug planted here is one they have to find.

A copy of the tree with the bug in it runs them in a process of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ("test_disk_tier", "test_disk_saving", "test_disk_exact", "test_disk_machine", "test_fill")


class Bug(NamedTuple):
    what: str
    module: str
    right: str
    wrong: str


BUGS = [
    Bug(
        "the restored end is one too far",
        "restoring",
        "lease.computed_len = block.end\n",
        "lease.computed_len = block.end + (block.end < len(choice.ids) - 1)\n",
    ),
    Bug(
        "one token less is written than is told",
        "restoring",
        "computed_len, block.end, data, block.start)",
        "computed_len, block.end - 1, data, block.start)",
    ),
    Bug(
        "the boundary page is not copied first",
        "restoring",
        "            self._copy_pages([lease])\n",
        "",
    ),
    Bug(
        "a block is read from its start, not from where the match ends",
        "restoring",
        "computed_len, block.end, data, block.start)",
        "computed_len, block.end, data, lease.computed_len)",
    ),
    Bug(
        "restored tokens count before a row attends to them",
        "delivery",
        "            group.restored = end\n",
        "            group.restored = end\n            group.settle()\n",
    ),
    Bug(
        "what was restored and lost in a retraction still counts",
        "choice",
        "        self.restored = 0\n",
        "",
    ),
    Bug(
        "the last token is restored too, and no row is left to draw from",
        "restoring",
        '        elif request.fill != "load":\n            limit -= 1',
        "        elif False:\n            limit -= 1",
    ),
    Bug(
        "a chunk runs over what the disk has behind a hole",
        "restoring",
        "                restore.stop_at = start\n",
        "                pass\n",
    ),
    Bug(
        "a block that could not be read is asked for again for ever",
        "restoring",
        "            restore.bad.add(block.key)  # computed, then\n",
        "",
    ),
    Bug(
        "blocks arrive in the wrong order",
        "reader",
        "restore.wanted.popleft(), restore.arrived",
        "restore.wanted.pop(), restore.arrived",
    ),
    Bug(
        "after a bad block one goes on waiting",
        "restoring",
        "            self._reader.cancel(restore)\n            restore.bad",
        "            restore.bad",
    ),
    Bug(
        "what arrives for one that was cancelled is kept",
        "reader",
        "        restore.arrived = deque()  # another: what is being read goes nowhere\n",
        "",
    ),
    Bug(
        "a disk that hangs is waited for",
        "restoring",
        "            if hangs:\n",
        "            if False:\n",
    ),
    Bug(
        "a disk that hung a moment ago is trusted at once",
        "reader",
        "                self._gave_up_at = now\n        return now - self._gave_up_at < AGAIN_S",
        "                return True\n        return False",
    ),
    Bug(
        "the background waits for a slow disk",
        "restoring",
        "            and now - choice.restore.waits_since < _SHORT_S\n",
        "",
    ),
    Bug(
        "what a load brought is not among what was restored",
        "delivery",
        "used += group.was_ahead(*span)",
        "group.was_ahead(*span)",
    ),
    Bug(
        "what a load brought counts in another namespace",
        "delivery",
        "if self._ahead and not group.request.namespace:",
        "if self._ahead:",
    ),
    Bug(
        "a path is looked up for each of its blocks",
        "saving",
        "        if self.spans is None:\n",
        "        if True:\n",
    ),
    Bug(
        "what was saved is kept for ever",
        "saving",
        "            self._kept.clear()\n",
        "            pass\n",
    ),
    Bug(
        "the path asked for is not written alone",
        "saving",
        "            if only not in (None, name):\n",
        "            if False:\n",
    ),
    Bug(
        "a disk that hangs is asked all the time",
        "saving",
        "min(max(at - self._first_since, _SOON_S), LOOK_S)",
        "_SOON_S",
    ),
    Bug(
        "rows run while blocks are awaited",
        "choice",
        'return 0 if self.is_restoring or self.request.fill == "load" else self.pending',
        'return 0 if self.request.fill == "load" else self.pending',
    ),
    Bug(
        "scoring restores what it runs",
        "restoring",
        "limit = choice.scored  #",
        "limit = len(choice.ids) - 1  #",
    ),
    Bug(
        "other namespaces read the disk",
        "restoring",
        "at >= limit or request.namespace",
        "at >= limit",
    ),
    Bug(
        "eviction copies all of a node, not what is kept of it",
        "saving",
        "            common = common_len(kept.raw, raw, 0, len(raw))\n",
        "            common = len(raw) // ID_BYTES\n            kept = Kept(raw)\n",
    ),
    Bug(
        "saving follows the tree beyond the kept path",
        "saving",
        "                end = min(kept.at + BLOCK_TOKENS, num_cached)\n",
        "                end = kept.at + BLOCK_TOKENS\n",
    ),
    Bug(
        "eviction forgets what is not written",
        "disk_tier",
        "        cache.on_evict = self._on_evict\n",
        "",
    ),
    Bug(
        "eviction in another namespace is copied",
        "disk_tier",
        "            if not namespace:",
        "            if True:",
    ),
    Bug(
        "what a load brought stays brought after it is evicted",
        "disk_tier",
        "                self.restoring.ahead.evicted(raw, end)\n",
        "",
    ),
    Bug(
        "what a load brought counts for all that read it",
        "ahead",
        "                run.start = end\n",
        "",
    ),
    Bug(
        "the copies are not bounded",
        "saving",
        "has_room = not self._copies or self.staged_bytes + num_bytes <= self._room",
        "has_room = True",
    ),
    Bug(
        "what was refused is forgotten",
        "saving",
        "                    self._unsaved[name] = kept\n",
        "                    pass\n",
    ),
    Bug(
        "what was refused is tried again at once",
        "saving",
        "self._refused = self._refused, []\n        self._retry_at = self._clock() + RETRY_S\n",
        "self._refused = self._refused, []\n",
    ),
    Bug(
        "what is no longer kept is written all the same",
        "saving",
        "                    self._copies.remove(copy)\n",
        "                    continue\n",
    ),
    Bug(
        "runs of pages are cut at the wrong place",
        "kv_pool",
        "            while stop * size < end and table[stop] == table[stop - 1] + 1:",
        "            while stop * size < end and table[stop] > table[stop - 1]:",
    ),
]


def broken_tests(bug: Bug | None, folder: Path) -> list[str]:
    """Which tests fail over a copy with the bug in it."""
    for name in ("radchat", "kernels", "sessions", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if bug is not None:
        path = folder / "radchat" / "engine" / f"{bug.module}.py"
        source = path.read_text(encoding="utf-8")
        path.write_text(source.replace(bug.right, bug.wrong), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        "--timeout=200",
        "--maxfail=5",
        "-rfE",
    ]
    command += [f"tests/engine/{name}.py" for name in TESTS]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True, text=True)
    return re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE) or (
        [] if done.returncode == 0 else ["(all)"]
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_the_tests_find_that(bug: Bug, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = broken_tests(bug, tmp_path)
    with capsys.disabled():
        print(f"\n{bug.what}: {len(found)}: {', '.join(found[:4])}")
    assert found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_copy_without_a_bug_passes(tmp_path: Path) -> None:
    assert broken_tests(None, tmp_path) == []


def test_every_bug_has_a_place_in_the_source() -> None:
    for bug in BUGS:
        source = (ROOT / "radchat" / "engine" / f"{bug.module}.py").read_text(encoding="utf-8")
        assert source.count(bug.right) == 1, bug.what
        compile(source.replace(bug.right, bug.wrong), bug.module, "exec")
