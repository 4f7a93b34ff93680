"""What one of doctor's checks has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from radchat.cli.common import Cli

Status = Literal["ok", "note", "warning", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check saw. ``remedy``: a command, or a sentence; only ``broken`` fails the doctor."""

    name: str
    status: Status
    text: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "text": self.text,
            "remedy": self.remedy,
        }


Check = Callable[["Cli"], Iterator[Finding]]


def nearest(path: Path) -> Path:
    """The path, or what there is of it."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))
