"""A store in a folder of its own, and a talk in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radchat_sessions.store import Store
from tests.sessions.talk import Clock, Talk


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_store(home: Path, clock: Clock) -> Iterator[Callable[[], Store]]:
    """Opens the same store again and again; the fsyncs are tested elsewhere."""
    opened: list[Store] = []

    def open_it() -> Store:
        store = Store.open(
            home / "radchat.db", running_dir=home / "running", clock=clock, synchronous="OFF"
        )
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    return open_store()


@pytest.fixture
def talk(store: Store) -> Talk:
    return Talk(store)
