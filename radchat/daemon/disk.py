"""The disk tier as the daemon has it: one store of KV blocks for all models, or why there is none.

Nothing here loads a model: which folder of the store is a model's is told by its files. The store
may be asked from any thread, and a disk may hang: the event loop asks it nothing, and what is asked
for it runs on threads that the end of the process does not wait for.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from radchat.config import MOST_DISK_BYTES, Config, kv_disk_default
from radchat.daemon.handing import beside
from radchat.daemon.reuse import NO_EXCUSE, Excuse
from radchat.errors import InvalidInput, RadchatError
from radchat.paths import Places
from radchat.protocol import Event
from radchat_sessions.errors import SaveFailed
from radchat_sessions.kv_store import KVFolder, KVStore, KVUnavailable

if TYPE_CHECKING:
    from radchat_sessions.kv_store import KVStats

T = TypeVar("T")
log = logging.getLogger(__name__)

DTYPES = ("bf16", "fp32", "int4")  # each has KV of its own, of one or more kinds
NAMING_FILES = ("radchat.json", "config.json", "tokenizer.json")  # what tells a folder's content
TIDY_EVERY_S = 30.0  # after all was in order
OFF = "KV is not kept on disk"


def kept_name(session: str, branch: str) -> str:
    """What the engine calls the path of a branch; no other's name begins with it."""
    return f"{session}/{branch}\n"


class Disk:
    """``store`` is None where KV is not kept, and ``why_not`` says why, for the user. ``opened`` is
    there also where that was chosen and KV lies there from before: to delete of it.
    """

    def __init__(self, places: Places, config: Config) -> None:
        self._places, self._config = places, config
        self.store: KVStore | None = None
        self.opened: KVStore | None = None
        off = "persist = off" if config.persist == "off" else None
        off = off or ("kv_disk = 0" if config.kv_disk == 0 else None)
        self.why_not: str | None = None if off is None else f"{OFF}: {off}"
        self._is_told = off is not None  # who has chosen it knows
        self._names: dict[tuple[Path, str], tuple[tuple[int, ...], list[str]]] = {}
        self._num_bad, self._bad_at = 0, 0.0  # damaged blocks seen dropped, and when the last was
        self._tidy_at = 0.0

    @property
    def keeps_unnamed(self) -> bool:
        """Paths without a branch, too."""
        return self._config.persist == "always"

    # -- its life --------------------------------------------------------------------------------

    async def open(self) -> None:
        await beside(self._open)

    def _open(self) -> None:
        config, folder = self._config, self._places.kv
        if self.why_not is not None and not folder.is_dir():
            return
        try:
            self.opened = KVStore.open(
                folder,
                budget=MOST_DISK_BYTES if config.kv_disk is None else config.kv_disk,
                hourly=None if self.keeps_unnamed else config.kv_disk_hourly,
            )
        except KVUnavailable as error:
            self.why_not = self.why_not or f"{OFF}: {error.message}"
            log.warning("%s", error.message)
            return
        if (
            config.kv_disk is None and self.why_not is None
        ):  # what KV has taken already counts as free
            held = self.opened.stats().bytes
            self.opened.budget = kv_disk_default(shutil.disk_usage(folder).free + held)
        self.store = None if self.why_not else self.opened

    async def close(self) -> None:
        opened, self.opened, self.store = self.opened, None, None
        self.why_not = self.why_not or f"{OFF}: the daemon is stopping"
        if opened is not None:
            await beside(opened.close)

    async def tidy(self) -> None:
        """Some idle work, when there is any; nothing goes of what lies there from before KV was
        turned off: that may have been for once.
        """
        if self.store is None or time.monotonic() < self._tidy_at:
            return
        if not await beside(self.store.tidy):
            self._tidy_at = time.monotonic() + TIDY_EVERY_S

    async def saving(self, save: Callable[[], Awaitable[T]]) -> T:
        """KV goes before conversations: where the disk is full, room is made, and ``save`` tried
        once more.
        """
        try:
            return await save()
        except RadchatError as error:
            if not isinstance(error.__cause__, SaveFailed) or not await self._make_room():
                raise
        return await save()

    async def _make_room(self) -> bool:
        opened = self.opened
        if opened is None:
            return False

        def shrink() -> bool:
            before = opened.stats().bytes
            opened.make_room()
            return opened.stats().bytes < before

        return await beside(shrink)

    def tell_once(self) -> Event | None:
        """That KV is not kept, unless that was chosen: once in a daemon's life."""
        if self._is_told or self.why_not is None:
            return None
        self._is_told = True
        return Event("notice", {"text": self.why_not, "code": "persist_off"})

    def require_opened(self) -> KVStore:
        """What lies there, kept on or not."""
        if self.opened is None:
            raise InvalidInput(self.why_not or OFF)
        return self.opened

    def require(self) -> KVStore:
        """Where KV is written and read."""
        if self.store is None:
            raise InvalidInput(self.why_not or OFF)
        return self.store

    def holds_any(self) -> bool:
        """Whether there is any block, also where none is kept, or another home's. Any thread."""
        try:
            found = [each for each in self._places.kv.iterdir() if each.is_dir()]
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return any(any(each.glob("*" if each.name == "tmp" else "??/*")) for each in found)

    def may_hold(self) -> str:
        """Where KV may be left that had to go, and what to do about it."""
        where = self._places.kv
        if self.opened is None:
            return (
                f"KV of it may be left in {where}: {self.why_not}; removing that folder, when "
                "nobody uses it, is always safe"
            )
        trouble = self.opened.trouble or "not all of it could be read"
        return (
            f"KV of it may be left in {where}: {trouble}; when that is mended, radchat cache clear "
            "--disk deletes all of it"
        )

    # -- whose blocks ----------------------------------------------------------------------------

    def blocks(self, fingerprint: str) -> KVFolder | None:
        return None if self.store is None else self.store.of(fingerprint)

    def of_model(self, folder: Path, dtype: str | None) -> KVFolder | None:
        """The blocks of a converted model in a dtype; where none is known, or it has KV of several
        kinds, of the first that has any. Reads small files once, as long as they stay as they are.
        """
        if self.store is None:
            return None
        try:
            names = self._fingerprints(folder, DTYPES if dtype is None else (dtype,))
            held = self.store.stats().by_fingerprint if len(names) > 1 else {}
            some = next((name for name in names if name in held), dtype and names[0])
            return self.store.of(some) if some else None
        except (RadchatError, OSError, ValueError):  # the model is broken: nothing is its own
            return None

    def names_of(self, folder: Path) -> list[str]:
        """The fingerprints of a converted model, of all dtypes; none of one that is broken."""
        try:
            return self._fingerprints(folder, DTYPES)
        except (RadchatError, OSError, ValueError):
            return []

    def _fingerprints(self, folder: Path, dtypes: Iterable[str]) -> list[str]:
        from radchat.engine.fingerprint import KINDS, fingerprint

        state = tuple((folder / name).stat().st_mtime_ns for name in NAMING_FILES)
        found: list[str] = []
        for dtype in dtypes:
            known = self._names.get((folder, dtype))
            if known is None or known[0] != state:
                names = [fingerprint(folder, dtype, kind) for kind in KINDS.get(dtype, ())]
                known = self._names[folder, dtype] = state, names
            found += known[1]
        return found

    # -- what is told ----------------------------------------------------------------------------

    def excuse(self, since: float, *, is_ephemeral: bool = False) -> Excuse:
        """Of tokens that were computed at ``since`` (wall clock) and are on no tier. Any thread."""
        if is_ephemeral:  # never on disk: nothing to excuse
            return NO_EXCUSE
        if self.store is None:
            why = self.why_not or OFF
            return Excuse(f" ({why})", why)
        nothing, reason = "nothing of it is on disk", None
        if since < self.store.made_at:
            reason = "the KV folder is new"
        elif since < self._dropped_at():
            reason = "a damaged block was dropped"
        told = f"{nothing} ({reason})" if reason else nothing
        return Excuse(f", and {told}", reason or nothing)

    def _dropped_at(self) -> float:
        """About when the last damaged block was dropped; 0 for never."""
        if self.store is not None and self.store.num_bad > self._num_bad:
            self._num_bad, self._bad_at = self.store.num_bad, time.time()
        return self._bad_at

    async def left(self) -> str:
        """Why something was not written."""
        if self.store is None:
            return self.why_not or OFF
        if self.store.trouble is not None:
            return self.store.trouble
        stats = await beside(self.store.stats)
        if stats.hourly is not None and stats.written_bytes >= stats.hourly:
            return (
                f"{stats.written_bytes:,} bytes were written in the last hour, and kv_disk_hourly "
                f"is {stats.hourly:,}"
            )
        return "there was no time or no room for it"

    async def tier(self) -> dict[str, Any] | None:
        """The whole tier in numbers; None where there is none."""
        return None if self.store is None else tier_json(await beside(self.store.stats))

    def about(self) -> dict[str, Any]:
        return {
            "persist": self._config.persist,
            "persist_off": self.why_not,
            "disk_trouble": None if self.store is None else self.store.trouble,
        }


def tier_json(stats: KVStats) -> dict[str, Any]:
    return {
        "tokens": stats.tokens,
        "bytes": stats.bytes,
        "budget_bytes": stats.budget,
        "blocks": stats.blocks,
        "free_bytes": stats.free_bytes,
        "written_bytes": stats.written_bytes,
        "hourly_bytes": stats.hourly,
    }
