"""KV on disk: a path gets exactly what was written for it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from radchat_sessions.kv_blocks import ROOT, key_of
from radchat_sessions.kv_store import KVStore
from tests.sessions.kv import (
    TOKEN_BYTES,
    B,
    F,
    Opener,
    evict,
    kv_of,
    quick_folder,
    raw_of,
    read_path,
    shape_of,
    size_of,
    write,
    write_path,
)

PATH = list(range(100, 110))  # two full blocks and one of two tokens
WHOLE = [kv_of(PATH[:4], 0), kv_of(PATH[:8], 4), kv_of(PATH, 8)]


@pytest.fixture
def opener() -> Iterator[Opener]:
    home = quick_folder()
    made = Opener(home / "cache" / "kv")
    yield made
    made.close()
    shutil.rmtree(home)


def spans(store: KVStore, path: list[int]) -> list[tuple[int, int]]:
    return store.of(F).spans(raw_of(path))


# -- paths and blocks ------------------------------------------------------------------------------


def test_what_was_written_is_read_again_after_a_restart(opener: Opener) -> None:
    assert write_path(opener().of(F), PATH) == [True] * 3
    store = opener()
    assert spans(store, PATH) == [(0, 10)]
    assert read_path(store.of(F), PATH) == WHOLE
    store.check()


def test_a_path_that_leaves_a_block_gets_what_it_shares(opener: Opener) -> None:
    folder = opener().of(F)
    write_path(folder, PATH)
    asked = [*PATH[:6], 7, 7, 7]
    first, second = folder.lookup(raw_of(asked), 0)
    assert (first.common, second.common, second.num_tokens, second.end) == (4, 2, 4, 6)
    assert folder.lookup(raw_of(asked), 6) == []
    assert [block.start for block in folder.lookup(raw_of(asked), 5)] == [4]


def test_of_two_blocks_that_share_as_much_the_smaller_is_met(opener: Opener) -> None:
    folder = opener().of(F)
    write(folder, [1, 2, 3, 4])
    write(folder, [1, 2, 5])
    (block,) = folder.lookup(raw_of([1, 2, 9]), 0)
    assert (block.common, block.num_tokens) == (2, 3)


def test_all_blocks_a_path_meets_are_told_also_several_at_one_place(opener: Opener) -> None:
    folder = opener().of(F)
    write_path(folder, PATH)
    write(folder, [*PATH[:8], 108, 7])
    write(folder, [*PATH[:8], 8])
    met = folder.blocks(raw_of(PATH))
    assert [(block.start, block.common) for block in met] == [(0, 4), (4, 4), (8, 2), (8, 1)]


def test_a_tail_that_grows_is_one_block(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    for end in range(9, 11):
        assert write(folder, PATH[:end])
    assert store.stats().blocks == 1
    assert write(folder, PATH[:9])  # it is there already, in the longer one
    assert store.stats().blocks == 1
    assert folder.has(raw_of(PATH), 8)
    assert not folder.has(raw_of([*PATH, 1]), 8)
    store.check()


def test_a_hole_costs_only_itself(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    first, middle, _ = folder.lookup(raw_of(PATH), 0)
    store.place(F, middle.key).unlink()
    assert folder.read(middle) is None
    assert folder.spans(raw_of(PATH)) == [(0, 4), (8, 10)]
    assert [block.start for block in folder.lookup(raw_of(PATH), 0)] == [first.start]
    assert [block.start for block in folder.lookup(raw_of(PATH), 8)] == [8]
    assert write(folder, PATH[:8])
    assert read_path(folder, PATH) == WHOLE
    store.check()


def test_deleting_a_block_takes_what_follows_it(opener: Opener) -> None:
    store = opener()
    folder = store.of(F)
    write_path(folder, PATH)
    write(folder, [*PATH[:4], 9, 9])
    folder.delete(folder.lookup(raw_of(PATH), 4)[0])
    assert folder.spans(raw_of(PATH)) == [(0, 4)]
    assert folder.spans(raw_of([*PATH[:4], 9, 9])) == [(0, 6)]
    store.check()


def test_fingerprints_share_nothing(opener: Opener) -> None:
    store = opener()
    write_path(store.of(F), PATH)
    assert store.of("other").spans(raw_of(PATH)) == []
    assert write(store.of("other"), PATH[:4], salt=1)
    assert read_path(store.of(F), PATH) == WHOLE
    assert store.clear(F) == (10, sum(size_of(PATH[:end]) for end in (4, 8, 10)))
    assert store.stats().by_fingerprint == {"other": (1, 4, size_of(PATH[:4], "other"))}
    assert read_path(store.of("other"), PATH) == [kv_of(PATH[:4], 0, 1)]
    store.check()


@pytest.mark.parametrize(
    ("start", "num_tokens", "num_bytes", "dtype"),
    [
        (2, 2, 2 * TOKEN_BYTES, "fp32"),  # inside a block
        (0, 3, 3 * TOKEN_BYTES, "fp32"),  # not all of it
        (0, 4, 3 * TOKEN_BYTES, "fp32"),
        (0, 4, 4 * TOKEN_BYTES, "bf16"),
        (0, 4, 4 * TOKEN_BYTES, "int4"),
    ],
)
def test_what_can_not_be_a_block_is_a_mistake_of_the_caller(
    opener: Opener, start: int, num_tokens: int, num_bytes: int, dtype: str
) -> None:
    folder = opener().of(F)
    with pytest.raises(ValueError, match="no block"):
        folder.write(
            raw_of([1, 2, 3, 4]), start, bytes(num_bytes), shape=shape_of(num_tokens), dtype=dtype
        )
    for name in ("", "tmp", "..", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="folder"):
            opener.stores[-1].of(name)


# -- whose bytes -----------------------------------------------------------------------------------


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    first = key_of(ROOT, raw_of([1, 2, 3]))
    assert first == "1e11f58b08422c16253ab3c63a69b511"
    assert key_of(first, raw_of([4])) != key_of(ROOT, raw_of([4]))


def test_the_safetensors_library_reads_our_files(opener: Opener) -> None:
    folder = opener().of(F)
    write_path(folder, PATH)
    block = folder.lookup(raw_of(PATH), 8)[0]
    place = opener.stores[-1].place(F, block.key)
    tensors = dict(deserialize(place.read_bytes()))  # type: ignore[no-untyped-call]
    assert (tensors["kv"]["dtype"], tensors["kv"]["shape"]) == ("F32", [2, 2, 2, 1, 2])
    assert bytes(tensors["kv"]["data"]) == WHOLE[2]
    assert (tensors["path"]["dtype"], bytes(tensors["path"]["data"])) == ("U32", raw_of(PATH))


def test_files_are_for_their_owner_alone(opener: Opener) -> None:
    write_path(opener().of(F), PATH)
    for path in (opener.folder, *opener.folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert opener.folder.parent.stat().st_mode & 0o777 == 0o700


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from([1, 2]), min_size=1, max_size=11)),
        max_size=25,
    ),
    keys=st.sampled_from([("0" * 32,), ("a" * 32,), ("a" * 32, "b" * 32)]),
)
def test_reuse_is_decided_by_ids_whatever_the_keys_are(
    steps: list[tuple[bool, list[int]]], keys: tuple[str, ...]
) -> None:
    opener = Opener(quick_folder())
    store = opener(key_of=lambda _parent, ids: keys[sum(ids) % len(keys)])
    folder = store.of(F)
    last: dict[tuple[int, ...], bytes] = {}
    for salt, (is_write, path) in enumerate(steps):
        start = (len(path) - 1) // B * B
        if is_write and not folder.has(raw_of(path), start) and write(folder, path, salt=salt):
            last[tuple(path)] = kv_of(path, start, salt)
        for block in [*folder.lookup(raw_of(path), 0), *folder.blocks(raw_of(path))]:
            data = folder.read(block)
            if data is not None:
                fits = [
                    kv
                    for of, kv in last.items()
                    if (len(of) - 1) // B * B == block.start
                    and list(of[: block.end]) == path[: block.end]
                    and len(of) == block.start + block.num_tokens
                ]
                assert bytes(data) in fits
    evict(store, 10**9)
    assert store.stats().blocks == 0
    opener.close()
    shutil.rmtree(opener.folder)
