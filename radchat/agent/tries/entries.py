"""The journal as a try sees it: what its calls did is in that of the session, at once; what files
they changed in the copy is kept here, and comes into the session's journal if the try wins.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.agent.files.rewind import Past, Rewound, rewind_to
from radchat.agent.files.states import State
from radchat.agent.types import Entries


@dataclass
class TryEntries:
    """``lock``: one for all tries of a session."""

    session: Entries
    lock: threading.Lock
    own: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Bytes of files are by their hash: all tries and the session share them."""
        return self.session.folder

    def append(self, entry: Mapping[str, Any]) -> None:
        if "before" in entry or "checkpoint" in entry:
            self.own.append(dict(entry))
            return
        with self.lock:
            self.session.append(entry)

    def read(self) -> list[dict[str, Any]]:
        return list(self.own)

    def changed(self) -> list[str]:
        """Files, as the calls of this try have left them otherwise than they were."""
        past = Past.read(self)
        before: dict[str, State] = {}
        for call in past.order:
            for change in past.changes[call]:
                before.setdefault(change.path, change.before)
        after = past.now()
        return sorted(
            path
            for path, state in after.items()
            if state != before[path] and "folder" not in (state.kind, before[path].kind)
        )


def bring(root: Path, won: TryEntries) -> Rewound:
    """A try's changes into the folder: its calls count as done there, each one for itself, so that
    /rewind goes back to any of its steps. What somebody changed meanwhile is left, and named.
    """
    session = won.session
    done = Past.read(session).done
    calls = []
    for entry in won.own:
        if "checkpoint" in entry:
            session.append({**entry, "elsewhere": True})
            calls.append(str(entry["checkpoint"]))
    return rewind_to(root, session, [*done, *calls])
