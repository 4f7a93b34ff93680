"""What a child process has of its parent (models/child.py): whom to tell, and when to end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

Say = Callable[[dict[str, Any]], None]


def say_to_parent() -> Say:
    """Take stdout for JSON lines to the parent; libraries that print are led to stderr."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        lines.write(json.dumps(value) + "\n")

    return say


def end_with_parent() -> None:
    """From now on, this process ends when its parent has, however that ended.

    stdin is a pipe to which nothing is written: its end is the parent's.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()
