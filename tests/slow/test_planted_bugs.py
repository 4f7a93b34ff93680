"""The state machine must be able to fail: each bug planted here is one it has to find.

The modules are loaded a second time from edited source, under names of their own; the real ones
stay as they are. Each bug is a reading of the rules that looks right (docs/adr/0004).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

ROOT = Path(__file__).parents[2]
NAMES = ("pages", "node", "eviction", "radix", "pins", "prefix_cache")


class Bug(NamedTuple):
    what: str
    module: str
    right: str
    wrong: str


BUGS = [
    Bug(
        "the upper half of a split is not locked",
        "radix",
        "upper.lock_ref, upper.shares, upper.hits = node.lock_ref, node.shares, node.hits",
        "upper.lock_ref, upper.shares, upper.hits = 0, node.shares, node.hits",
    ),
    Bug(
        "the page that is cut has one owner",
        "radix",
        "            self._pages.add_owner(node.pages[0])\n",
        "",
    ),
    Bug(
        "the lower half stays under its old key",
        "radix",
        "upper.children[node.tokens[:ID_BYTES]] = node",
        "upper.children[upper.tokens[:ID_BYTES]] = node",
    ),
    Bug(
        "any open tail may be taken over",
        "prefix_cache",
        "fill > 0 and tree.open.get(table[-1]) == fill",
        "fill > 0 and table[-1] in tree.open",
    ),
    Bug(
        "a tail taken over stays open",
        "prefix_cache",
        "            del tree.open[table[-1]]\n",
        "",
    ),
    Bug(
        "a match inside a page writes on in it",
        "prefix_cache",
        "copies.append((table.pop(), own[0]))",
        "own[0:1] = [table.pop()]",
    ),
    Bug(
        "the page on the boundary is taken for a duplicate",
        "prefix_cache",
        "own_end, unused = present // self.page_size, self._num_pages_for(n)",
        "own_end, unused = self._num_pages_for(present), self._num_pages_for(n)",
    ),
    Bug(
        "the upper node's page wins",
        "radix",
        "                table.pop()  # the lower node's page has these slots as well\n"
        "            table += each.pages",
        "                table += each.pages[1:]\n"
        "            else:\n"
        "                table += each.pages",
    ),
    Bug(
        "a shared page counts twice",
        "node",
        "return len(self.pages) - self.shares",
        "return len(self.pages)",
    ),
    Bug(
        "a shared page is looked for in the parent only",
        "radix",
        "        while node.end > page_start:\n"
        "            if node.pages[-1] == page:\n"
        "                return 1\n"
        "            node = node.parent\n"
        "        return 0",
        "        return int(node.end > page_start and node.pages[-1] == page)",
    ),
    Bug(
        "the tail that is shown has no owner of its own",
        "prefix_cache",
        "            self._pages.add_owner(tail)  # the request goes on writing there\n",
        "            pass\n",
    ),
    Bug(
        "the page being written is swapped",
        "prefix_cache",
        "swapped = range(lease.own_from, present // self.page_size)",
        "swapped = range(lease.own_from, self._num_pages_for(present))",
    ),
    Bug(
        "a locked node stays in line",
        "radix",
        "                    self.order.remove(each)\n                    self.evictable -= adds\n",
        "                    self.order.touch(each)\n                    self.evictable -= adds\n",
    ),
    Bug(
        "nodes others made are walked over, not used",
        "radix",
        "            if not (each.lock_ref or each.pins):\n"
        "                self.order.touch(each)\n",
        "",
    ),
    Bug(
        "a leaf is lengthened though others lock it",
        "radix",
        "node.lock_ref == (node is base) and not node.pins",
        "not node.pins",
    ),
    Bug(
        "a partial match locks the whole node",
        "radix",
        "            node = self._split(node, at)\n        self._tick += 1\n",
        "            pass\n        self._tick += 1\n",
    ),
    Bug(
        "room is made before the match is locked",
        "prefix_cache",
        "        node = tree.lock(node, cached_len, above=root)",
        "        self._make_room(self._num_pages_for(len(ids)) - cached_len // size)\n"
        "        node = tree.lock(node, cached_len, above=root)",
    ),
    Bug(
        "a prompt may be matched whole",
        "prefix_cache",
        "tree.match(root, ids.tobytes(), len(ids) - 1)",
        "tree.match(root, ids.tobytes(), len(ids))",
    ),
    Bug(
        "finish stores tokens that have no KV",
        "prefix_cache",
        'assert n <= lease.computed_len, "tokens without KV"',
        "n = len(lease.ids) if n == lease.computed_len else n",
    ),
    Bug(
        "pages behind the last token are kept",
        "prefix_cache",
        "        self._pages.release(table[unused:])\n",
        "",
    ),
    Bug(
        "abort reopens a tail at what was computed",
        "prefix_cache",
        "            fill = lease.node.end % self.page_size\n",
        "            fill = lease.computed_len % self.page_size\n",
    ),
    Bug(
        "a tail is shorter than its node after an eviction",
        "radix",
        "            node.end = end\n",
        "",
    ),
    Bug(
        "the upper half of a split is not pinned",
        "radix",
        "node.tick, node.last_used, node.pins",
        "node.tick, node.last_used, 0",
    ),
    Bug(
        "a pinned leaf is lengthened",
        "radix",
        "node.lock_ref == (node is base) and not node.pins",
        "node.lock_ref == (node is base)",
    ),
    Bug(
        "what a pin kept is used when it ends",
        "eviction",
        "[*self._line, *nodes], key=lambda node: (node.tick, -node.start)",
        "self._line, key=lambda node: 0) + sorted(nodes, key=lambda node: -node.start",
    ),
    Bug(
        "a pinned path is not pinned again when it is computed again",
        "prefix_cache",
        "        self._tree.unlock(lease.node, used=node)\n"
        "        lease.table = []\n"
        "        self._pins.settle()\n",
        "        self._tree.unlock(lease.node, used=node)\n        lease.table = []\n",
    ),
    Bug(
        "pins give way to whoever asks",
        "prefix_cache",
        "self.free + self.evictable + (self.pinned if over_pins else 0)",
        "self.free + self.evictable + self.pinned",
    ),
    Bug(
        "a pin stays on a node that gave way",
        "pins",
        "                    pin.node = node.parent\n",
        "                    pass\n",
    ),
    Bug(
        "neighbouring free runs are not joined",
        "pages",
        "        if end in self._end_of:\n            end = self._remove_run(end)\n",
        "",
    ),
]


def load(name: str, source: str, path: Path) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def planted(source: str) -> str:
    """The same, with the copies imported in the place of the real ones."""
    for name in NAMES:
        source = source.replace(f"radchat.engine.{name} ", f"planted.{name} ")
    return source


@contextmanager
def machine_with(bug: Bug | None) -> Iterator[Any]:
    """The state machine over a copy of the cache that has the bug."""
    try:
        for name in NAMES:
            path = ROOT / "radchat" / "engine" / f"{name}.py"
            source = path.read_text(encoding="utf-8")
            if bug and name == bug.module:
                assert source.count(bug.right) == 1, f"{bug.what}: its line has changed"
                source = source.replace(bug.right, bug.wrong)
            cache_module = load(f"planted.{name}", planted(source), path)
        path = ROOT / "tests" / "engine" / "test_prefix_cache_machine.py"
        machines = load("planted.machine", planted(path.read_text(encoding="utf-8")), path)
        machines.CacheMachine.cache_class = cache_module.PrefixCache
        yield machines.CacheMachine
    finally:
        for module in [each for each in sys.modules if each.startswith("planted.")]:
            del sys.modules[module]


def run(machine: Any, runs: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=80,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # found is enough: no shrinking
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_the_machine_finds_that(bug: Bug, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    with machine_with(bug) as machine, pytest.raises(Exception) as found:
        run(machine, 3000)
    with capsys.disabled():
        where = found.traceback[-1]
        print(f"\n{bug.what}: {time.process_time() - began:.1f} CPU s, in {where.name}")


@pytest.mark.slow
def test_the_copy_without_a_bug_passes() -> None:
    with machine_with(None) as machine:
        run(machine, 100)


def test_every_bug_has_a_place_in_the_source() -> None:
    for bug in BUGS:
        source = (ROOT / "radchat" / "engine" / f"{bug.module}.py").read_text(encoding="utf-8")
        assert source.count(bug.right) == 1, bug.what
        compile(source.replace(bug.right, bug.wrong), bug.module, "exec")


def test_the_planted_copy_is_not_the_real_cache() -> None:
    real = importlib.util.find_spec("radchat.engine.prefix_cache")
    assert real is not None
    with machine_with(None) as machine:
        assert machine.cache_class.__module__ == "planted.prefix_cache"
