"""What is asked of an engine besides requests: of its cache, and of its KV on disk.

Between two steps, on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from radchat.engine.disk_tier import DiskTier
from radchat.engine.pins import PinsFull
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Ids, Tiers
from radchat.errors import InvalidInput


class Outside:
    cache: PrefixCache
    _disk: DiskTier | None

    # -- the cache ----------------------------------------------------------------------------

    def probe(self, ids: Ids, namespace: str = "") -> int:
        """How many of ``ids`` are cached from the start; changes nothing."""
        return self.cache.match_len(ids, namespace)

    def forget(self, ids: Ids, start: int) -> int:
        """Evict what is cached of ``ids`` from ``start`` on; returns tokens freed."""
        return self.cache.forget(ids, start) * self.cache.page_size

    def forgettable(self, paths: Sequence[tuple[Ids, int]]) -> int:
        """Tokens that ``forget`` would free of these paths, one after the other."""
        return self.cache.forgettable(paths) * self.cache.page_size

    def clear(self) -> int:
        """Evict all that no running request relies on and nothing is pinned; pages freed."""
        return self.cache.clear()

    def pin(self, name: str, ids: Ids) -> None:
        """Keep what is, or will be, cached of ``ids``, in the place of a pin of this name.

        Raises InvalidInput with both numbers where that is more than may be pinned.
        """
        try:
            self.cache.pin(name, ids)
        except PinsFull as error:
            size = self.cache.page_size
            want, limit = error.num_pages * size, error.limit * size
            raise InvalidInput(
                f"that would pin {want:,} tokens, and at most {limit:,} may be (a quarter of the "
                "KV pool): unpin something, or pin an earlier message",
                tokens=want,
                limit=limit,
            ) from error

    # -- the disk -----------------------------------------------------------------------------

    @property
    def has_disk(self) -> bool:
        """Whether KV is kept on disk. Without, all of this does nothing and says so."""
        return self._disk is not None

    def probe_tiers(self, ids: Ids) -> Tiers:
        """Where the KV of ``ids`` is; changes nothing."""
        return self._disk.probe(ids) if self._disk else Tiers(self.probe(ids), 0)

    def load_seconds(self, tokens: int) -> float:
        """What restoring so many tokens would take, by the reads measured."""
        return self._disk.load_seconds(tokens) if self._disk else 0.0

    def keep(self, name: str, ids: Ids) -> None:
        """Have a path on disk, as far as it is cached, in the place of the one of that name.

        It is forgotten when that has been done, and where too many wait for a disk: then each turn
        names its own again. Names are session/branch.
        """
        if self._disk:
            self._disk.saving.keep(name, ids)

    def unkeep(self, name_prefix: str) -> None:
        """Forget the paths whose names begin so, and what of them is still to be written.

        The one block that is being written just now still is: ``drain`` waits for it.
        """
        if self._disk:
            self._disk.saving.unkeep(name_prefix)

    def save(self, now: bool = False, only: str | None = None) -> float | None:
        """Copy the next block of a kept path, for the disk; of the path with the name ``only``.

        Returns in how many seconds to ask again: 0 after a copy; up to LOOK_S while some are being
        written; more where the store has refused some (then ask with ``now``, or later). None: all
        that is cached of these paths is on disk. For an engine without work, or between its steps.
        """
        return self._disk.saving.save(now=now, only=only) if self._disk else None

    def drain(self, timeout_s: float) -> bool:
        """Wait until what is copied for the disk is written, or refused. False: not in time."""
        return self._disk is None or self._disk.saving.drain(timeout_s)

    def close(self) -> None:
        """End the threads. What is not written by now is not kept. May take as long as CLOSE_S."""
        if self._disk:
            self._disk.close()
