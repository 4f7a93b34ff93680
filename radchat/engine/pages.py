"""Which pages of the KV pool are free, and how many owners the others have.

Knows nothing of tokens, nodes or requests. Two ideas: nearly every page has exactly one owner, so
only the extra ones are counted; and free pages are kept as maximal runs, filed by length, so that
neither taking nor releasing ever looks at the whole pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice, pairwise

NUM_TRIED = 8  # runs of about the right length looked at before a longer one is cut


class PageAllocator:
    """Pages 1 … ``num_pages`` - 1; kernels write padding into page 0, so nobody ever gets it."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 1, "a pool needs a page besides page 0"
        self.num_pages = num_pages
        self.free = num_pages - 1
        self.extra: dict[int, int] = {}  # page -> owners beyond the first; absent = none
        self._end_of: dict[int, int] = {}  # free runs [start, end): by start …
        self._start_of: dict[int, int] = {}  # … and by end, to join neighbours
        # starts of runs by the bit length of their length; a dict, for a fixed order
        self._classes: list[dict[int, None]] = [{} for _ in range(num_pages.bit_length() + 1)]
        self._add_run(1, num_pages)

    def take(self, num_pages: int, after: int = 0) -> list[int]:
        """Take free pages: those behind page ``after``, else one run, else few runs."""
        assert num_pages <= self.free, f"{num_pages} pages wanted, {self.free} free"
        pages: list[int] = []
        start = after + 1
        while (num_short := num_pages - len(pages)) > 0:
            if pages or start not in self._end_of:
                start = self._pick(num_short)
            end = self._remove_run(start)
            stop = min(end, start + num_short)
            pages.extend(range(start, stop))
            if stop < end:
                self._add_run(stop, end)
        self.free -= num_pages
        return pages

    def add_owner(self, page: int) -> None:
        self.extra[page] = self.extra.get(page, 0) + 1

    def release(self, pages: Iterable[int]) -> int:
        """Each page loses an owner; one without any other is free. Returns how many became so."""
        extra = self.extra
        num_freed = 0
        start = end = 0  # the run being collected
        for page in pages:
            if page in extra:
                extra[page] -= 1
                if not extra[page]:
                    del extra[page]
                continue
            num_freed += 1
            if page != end:
                if start:
                    self._free_run(start, end)
                start = page
            end = page + 1
        if start:
            self._free_run(start, end)
        self.free += num_freed
        return num_freed

    def free_runs(self) -> list[tuple[int, int]]:
        """The free pages as runs [start, end), in order."""
        return sorted(self._end_of.items())

    def check(self, owners: Mapping[int, int]) -> None:
        """Compare with a recount: ``owners`` of every page that has any."""
        assert self.extra == {p: n - 1 for p, n in owners.items() if n > 1}, "extra owners"
        runs = self.free_runs()
        assert all(a[1] < b[0] for a, b in pairwise(runs)), "runs not joined"
        free = list(chain.from_iterable(range(*run) for run in runs))
        assert free == [p for p in range(1, self.num_pages) if p not in owners], "free pages"
        assert self.free == len(free), "free count"
        assert self._start_of == {end: start for start, end in runs}, "ends of runs"
        for size_class, starts in enumerate(self._classes):
            filed = [s for s, e in runs if (e - s).bit_length() == size_class]
            assert sorted(starts) == filed, f"runs filed under {size_class} bits"

    def _pick(self, num_pages: int) -> int:
        """The start of a run that holds ``num_pages``, if one is found; else of a longest."""
        size_class = num_pages.bit_length()
        for start in islice(reversed(self._classes[size_class]), NUM_TRIED):
            if self._end_of[start] - start >= num_pages:
                return start
        longer = self._classes[size_class + 1 :]
        no_longer = self._classes[size_class::-1]
        return next(next(reversed(starts)) for starts in chain(longer, no_longer) if starts)

    def _free_run(self, start: int, end: int) -> None:
        before = self._start_of.get(start)
        if before is not None:
            self._remove_run(before)
            start = before
        if end in self._end_of:
            end = self._remove_run(end)
        self._add_run(start, end)

    def _add_run(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        self._classes[(end - start).bit_length()][start] = None

    def _remove_run(self, start: int) -> int:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._classes[(end - start).bit_length()][start]
        return end
