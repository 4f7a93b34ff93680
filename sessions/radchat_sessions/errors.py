"""What can go wrong in the session store. The daemon maps these to radchat's own errors.

StoreError
├── NotFound     no such session, branch, message, label, turn
│   └── Ambiguous    several fit; ``matches`` lists them
├── Refused      a name that can't be, a branch HEAD stands on, an answer still running
│   └── Taken        a name that something else has
├── Unreadable   an import that is not what it says
├── SaveFailed   the disk: full, gone, not writable. Nothing half-written; may be tried again
├── TooNew       a database made by a later radchat
└── Broken       not a database, or damaged
"""

from __future__ import annotations

from collections.abc import Sequence


class StoreError(Exception):
    """The base; ``message`` is one sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(StoreError):
    pass


class Ambiguous(NotFound):
    def __init__(self, message: str, matches: Sequence[str]) -> None:
        super().__init__(message)
        self.matches = tuple(matches)


class Refused(StoreError):
    pass


class Taken(Refused):
    pass


class Unreadable(StoreError):
    pass


class SaveFailed(StoreError):
    pass


class TooNew(StoreError):
    pass


class Broken(StoreError):
    pass
