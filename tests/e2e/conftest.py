"""The sources all these daemons run, the tiny models they load, and homes to do it in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.conftest import copy_of_this_build
from tests.e2e.homes import Home, Shell
from tests.e2e.hooked import Hooked
from tests.e2e.tiny_models import converted

EXACT = ("--exact", "--temp", "0", "--max-tokens", "8")  # a later flag wins
POOL = "4096tok"  # with RADCHAT_CHECK every step recounts it

Homes = Callable[..., Home]
Shells = Callable[..., Shell]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the daemons and commands of these tests run."""
    return copy_of_this_build(tmp_path_factory)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, converted."""
    return converted(tmp_path_factory.mktemp("tiny") / "models", "tiny")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, of other weights, whose answers end by themselves: with a ``e`` or a ``t``."""
    folder = tmp_path_factory.mktemp("other") / "models"
    return converted(folder, "other", seed=1, eos=("e", "t"))


@pytest.fixture
def homes(sources: str, tiny: Path) -> Iterator[Homes]:
    """Homes with the tiny model in them, and no daemon yet."""
    made: list[Home] = []

    def make(models: dict[str, Path] | None = None, **env: str) -> Home:
        settings = {"RADCHAT_KV_DEVICE": POOL, "RADCHAT_CHECK": "1"}
        home = Home(sources, {"tiny": tiny} if models is None else models, **settings | env)
        made.append(home)
        return home

    yield make
    for home in made:
        home.close()


@pytest.fixture
def hooked(homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    home = homes()  # kept for 30 minutes, idle for two hours
    for name, value in home.env.items():  # of the daemon that this process starts
        monkeypatch.setenv(name, value)
    made = Hooked(home, tmp_path)
    yield made
    if made.is_holding:
        made.release()
    home.stop()


@pytest.fixture
def home(homes: Homes) -> Home:
    return homes()


@pytest.fixture
def shell(home: Home) -> Shell:
    """A terminal in a home of its own."""
    return Shell(home, "1", EXACT)


@pytest.fixture(scope="module")
def shared(sources: str, tiny: Path, other: Path) -> Iterator[Home]:
    """A home whose daemon serves all tests of a module that leave it as it was. What its cache has
    forgotten is gone: its KV is not kept on disk.
    """
    home = Home(
        sources,
        {"tiny": tiny, "other": other},
        RADCHAT_KV_DEVICE=POOL,
        RADCHAT_CHECK="1",
        RADCHAT_PERSIST="off",
    )
    yield home
    home.close()


_names = itertools.count(100)


@pytest.fixture
def terminal(shared: Home) -> Shell:
    """A terminal of the shared home, its daemon running and idle, its cache empty."""
    shell = Shell(shared, str(next(_names)), EXACT)
    shell.call("cache.clear", pinned=True)
    return shell
