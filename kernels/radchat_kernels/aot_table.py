"""What each kernel may take on each architecture: ``resources.csv``, and the check against it.

The file is written by ``python -m radchat_kernels.aot --all --write`` and shown by the README. Two
of its columns are people's: ``stack``, the bytes of local memory a variant may use outside of its
loops, is 0 unless ``why`` gives the reason; in loops none is ever allowed. Registers and loads are
compared under the triton version of the row: another's code is other code. All else holds for any.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from radchat_kernels.aot_compile import SHARED_LIMITS, TARGETS, Figures
from radchat_kernels.tiles import Tile, Tiles

FILE = Path(__file__).parent / "resources.csv"

Key = tuple[str, str]  # variant, target


@dataclass(frozen=True, slots=True)
class Row:
    """at_most: registers with which as many blocks run side by side as with ``registers``.

    loads: instructions that bring 16 bytes a thread, of both kinds.
    """

    variant: str
    target: str
    registers: int
    at_most: int
    shared: int
    loads: int
    stack: int
    why: str
    triton: str

    @property
    def key(self) -> Key:
        return self.variant, self.target


def read(path: Path = FILE) -> dict[Key, Row]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            Row(**{k: int(v) if k in _NUMBERS else v for k, v in line.items()})  # type: ignore[arg-type]
            for line in csv.DictReader(file)
        ]
    return {row.key: row for row in rows}


def write(rows: Iterable[Row], path: Path = FILE) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, _NAMES, lineterminator="\n")
        out.writeheader()
        out.writerows(asdict(row) for row in rows)


def problems(
    figures: Figures,
    target: str,
    row: Row | None,
    wants: Iterable[str],
    version: str,
    *,
    is_exact: bool = False,
) -> list[str]:
    """What is wrong with a compiled kernel, a sentence each; none is well.

    is_exact: its products are of whole fp32 numbers.
    """
    found = []
    if figures.shared > SHARED_LIMITS[target]:
        found.append(
            f"{figures.shared} bytes of shared memory, {target} has {SHARED_LIMITS[target]} a block"
        )
    if figures.spills:
        found.append(f"{figures.spills} loads and stores of local memory in loops")
    if figures.stack > (row.stack if row else 0):
        found.append(f"{figures.stack} bytes of stack, allowed {row.stack if row else 0}")
    found += [f"no {_WANTED[want]}" for want in wants if not getattr(figures, want)]
    if is_exact and figures.tensor:
        found.append(f"{figures.tensor} products of numbers that were fp32 and are rounded (tf32)")
    if row is None:
        found.append(f"not in {FILE.name} (after a look at it: --all --write)")
    elif version == row.triton:
        loads = figures.async16 + figures.load16
        if figures.registers > row.at_most:
            found.append(f"{figures.registers} registers, at most {row.at_most}")
        if loads < row.loads:
            found.append(f"{loads} loads of 16 bytes, at least {row.loads}")
    return found


def tiles() -> str:
    """The tiles of every head_dim and target, as the README shows them."""
    lines = ["| D | on | narrow | wide | extend |", "| --- | --- | --- | --- | --- |"]
    for name, *of in (
        *(("to 64", 64, 2), ("to 128", 128, 2), ("to 256", 256, 2)),
        *(("to 64, fp32", 64, 4), ("to 256, fp32", 256, 4)),
    ):
        alike: dict[Tiles, list[str]] = {}
        for target in TARGETS:
            alike.setdefault(Tiles.of(target, *of), []).append(target)
        for made, targets in alike.items():
            on = "all" if len(targets) == len(TARGETS) else ", ".join(targets)
            cells = " | ".join(map(_tile, (made.narrow, made.wide, made.extend)))
            lines.append(f"| {name} | {on} | {cells} |")
    return "\n".join(lines) + "\n"


def _tile(tile: Tile) -> str:
    """Queries × tokens, warps, stages."""
    return f"{tile.block_m} × {tile.block_n}, {tile.num_warps}, {tile.num_stages}"


def markdown(rows: Mapping[Key, Row]) -> str:
    """Registers and KB of shared memory by variant and target, as the README shows them."""
    names = list(dict.fromkeys(variant for variant, _ in rows))
    lines = [
        "| | " + " | ".join(TARGETS) + " |",
        "| --- |" + " --- |" * len(TARGETS),
    ]
    notes: dict[str, int] = {}
    for name in names:
        cells = [_cell(rows.get((name, target)), notes) for target in TARGETS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}) {why}" for why, number in notes.items())]
    return "\n".join(lines).rstrip() + "\n"


def _cell(row: Row | None, notes: dict[str, int]) -> str:
    if row is None:
        return "–"
    text = f"{row.registers}"
    if row.shared >= 1024:
        text += f", {row.shared / 1024:.0f} KB"
    if row.why:
        text += f" {notes.setdefault(row.why, len(notes) + 1)})"
    return text


_NAMES = tuple(field.name for field in fields(Row))
_NUMBERS = {"registers", "at_most", "shared", "loads", "stack"}
_WANTED = {
    "async16": "load of 16 bytes straight into shared memory",
    "load16": "load of 16 bytes a thread",
    "matrix": "instruction of the widest matrix unit",
}
