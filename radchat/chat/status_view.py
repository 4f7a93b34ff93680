"""What `daemon status` and /status say alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.text import one_line


def device_rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where models run, and by what and why; a dash before the first is loaded."""
    executor = str(status.get("executor") or "-")
    if why := status.get("executor_why"):
        executor += f": {one_line(str(why))}"
    if refused := status.get("refused"):
        return [("device", f"none: {one_line(refused['message'])}")]
    return [("device", str(status.get("device") or "-")), ("executor", executor)]
