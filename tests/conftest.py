"""What every test has: a home of its own, and the real model where it is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from radchat import client
from radchat.errors import RadchatError
from radchat.models.registry import resolve
from radchat.paths import Places

REPOSITORY = Path(__file__).resolve().parents[1]
# Where the real model was fetched to; read now, before any test moves the home.
MODEL_HOME = os.environ.get("RADCHAT_HOME") or str(REPOSITORY / ".demo")

# Ctrl+C is tested, and a shell that puts a whole run in the background has it ignored from then on.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test, and no process one starts, sees the user's sessions, settings or downloads."""
    for name in [name for name in os.environ if name.startswith(("RADCHAT_", "HF_"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "radchat-home"
    monkeypatch.setenv("RADCHAT_HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # other programs' models lie there
    return home


@pytest.fixture(scope="session", autouse=True)
def no_daemon_is_left() -> Iterator[None]:
    """Daemons that this process started have ended, each by its own test, and are reaped."""
    yield
    for one in client._spawned:
        one.process.wait(timeout=60)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the converted SmolLM2-135M. Missing is a failure: these tests run in CI."""
    try:
        return resolve(Places.from_env({"RADCHAT_HOME": MODEL_HOME}), "smollm2-135m").folder
    except RadchatError as error:
        pytest.fail(f"{error.message} (run: make model, or point RADCHAT_HOME at its home)")
