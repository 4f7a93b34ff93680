"""What `radchat run` shows: a run as JSON, the line under it, and the progress of many rows."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from radchat.chat.footer import SEPARATOR, count, counted, seconds
from radchat.chat.text import one_line
from radchat.cli.common import is_terminal

if TYPE_CHECKING:
    from radchat.cli.common import Cli
    from radchat.programs import Program, State

BAR = 20  # columns


def plain(value: Any, note: Callable[[str], None], name: str) -> Any:
    """``value`` of JSON's own kinds: of a state its variables; what JSON has no word for becomes
    text, and is told.
    """
    from radchat.programs import State

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
    elif isinstance(value, Mapping):
        return {str(key): plain(each, note, f"{name}.{key}") for key, each in value.items()}
    elif isinstance(value, State):
        return plain(value.variables, note, name)
    elif isinstance(value, list | tuple):
        return [plain(each, note, f"{name}.{i}") for i, each in enumerate(value)]
    note(f"{name}: JSON has no word for {type(value).__name__} {value!r:.40}: written as text")
    return str(value)


def document(program: Program, state: State, note: Callable[[str], None]) -> dict[str, Any]:
    """A run that has ended well (docs/cli.md, "Streams")."""
    code = program.function.__code__
    trace = {**state.trace.json(), "place": f"{code.co_filename}:{code.co_firstlineno}"}
    return {
        "result": plain(state.result, note, "result"),
        "variables": plain(state.variables, note, "variables"),
        "usage": state.usage,
        "cache": state.cache,
        "trace": trace,
    }


def text(document: Mapping[str, Any], *, spread: bool) -> str:
    """One line; spread, for a person: over lines, and without the trace, which `--trace` draws."""
    if not spread:
        return json.dumps(document)
    return json.dumps({k: v for k, v in document.items() if k != "trace"}, indent=2)


def footer(state: State) -> str:
    """`smollm2-135m fp32 · 9 calls · cached 1,180/1,211 (97.4%) · said 96 (20 forced) · 2.3 s`"""
    usage, opened = state.usage, state.opened
    read, cached = usage["input_tokens"], usage["cached_input_tokens"]
    parts = [f"{one_line(str(opened['model']))} {opened['dtype']}"]
    parts.append(counted(state.trace.count("gen", "select"), "call"))
    if read and cached is None:
        parts.append(f"read {count(read)}")
    elif read and cached is not None:
        parts.append(f"cached {count(cached)}/{count(read)} ({100 * cached / read:.1f}%)")
    some, said = usage["forced_tokens"], usage["output_tokens"] or 0
    forced = f" ({count(some)} forced)" if some else ""
    parts.append(f"said {count(said)}{forced}")
    return SEPARATOR.join([*parts, seconds(state.trace.seconds or 0.0)])


def draw(state: State, cli: Cli) -> None:
    """The calls as a tree on stderr: coloured on a terminal, never wider than it."""
    from rich.console import Console

    is_shown = is_terminal(sys.stderr)
    paints = cli.paints(sys.stderr)
    console = Console(
        file=sys.stderr,
        width=cli.error_columns() if is_shown else 10_000,
        force_terminal=paints,
        no_color=not paints,
        color_system="standard" if paints else None,
        legacy_windows=False,
        safe_box=True,
        emoji=False,
        markup=False,
        highlight=False,
    )
    cli.status("")
    console.print(state.trace.tree(), crop=is_shown, overflow="ellipsis", no_wrap=True)


class Rows:
    """Of many runs: each one's line as soon as it and those before it are there."""

    def __init__(self, cli: Cli, total: int, out: TextIO | None) -> None:
        """``out``: None keeps them all for one document."""
        self._cli, self._total, self._out = cli, total, out
        self._is_shown = out is not None and is_terminal(out)
        self._known: dict[int, dict[str, Any]] = {}
        self._tells: dict[int, Callable[[], None]] = {}
        self._next = 0
        self.failed = 0

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [self._known[number] for number in sorted(self._known)]

    def add(
        self, number: int, document: dict[str, Any], tell: Callable[[], None] | None = None
    ) -> None:
        """``tell`` says more of it on stderr, with its line."""
        self._known[number], self._tells[number] = document, tell or (lambda: None)
        self.failed += "error" in document
        self._cli.status("")
        while self._next in self._known:
            if self._out is not None:
                shown = self._known[self._next]
                if self._is_shown:
                    shown = {name: value for name, value in shown.items() if name != "trace"}
                print(json.dumps(shown), file=self._out, flush=True)
            self._tells.pop(self._next)()
            self._next += 1
        self.show()

    def show(self) -> None:
        """The bar, on a terminal."""
        done = len(self._known)
        if done == self._total:
            return
        filled = BAR * done // self._total
        failed = f", {count(self.failed)} failed" if self.failed else ""
        bar = "#" * filled + "-" * (BAR - filled)
        self._cli.status(f"[{bar}] {count(done)}/{count(self._total)} rows{failed}")
