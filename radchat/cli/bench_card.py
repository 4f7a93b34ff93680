"""The card of `radchat bench`: at most 23 lines of 79 columns, to be read at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.footer import count, latency, rate, seconds, size
from radchat.chat.text import one_line
from radchat.chat.width import cut, width
from radchat.cli.bench_run import ANSWER, FORKS

VERIFY = "is a reused answer the same answer? radchat bench --verify-reuse"
LINES = (
    ("cold", "first turn"),
    ("second", "second turn"),
    ("second, nothing cached", "  the same, its KV evicted"),
    ("restart", "  the same after a restart"),
    ("fork", "fork at the first answer"),
    ("samples", f"{FORKS} samples of one answer"),
    ("what-ifs", f"{FORKS} what-ifs from there"),
    ("strangers", f"  {FORKS} as long that share nothing"),
)


def card(result: Mapping[str, Any]) -> list[str]:
    """Its lines, from what `bench --json` prints."""
    rows, machine, memory = result["rows"], result["machine"], result["memory"]
    name = f"{one_line(result['model'])} {result['dtype']}"
    head = f"{name} on {machine['cores']} cores of {one_line(machine['cpu'])}"
    copied = f"of the {machine['copy_bytes_per_s'] / 1e9:.1f} GB/s at which memory is copied here"
    if machine["device"] != "cpu":
        copied = "of the GPU's own memory, whose speed benchmarks/gpu.py measures"
        head = f"{name} on {one_line(machine['device'])}, {machine['executor']}"
    other = result.get("compare")
    absent = f"  after a restart: not measured, {one_line(str(result['restart_why_not']))}"
    lines = [
        f"{head}, load {machine['load']}"[:79],
        "",
        *(_beside(rows, other, absent) if other else _table(rows, absent)),
    ]
    off, one, what_ifs = rows["second, nothing cached"], rows["fork"], rows["what-ifs"]
    sooner = f"{off['first_token_s'] / rows['second']['first_token_s']:.1f}x sooner"
    if "restart" in rows:
        sooner += f", restored {off['first_token_s'] / rows['restart']['first_token_s']:.1f}x"
    faster = rows["strangers"]["total_s"] / what_ifs["total_s"]
    longer = what_ifs["total_s"] / one["total_s"]
    prefill = f"{count(round(result['prefill_tokens_per_s']))} tok/s"
    if result["prefill_flops_per_s"]:
        prefill += f", {result['prefill_flops_per_s'] / 1e9:,.0f} GFLOP/s (2 a weight and token)"
    reads = result["weight_bytes_per_s"] / 1e9
    alone = f"{rate(one['tokens_per_s'])} alone, {rate(what_ifs['tokens_per_s'])} in {FORKS}"
    rounds = f"medians of {result['rounds']} rounds" if result["rounds"] > 1 else "one round"
    weights = size(result["weight_bytes"])
    held = memory["resident_bytes"]
    resident = f"{size(held)} resident: " if held else ""
    lost = result["cache"]["evicted_tokens"]
    room = f"{count(lost)} tokens of yours had to make room" if lost else ""
    return [
        *lines,
        "",
        f"reuse    second turn's first token {sooner}; {FORKS} forks {faster:.1f}x",
        f"prompts  {prefill}",
        f"answers  {alone} what-ifs, {longer:.1f}x as long as one",
        f"bound    one answer reads {weights} of weights a token: {reads:.1f} GB/s",
        f"         {copied}",
        f"memory   {resident}weights {weights}, KV up to {size(memory['kv_budget_bytes'])}",
        f"cache    {room or 'used, and left as it was: what was there still is'}",
        f"{rounds} in {seconds(result['seconds'])}, greedy, {ANSWER} tokens an answer",
        *(_about(result, other) if other else [VERIFY]),
    ]


def _table(rows: Mapping[str, Any], absent: str) -> list[str]:
    lines = [f"{'':33}{'cached':>15}{'first token':>14}{'whole':>9}{'tok/s':>8}"]
    for name, title in LINES:
        row = rows.get(name)
        if row is None:
            lines.append(cut(absent, 79))
            continue
        cached = f"{count(round(row['cached_tokens']))}/{count(round(row['input_tokens']))}"
        first, whole = latency(row["first_token_s"]), seconds(row["total_s"])
        lines.append(f"{title:33}{cached:>15}{first:>14}{whole:>9}{row['tokens_per_s']:8.0f}")
    return lines


def _beside(rows: Mapping[str, Any], other: Mapping[str, Any], absent: str) -> list[str]:
    """Both sides, and how many times as long the other took."""
    name = cut(one_line(other["name"]), 24)
    lines = [
        f"{'':31}{'radchat':>18}{' ' * max(0, 30 - width(name))}{name}",
        f"{'':31}{'first':>9}{'whole':>9}{'first':>9}{'ratio':>7}{'whole':>7}{'ratio':>7}",
    ]
    for turn, title in LINES:
        row, their = rows.get(turn), other["rows"].get(turn)
        if row is None:
            lines.append(cut(absent, 79))
            continue
        line = f"{title:31}{latency(row['first_token_s']):>9}{seconds(row['total_s']):>9}"
        if their:
            line += f"{latency(their['first_token_s']):>9}{_times(their['first_token_ratio']):>7}"
            line += f"{seconds(their['total_s']):>7}{_times(their['total_ratio']):>7}"
        lines.append(line)
    return lines


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x" if ratio < 10_000 else ">9999x"


def _about(result: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Which model the other side ran; whether its answers were as long as ours."""
    their = other["rows"]["cold"]["output_tokens"]
    ours = result["rows"]["cold"]["output_tokens"]
    length = (
        "" if their is None else f", first answers of {their:.0f} tokens (radchat's {ours:.0f})"
    )
    length = length if their != ours else ""
    model = cut(one_line(other["model"]), 69 - len(length))
    return [
        f"other    {model}{length}",
        "         ratio: its time / radchat's; compares programs only on the same model",
    ]
