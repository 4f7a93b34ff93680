"""What may be typed, as the daemon, the disk or the models know it: asked for in the background and
remembered, so that no key waits for an answer.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from radchat.errors import RadchatError

SOON_S = 0.05  # what comes so soon is waited for: a menu that does not flicker
MOST_FILES = 10_000  # of a folder; what is listed is sorted and read by a person


@dataclass(frozen=True, slots=True)
class Candidate:
    value: str
    text: str = ""
    shown: str = ""  # in place of the value


# told what all of them begin with; None: nobody can say yet
Source = Callable[[str], Iterable[Candidate] | None]


class Known:
    def __init__(self, sources: Mapping[str, Source], has_come: Callable[[], None]) -> None:
        """``has_come`` is told, from a thread, what came too late for the one who asked."""
        self._sources = sources
        self._has_come = has_come
        self._found: dict[tuple[str, str], list[Candidate]] = {}
        self._asking: set[tuple[str, str]] = set()

    def forget(self) -> None:
        """Something may have changed."""
        self._found.clear()

    def of(self, kind: str, beginning: str = "") -> list[Candidate]:
        key = (kind, beginning)
        if key not in self._found and key not in self._asking and kind in self._sources:
            self._asking.add(key)
            came, is_late = threading.Event(), threading.Event()
            threading.Thread(target=self._ask, args=(key, came, is_late), daemon=True).start()
            if not came.wait(SOON_S):
                is_late.set()
        return self._found.get(key, [])

    def _ask(self, key: tuple[str, str], came: threading.Event, is_late: threading.Event) -> None:
        kind, beginning = key
        try:
            found = self._sources[kind](beginning)
            if found is not None:
                self._found[key] = list(found)
        except (OSError, RadchatError):  # a menu is no place for errors
            self._found[key] = []
        finally:
            self._asking.discard(key)
            came.set()
        if is_late.is_set() and self._found.get(key):
            self._has_come()


def files(folder: str) -> Iterable[Candidate]:
    """Of a folder as it is typed: the names, those of folders with a slash; sorted."""
    try:
        path = Path(folder or ".").expanduser()
    except RuntimeError:  # no such user
        return []
    with os.scandir(path) as found:
        some = itertools.islice(found, MOST_FILES)
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in some]
    return [Candidate(name) for name in sorted(names, key=lambda name: (name.lower(), name))]
