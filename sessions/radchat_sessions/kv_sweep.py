"""Going through everything: files without a row, rows without a file, blocks that are damaged.

Nothing of this happens at open, which costs the same with any number of blocks.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from radchat_sessions.kv_blocks import ID_BYTES, ROOT
from radchat_sessions.kv_files import SUFFIX, Content, Damaged, unpack
from radchat_sessions.kv_index import Index
from radchat_sessions.kv_schema import Row
from radchat_sessions.kv_shelf import Shelf
from radchat_sessions.kv_trouble import GONE, damage

_SHARD = re.compile("[0-9a-f]{2}")
_LARGEST = 1 << 30  # bytes; far above any block
_OLDER_THAN_ANY = -(1 << 63)  # plus nanoseconds since 1970: before every tick, and in order


class Sweep:
    """One pass over all files, a few steps at a time; the caller holds the shelf's lock."""

    def __init__(self, shelf: Shelf) -> None:
        self.adopted = 0  # files that had no row and have one now
        self.swept = 0  # files that had no row and are gone
        self._shelf = shelf
        self._folders: deque[tuple[str, str]] | None = None  # (fingerprint, shard) to look through
        self._strays: deque[Path] = deque()  # files without a row

    @property
    def left(self) -> int:
        """Steps known of; more may come to light."""
        return 1 if self._folders is None else len(self._folders) + len(self._strays)

    def step(self, index: Index, room: int) -> int:
        """Look at one file without a row, or through one folder; what is left then. At 0 all were
        looked at; the next step begins with what could not be done.

        Files are adopted as far as all together have no more than ``room`` bytes. Raises OSError,
        sqlite3.Error.
        """
        if self._folders is None:
            self._folders = deque(sorted(index.shards() | set(shards(self._shelf.folder))))
        if not self.left:
            self._folders.extend(sorted(self._shelf.late))
            self._shelf.late.clear()
        if self._strays:
            self._take(index, self._strays.popleft(), room)
        elif self._folders:
            self._look_through(index, *self._folders.popleft())
        return self.left

    def _look_through(self, index: Index, fingerprint: str, shard: str) -> None:
        folder = self._shelf.folder / fingerprint / shard
        listed = index.keys(fingerprint, shard)
        there = {path.stem: path for path in blocks_in(folder)}
        for key in sorted(listed - there.keys()):
            row = index.get(fingerprint, key)
            if row is not None:
                self._shelf.drop(index, row)
        self._strays.extend(there[key] for key in sorted(there.keys() - listed))

    def _take(self, index: Index, path: Path, room: int) -> None:
        """Adopt it if it is a whole block nobody else holds, and there is room; else sweep it."""
        if index.get(path.parent.parent.name, path.stem) is not None:
            return  # written since it was seen
        try:
            row = self._row_of(path, min(room - index.num_bytes(), _LARGEST))
        except FileNotFoundError:
            return
        except (OSError, Damaged) as error:
            if damage(error) is None:
                self._shelf.left_behind(path.parent.parent.name, path.stem)
                return
        else:
            if index.covering(row.fingerprint, row.parent, row.ids) is None:
                self._shelf.add(index, row)
                self._shelf.no_stray(row.num_bytes)
                self.adopted += 1
                return
        size = self._shelf.files.size(path)
        try:
            self._shelf.files.remove(path)
        except OSError as error:  # no reason to write nothing
            self._shelf.left_behind(path.parent.parent.name, path.stem, error)
            return
        self._shelf.doomed.discard(path)
        self._shelf.no_stray(size)
        self.swept += 1

    def _row_of(self, path: Path, most: int) -> Row:
        content, parent = stray_at(self._shelf, path, most)
        modified = path.stat()
        return Row(
            fingerprint=content.fingerprint,
            parent=parent,
            ids=content.ids,
            key=path.stem,
            start=content.start,
            num_bytes=modified.st_size,
            tick=_OLDER_THAN_ANY + modified.st_mtime_ns,
            used=modified.st_mtime,
            children=0,
        )


def stray_at(shelf: Shelf, path: Path, most: int = _LARGEST) -> tuple[Content, str]:
    """A block that may stay though it has no row, and the key of the one before it. Raises OSError;
    Damaged also for one that lies under another's name, or that had to go.
    """
    if path in shelf.doomed:
        raise Damaged("it had to go")
    content = unpack(shelf.files.read(path, 0, most))
    parent, key = place_of(shelf, content)
    if (content.fingerprint, key) != (path.parent.parent.name, path.stem):
        raise Damaged("it lies under another's name")
    return content, parent


def strays(shelf: Shelf, fingerprint: str, shard: str, index: Index) -> list[Path]:
    """The files of one folder that have no row. Raises OSError, sqlite3.Error."""
    listed = index.keys(fingerprint, shard)
    found = blocks_in(shelf.folder / fingerprint / shard)
    return [path for path in found if path.stem not in listed]


def blocks_in(folder: Path) -> list[Path]:
    """What lies there under a block's name. Raises OSError, but not where there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []


def count_strays(shelf: Shelf, index: Index) -> int:
    """Bytes of files that have no row, those half written included. Raises OSError, sqlite3.Error;
    reads no file, but asks for the size of each.
    """
    every = [path for each in shards(shelf.folder) for path in strays(shelf, *each, index)]
    every += (shelf.folder / "tmp").glob("*")
    return sum(shelf.files.size(path) for path in every)


def remove_strays(shelf: Shelf, paths: list[Path], goes: Callable[[str, bytes], bool]) -> bool:
    """Delete those that ``goes`` says of, by fingerprint and path, and those that are no blocks.

    False: one could not be read at this moment. Raises OSError.
    """
    all_seen, gone = True, False
    for path in paths:
        try:
            content, _ = stray_at(shelf, path)
            if not goes(content.fingerprint, content.path):
                continue
        except (OSError, Damaged) as error:
            if damage(error) is None:
                all_seen = False
                continue
        shelf.files.remove(path)
        shelf.doomed.discard(path)
        gone = True
    if gone:
        shelf.files.sync_folder(paths[0].parent)
    return all_seen


def shards(folder: Path, *, strict: bool = False) -> Iterable[tuple[str, str]]:
    """(fingerprint, shard) of all folders with files; ``strict``: OSError for one that is closed
    to us, which is left out else.
    """
    for path in folder.iterdir():
        if path.name != "tmp" and path.is_dir():
            try:
                found = [each.name for each in path.iterdir()]
            except OSError:
                if strict:
                    raise
                continue
            yield from ((path.name, name) for name in found if _SHARD.fullmatch(name))


def place_of(shelf: Shelf, content: Content) -> tuple[str, str]:
    """(parent, key) by its own ids; raises Damaged for a place where no block can be."""
    size = shelf.block_tokens
    if content.start % size or not 0 < len(content.ids) <= size * ID_BYTES:
        raise Damaged("its place is no block's")
    *_, (_, parent, ids) = shelf.pieces(content.path)
    return parent, shelf.key_of(parent, ids)


def wrong(shelf: Shelf, row: Row) -> str | None:
    """Why the block that is listed as ``row`` can't be used; None: it can, or can't be told now."""
    try:
        content = shelf.content(row.fingerprint, row.key, row.num_bytes)
        if (*place_of(shelf, content), content.start, content.ids) != (
            row.parent,
            row.key,
            row.start,
            row.ids,
        ):
            return "it is of another place"
    except (OSError, Damaged) as error:
        return damage(error)
    return None


def read_all(
    shelf: Shelf, progress: Callable[[int, int], None]
) -> tuple[int, int, list[tuple[str, str]]]:
    """Reads every file that is listed: whole blocks, their bytes, and (key, why) of what was bad
    and is gone. Others may write and evict meanwhile.
    """
    rows = shelf.rows()
    blocks = size = 0
    bad: list[tuple[str, str]] = []
    for done, row in enumerate(rows, 1):
        if wrong(shelf, row) is None:
            blocks, size = blocks + 1, size + row.num_bytes
        else:
            with shelf.work() as index:
                if index is None or index.get(row.fingerprint, row.key) is None:
                    pass
                elif (why := wrong(shelf, row)) == GONE:
                    shelf.drop(index, row)  # a kill between file and row is no damage
                elif why is not None:
                    shelf.drop_bad(index, row, why)
                    bad.append((row.key, why))
        progress(done, len(rows))
    return blocks, size, bad


def in_order_of_going(rows: list[Row]) -> list[Row]:
    """As eviction would take them, leaf-first, if nothing was used in between."""
    by_key = {(row.fingerprint, row.key): row for row in rows}
    children = Counter((row.fingerprint, row.parent) for row in rows)
    leaves = [(row.tick, at, row) for at, row in enumerate(rows) if not children[_name(row)]]
    heapq.heapify(leaves)
    order: list[Row] = []
    while leaves:
        row = heapq.heappop(leaves)[-1]
        order.append(row)
        parent = (row.fingerprint, row.parent)
        children[parent] -= 1
        if not children[parent] and parent in by_key:
            heapq.heappush(leaves, (by_key[parent].tick, len(order) + len(rows), by_key[parent]))
    return order


def _name(row: Row) -> tuple[str, str]:
    return row.fingerprint, row.key


def check(shelf: Shelf, index: Index, *, files: bool) -> None:
    """Recount by brute force, for tests; ``files``: with the folder too, which holds no damage."""
    rows = index.rows()
    named = {_name(row): row for row in rows}
    assert len(named) == len(rows)
    children = Counter((row.fingerprint, row.parent) for row in rows)
    totals: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        assert row.children == children[_name(row)], f"{row.key}: {row.children} children"
        assert row.children == 0 or row.num_tokens == shelf.block_tokens
        assert row.start % shelf.block_tokens == 0
        assert (row.start == 0) == (row.parent == ROOT)
        assert row.key == shelf.key_of(row.parent, row.ids)
        blocks, tokens, size = totals.get(row.fingerprint, (0, 0, 0))
        totals[row.fingerprint] = (blocks + 1, tokens + row.num_tokens, size + row.num_bytes)
    assert index.totals() == totals
    assert index.num_bytes() == sum(size for _, _, size in totals.values())
    runs = sorted((row.fingerprint, row.parent, row.ids) for row in rows)
    for one, other in pairwise(runs):
        assert one[:2] != other[:2] or not other[2].startswith(one[2]), "one begins with another"
    if files:
        there = {
            (fingerprint, path.stem)
            for fingerprint, shard in shards(shelf.folder)
            for path in (shelf.folder / fingerprint / shard).iterdir()
        }
        assert there == named.keys(), f"files and rows differ: {there ^ named.keys()}"
        assert not list((shelf.folder / "tmp").iterdir())
