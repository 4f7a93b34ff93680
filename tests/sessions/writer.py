"""A process that speaks in sessions when it is told to: `python -m tests.sessions.writer DB WHO`.

Reads `SESSION PARENT` lines; answers each with the branch it got and whether main had moved on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from radchat_sessions.store import Store
from tests.sessions.talk import Talk


def main(database: str, who: str) -> None:
    store = Store.open(Path(database))
    for line in sys.stdin:
        session, parent = line.split()
        talk = Talk(store, store.session(session))
        begun = talk.begin(f"from {who}", parent=parent)
        placed = talk.placed(begun)
        talk.finish(begun.answer_ids[0], f"to {who}")
        print(placed.branch, placed.moved_on, flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
