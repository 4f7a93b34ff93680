"""A home with the daemon of hooked_daemon.py in it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from radchat.client import Client
from tests.e2e.homes import Home
from tests.waiting import wait_until

HOOKED = Path(__file__).with_name("hooked_daemon.py")
HOURS = 3600.0


class Hooked:
    """A home whose daemon's clocks are set, and answers held, by the test."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self._folder = home, folder
        self._command = (sys.executable, "-P", str(HOOKED), str(folder))
        self.where = {"terminal": "%time", "folder": str(home.root)}
        self.set()

    def set(self, *, awake_h: float = 0.0, boot_h: float = 0.0, wall_h: float = 0.0) -> None:
        offsets = {"awake": awake_h * HOURS, "boot": boot_h * HOURS, "wall": wall_h * HOURS}
        part = self._folder / "clocks.part"
        part.write_text(json.dumps(offsets))
        part.replace(self._folder / "clocks")

    def answers_by(self, script: str) -> None:
        """From the next daemon on its models answer by ``module:function`` (tests/scripted.py)."""
        (self._folder / "script").write_text(script)

    def dies_at(self, moment: str) -> None:
        """The daemon that runs, or the next one, is killed there: ``MOMENT N``."""
        part = self._folder / "die.part"
        part.write_text(moment)
        part.replace(self._folder / "die")

    @contextlib.contextmanager
    def waits_at(self, moment: str, what: Callable[[], None]) -> Iterator[None]:
        """The daemon waits there, ``MOMENT N``, from when ``what`` has brought it there."""
        wait, waits = self._folder / "wait", self._folder / "waits"
        wait.write_text(moment)
        what()
        try:
            wait_until(waits.exists)
            waits.unlink()
            yield
        finally:
            wait.unlink()

    def hold(self, moment: str) -> None:
        """From now on answers wait there (hooked_daemon.py)."""
        part = self._folder / "hold.part"
        part.write_text(moment)
        part.replace(self._folder / "hold")

    def release(self) -> None:
        (self._folder / "hold").unlink()

    @property
    def is_holding(self) -> bool:
        return (self._folder / "hold").exists()

    @property
    def num_arrived(self) -> int:
        """Answers that have come to where they are held."""
        return len(list(self._folder.glob("at-*")))

    def client(self) -> Client:
        client = Client.connect(self.home.places, command=self._command)
        self.home.pids.add(self.home.pid)
        return client

    def stream(self, text: str, tokens: int, **named: Any) -> Any:
        options = {"temperature": 0, "max_tokens": tokens}
        asked = {"text": text, "dtype": "fp32", "options": options, "where": self.where}
        return self.client().stream("generate", **asked, **named)

    def ask(self, text: str, **named: Any) -> dict[str, Any]:
        with self.stream(text, 4, **named) as events:
            return dict(list(events)[-1].data["branches"][0])

    def model(self) -> str | None:
        model: str | None = self.home.status()["model"]
        return model
