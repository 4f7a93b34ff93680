"""Tools run by hand: a folder, a context, calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radchat.agent.files.workspace import Folder
from radchat.agent.tools import schema
from radchat.agent.tools.outputs import KeptOutputs
from radchat.agent.tools.registry import BUILT_IN
from radchat.agent.types import Call, Context, Outcome, Preview, Tool

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in BUILT_IN}


@dataclass
class Entries:
    """A journal in memory, with a folder."""

    folder: Path
    lines: list[str] = field(default_factory=list)

    def append(self, entry: Mapping[str, Any]) -> None:
        self.lines.append(json.dumps(entry))

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class Hands:
    """Calls tools as the loop does, everything permitted."""

    def __init__(self, root: Path, alias: Path | None = None) -> None:
        self.folder = Folder.of(root, alias)
        self.context = Context(self.folder, KeptOutputs(root.parent / "outputs"))
        self._ids = itertools.count()

    def preview(self, name: str, **arguments: Any) -> Preview:
        return TOOLS[name].preview(Call(f"c{next(self._ids)}", name, arguments), self.context)

    def call(self, name: str, **arguments: Any) -> Outcome:
        call = Call(f"c{next(self._ids)}", name, arguments)
        assert schema.problem(call, TOOLS[name].parameters) is None
        preview = TOOLS[name].preview(call, self.context)
        if preview.error is not None:
            return Outcome(preview.error, "error")
        return TOOLS[name].run(call, self.context, preview)
