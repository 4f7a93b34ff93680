"""Tools of a try: the model says and reads the folder's own path, the copy is what they work in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radchat.agent.types import Call, Context, Kind, Outcome, Preview, Tool

COMMANDS = ("command", "code")  # arguments in which a path may stand anywhere


def here(text: str, origin: Path, copy: Path) -> str:
    """With the folder's path, wherever it stands in it, as the copy's."""
    path = re.compile(rf"{re.escape(str(origin))}(?![\w.-])")
    return path.sub(lambda _found: str(copy), text)


@dataclass(frozen=True, slots=True)
class TriedTool:
    inner: Tool
    origin: Path
    copy: Path
    rewrites: bool  # commands; a sandbox that has the copy at the folder's path needs none of it

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def description(self) -> str:
        return self.inner.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.inner.parameters

    @property
    def kind(self) -> Kind:
        return self.inner.kind

    @property
    def is_poll(self) -> bool:
        return self.inner.is_poll

    def preview(self, call: Call, context: Context) -> Preview:
        found = self.inner.preview(self._here(call), context)
        if found.error is not None:
            return replace(found, error=self._told(found.error))
        return found

    def run(self, call: Call, context: Context, preview: Preview) -> Outcome:
        outcome = self.inner.run(self._here(call), context, preview)
        data = outcome.data
        if data is not None:
            data = data.replace(bytes(self.copy), bytes(self.origin))
        return replace(outcome, text=self._told(outcome.text), data=data)

    def _here(self, call: Call) -> Call:
        if not self.rewrites:
            return call
        arguments = {
            name: here(value, self.origin, self.copy)
            if name in COMMANDS and isinstance(value, str)
            else value
            for name, value in call.arguments.items()
        }
        return replace(call, arguments=arguments)

    def _told(self, text: str) -> str:
        return text.replace(str(self.copy), str(self.origin))
