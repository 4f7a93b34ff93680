"""What `search.py` measured: a table for people, rows for machines, a page for results/."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.search_counts import Tree
from benchmarks.search_runs import MOST_AGAIN, Run

TARGET = 3.0  # off / on, wall time
Rows = dict[str, dict[str, Any]]  # by side


def rows_of(took: dict[str, list[Run | float]], trees: dict[str, Tree], weights: int) -> Rows:
    """``took``: by side, a round's run or the seconds it took. ``weights``: their bytes."""
    first = [seconds(each) for each in next(iter(took.values()))]
    rows: Rows = {}
    for side, runs in took.items():
        walls = [seconds(each) for each in runs]
        row: dict[str, Any] = {
            "wall_s": median(walls),
            "ratio": median(mine / other for mine, other in zip(walls, first, strict=True)),
            "spread": max(walls) / min(walls),
            "rounds": len(runs),
        }
        last = runs[-1]
        if isinstance(last, Run):
            tree = trees[last.session]
            row = {**last._asdict(), **tree._asdict(), **row}
            del row["session"]
            drawn = last.output - tree.answers  # but for the first, that prompts end in
            row["gflop"] = (last.computed + drawn) * weights / 1e9  # two a weight, of two bytes
            row["gb"] = last.steps * weights / 1e9
        rows[side] = row
    return rows


def seconds(run: Run | float) -> float:
    return run.wall_s if isinstance(run, Run) else run


def show(name: str, rows: Rows) -> None:
    heads = ("wall", "/ first", "spread", "rounds", "read", "computed", "requests", "made", "steps")
    print(f"\n{name:38}" + "".join(f"{head:>10}" for head in (*heads, "GFLOP", "GFLOP/s", "GB/s")))
    for side, row in rows.items():
        cells = [f"{row['wall_s']:.2f} s", f"{row['ratio']:.2f}x", f"{row['spread']:.2f}x"]
        cells.append(f"{row['rounds']}")
        if "steps" in row:
            counts = ("input", "computed", "requests", "output", "steps")
            cells += [f"{row[count]:,}" for count in counts]
            cells += [f"{row['gflop']:,.0f}", f"{row['gflop'] / row['wall_s']:.0f}"]
            cells.append(f"{row['gb'] / row['wall_s']:.1f}")
        print(f"  {side:36}" + "".join(f"{cell:>10}" for cell in cells))
    if "on" in rows and "off" in rows:
        on, off = rows["on"], rows["off"]
        again = (on["computed"] - on["requests"]) / on["asked"]
        print(
            f"  the tree: {on['tokens']:,} tokens that differ, {on['asked']:,} of them not said by "
            f"the model; computed, less one a request, / those: {again:.3f} (target ≤ {MOST_AGAIN})"
            f"\n  off / on: {off['ratio']:.2f} (target ≥ {TARGET:.0f}); by flops "
            f"{off['gflop'] / on['gflop']:.1f}, by bytes {off['gb'] / on['gb']:.2f}"
        )


# -- for results/ ----------------------------------------------------------------------------------

SAYS = {
    "think": "A search 3 deep, 5 thoughts of 40 tokens on each of 5, three ratings a thought, over "
    "a problem of 600 tokens",
    "vote": "A vote: 16 answers of 48 tokens to a question of 1,000",
}
COLUMNS = ["side", "wall", "beside the first", "spread", "prompt tokens read", "computed"]
COLUMNS += ["requests", "tokens made", "steps", "products", "weights read"]


def written(found: dict[str, Rows], about: dict[str, Any], flags: str) -> str:
    """A page of it. Why it is so is for whoever measured to say."""
    on = (
        f"`benchmarks/search.py {flags}`, commit {about['commit']}; {about['cores']} cores, "
        f"{about['cpu']}, Python {about['python']}, torch {about['torch']}, transformers "
        f"{about['transformers']}, SmolLM2-135M in bf16 on all sides, {about['threads']} threads, "
        f"load {about['load_before']} at the beginning. Medians of rounds in turn, a problem of "
        "its own each. Ours goes through the socket and is stored; the others answer in this "
        "process or over HTTP. *off*: no request reuses what another computed, and n answers are "
        "n requests. Products: two flops a weight and row (attention comes on top); weights: once "
        "a step."
    )
    parts = [f"# Searches and votes, {about['date']}", on]
    for name, rows in found.items():
        parts.append(f"## {SAYS[name]} (target: off ≥ {TARGET:.0f}x on)")
        parts.append("\n".join(["| " + " | ".join(cells) + " |" for cells in _table(rows)]))
        if "on" in rows:
            parts.append(_counted(rows["on"]))
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows) -> list[list[str]]:
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for side, row in rows.items():
        cells = [side, f"{row['wall_s']:.2f} s", f"{row['ratio']:.1f}x", f"{row['spread']:.2f}x"]
        if "steps" in row:
            counts = ("input", "computed", "requests", "output", "steps")
            cells += [f"{row[count]:,}" for count in counts]
            per_s = row["gflop"] / row["wall_s"], row["gb"] / row["wall_s"]
            cells.append(f"{row['gflop']:,.0f} GFLOP, {per_s[0]:.0f} a second")
            cells.append(f"{row['gb']:.0f} GB, {per_s[1]:.1f} a second")
        lines.append(cells + [""] * (len(COLUMNS) - len(cells)))
    return lines


def _counted(row: dict[str, Any]) -> str:
    again = (row["computed"] - row["requests"]) / row["asked"]
    return (
        f"The tree of *on* has {row['tokens']:,} tokens that differ, {row['asked']:,} of them not "
        f"said by the model. Computed, less one a request, are {again:.3f} of those (target ≤ "
        f"{MOST_AGAIN})."
    )
