"""The benchmark's figures as tables, and what they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu_cases import EXPECTED_COPY, Case
from benchmarks.gpu_ceilings import Ceilings, Small

HEAD = (
    *("case", "B", "method", "us/layer", "ms/step", "min-GB", "GB/s", "%copy", "TFLOP/s"),
    *("vs per-seq", "vs SGLang", "floor us", "target", "relerr"),
)


@dataclass(slots=True)
class Row:
    """One method on one case; seconds of a layer. ``error``: relative L2, against float64."""

    case: Case
    method: str
    error: float | None = None
    seconds: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Whole:
    """Tokens a second; ``most``: if a step took no longer than its bytes."""

    name: str
    branches: int
    rate: float
    most: float


@dataclass(slots=True)
class Results:
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    sweep: list[Row] = field(default_factory=list)
    small: list[Small] = field(default_factory=list)
    end_to_end: list[Whole] = field(default_factory=list)
    ceilings: Ceilings | None = None

    def row(self, case: Case, method: str) -> Row:
        return self.rows.setdefault((case.name, method), Row(case, method))


def tables(results: Results) -> list[str]:
    """All there is to show, the large table last."""
    lines: list[str] = []
    if results.ceilings:
        c = results.ceilings
        lines.append(
            f"ceilings: copy {c.copy / 1e12:.2f}, read {c.read / 1e12:.2f}, L2 {c.l2 / 1e12:.2f} "
            f"TB/s, matmul {c.matmul / 1e12:.0f} TFLOP/s, a graph's node {c.node * 1e6:.2f} us "
            "(expected of an H200: 4.3, 4.3, 6.0 TB/s, 790 TFLOP/s)"
        )
    if results.end_to_end:
        cells = [
            (
                w.name,
                f"{w.branches}",
                f"{w.rate:.0f}",
                f"{w.most:.0f}",
                f"{100 * w.rate / w.most:.0f}",
            )
            for w in results.end_to_end
        ]
        lines += ["", *_columns(("end to end", "B", "tokens/s", "byte bound", "%"), cells)]
    if results.small:
        head = ("kernel", "us", "min-MB", "GB/s", "bound us", "torch us")
        lines += ["", *_columns(head, map(_small, results.small))]
    if results.sweep:
        lines += [
            "",
            *_columns(
                ("sweep", "B", "method", "us/layer", "items"),
                (
                    (
                        row.case.name,
                        str(row.case.branches),
                        row.method,
                        _us(row.seconds),
                        str(row.notes.get("items", "")),
                    )
                    for row in results.sweep
                ),
            ),
        ]
    lines += ["", *_columns(HEAD, (_cells(row, results) for row in results.rows.values()))]
    return lines


def _cells(row: Row, results: Results) -> list[str]:
    case, error = row.case, "" if row.error is None else f"{row.error:.0e}"
    head = [case.name, str(case.branches), row.method]
    floor, target = f"{1e6 * case.floor():.1f}", _target(row, results)
    if row.seconds is None:
        return [*head, *[""] * 8, floor, target, error]
    copy = results.ceilings.copy if results.ceilings else EXPECTED_COPY
    rate = case.least_bytes() / row.seconds
    return [
        *head,
        _us(row.seconds),
        f"{1e3 * row.seconds * case.layers:.3f}",
        f"{case.least_bytes() * case.layers / 1e9:.3f}",
        f"{rate / 1e9:.0f}",
        f"{100 * rate / copy:.0f}",
        f"{case.flops / row.seconds / 1e12:.1f}",
        _times(row, results, "ours per-seq"),
        _times(row, results, "SGLang"),
        floor,
        target,
        error,
    ]


def _target(row: Row, results: Results) -> str:
    """What kernels.md asks of the tree plan, and whether it is so."""
    case, said = row.case, []
    if row.method != "ours tree" or row.seconds is None:
        return ""
    if case.most_ms is not None:
        is_met = 1e3 * row.seconds * case.layers <= case.most_ms
        said.append(f"<= {case.most_ms} ms {'met' if is_met else 'MISSED'}")
    times = _ratio(row, results, "ours per-seq")
    if case.least_ratio is not None and times is not None:
        is_met = times >= case.least_ratio
        said.append(f">= {case.least_ratio}x {'met' if is_met else 'MISSED'}")
    return ", ".join(said)


def _times(row: Row, results: Results, peer: str) -> str:
    times = _ratio(row, results, peer)
    return "" if times is None else f"{times:.2f}x"


def _ratio(row: Row, results: Results, peer: str) -> float | None:
    """How many times as fast as the best of the methods whose names begin so."""
    peers = [
        other.seconds
        for (case, method), other in results.rows.items()
        if case == row.case.name and method.startswith(peer) and other.seconds
    ]
    return min(peers) / row.seconds if peers and row.seconds else None


def _small(each: Small) -> list[str]:
    return [
        each.name,
        f"{1e6 * each.seconds:.1f}",
        f"{each.least / 1e6:.2f}",
        f"{each.least / each.seconds / 1e9:.0f}",
        f"{1e6 * each.least / EXPECTED_COPY:.1f}",
        _us(each.peer),
    ]


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.1f}"


def _columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Names to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    names = {"case", "method", "kernel", "sweep", "end to end"}
    return [
        "  ".join(
            cell.ljust(width) if title in names else cell.rjust(width)
            for cell, width, title in zip(line, widths, head, strict=True)
        ).rstrip()
        for line in lines
    ]
