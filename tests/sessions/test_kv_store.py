"""KV on disk: a path gets exactly what was written for it, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sessions.kv import F, Opener, kv_of, raw_of, read_path, write, write_path

PATH = list(range(100, 110))  # two full blocks and one of two tokens


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    made = Opener(tmp_path / "cache" / "kv")
    yield made
    made.close()


def test_what_was_written_is_read_again_after_a_restart(opener: Opener) -> None:
    folder = opener().of(F)
    assert write_path(folder, PATH) == [True] * 3
    store = opener()
    folder = store.of(F)
    assert folder.spans(raw_of(PATH)) == [(0, 10)]
    assert read_path(folder, PATH) == [kv_of(PATH[:4], 0), kv_of(PATH[:8], 4), kv_of(PATH, 8)]
    store.check()


def test_a_path_that_leaves_a_block_gets_what_it_shares(opener: Opener) -> None:
    folder = opener().of(F)
    write_path(folder, PATH)
    asked = [*PATH[:6], 7, 7, 7]
    first, second = folder.lookup(raw_of(asked), 0)
    assert (first.common, second.common, second.num_tokens, second.end) == (4, 2, 4, 6)
    assert folder.lookup(raw_of(asked), 6) == []
    assert [block.start for block in folder.lookup(raw_of(asked), 5)] == [4]


def test_a_tail_that_grows_is_one_block(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    for end in range(9, 11):
        write(folder, PATH[:end])
    assert store.stats().blocks == 1
    assert write(folder, PATH[:9])
    assert store.stats().blocks == 1
    assert folder.has(raw_of(PATH), 8)
    assert not folder.has(raw_of([*PATH, 1]), 8)
    store.check()
