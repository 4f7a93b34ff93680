"""JSON lines that say of which try they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radchat.agent.lines import JsonLines


@dataclass
class TryLines(JsonLines):
    number: int = 0

    def line(self, kind: str, data: Mapping[str, Any]) -> None:
        super().line(kind, {"try": self.number, **data})
