"""`radchat bench`: what reuse is worth on this machine, in one card, from real runs.

Every request goes through the daemon in an ephemeral session that is removed afterwards. "Nothing
cached" is the same request after its KV has been evicted, not another one. Times are the daemon's.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any

import typer

from radchat.chat.footer import count, latency, rate, seconds, size
from radchat.chat.text import one_line
from radchat.cli import common
from radchat.cli.bench_run import Bench, Said, copy_speed, cpu_name, resident_bytes
from radchat.cli.choose_model import choose
from radchat.cli.reuse_check import check_reuse

ROUNDS, ENOUGH_S = 3, 35.0  # another round begins only before so many seconds
NUM_WORDS, ANSWER = 700, 24
FORKS = 4
STORY = "Write a long story in which all of these words occur."
SECOND, FORKED = "Now tell it from the end to the beginning.", "Now tell it in the first person."
AGAIN = tuple(f"Now tell it as the {who} would." for who in ("baker", "sailor", "judge", "child"))
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
Rows = dict[str, list[dict[str, float]]]


def bench(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="which model is measured")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify-reuse", help="instead: is a reused answer the same answer?"),
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="fetch a model if none is here")] = False,
) -> None:
    """What reuse is worth on this machine: turns, forks and samples, measured in a minute."""
    cli = common.of(ctx)
    named = choose(cli, model, is_new=True, yes=yes)
    if verify:
        check_reuse(cli, named)
        return
    others = cli.client.call("status").get("answers")  # a daemon that is just starting has none
    if others:
        cli.note(f"{others} other answers are running: they take part in the figures")
    began = time.monotonic()
    with Bench(cli, named, max_tokens=ANSWER) as run:
        loaded = run.load()
        cli.status("how fast memory is copied")
        copying = copy_speed()
        held = cli.client.call("status")["kv"]["device"]["tokens"]
        rows: Rows = defaultdict(list)
        num_words = min(NUM_WORDS, loaded["context"] // 10)  # of up to 7 tokens, and room to spare
        while len(rows["cold"]) < ROUNDS:
            if rows["cold"] and time.monotonic() - began > ENOUGH_S:
                break
            _round(cli, run, rows, num_words)
        status = cli.client.call("status")
    result = _result(rows, loaded, status, copying) | {"seconds": time.monotonic() - began}
    lost = held - cli.client.call("status")["kv"]["device"]["tokens"]
    result["cache"] = {"evicted_tokens": max(0, lost)}
    if cli.json:
        cli.data(result)
        return
    for line in card(result):
        cli.out(line)


def _round(cli: common.Cli, run: Bench, rows: Rows, num_words: int) -> None:
    """One of each; all that is asked is new, so that nothing of it is cached by chance."""
    number = len(rows["cold"]) + 1

    def note(name: str, said: Sequence[Said]) -> None:
        rows[name].append(_row(said))
        cli.status(f"round {number}: {name}, first token {latency(_row(said)['first_token_s'])}")

    cli.status(f"round {number}")
    session = run.session()
    cold = run.ask(session, f"{STORY}\n{run.words(num_words)}", new=True)
    note("cold", cold)
    first = cold[0].message
    second = run.ask(session, SECOND)
    note("second", second)
    note("fork", run.ask(session, FORKED, at=first, branch="fork"))
    sampled = {"temperature": 0.8}
    note("samples", run.ask(session, "", ref=second[0].message, n=FORKS, options=sampled))
    forks = [(session, text, {"at": first, "branch": f"told-{n}"}) for n, text in enumerate(AGAIN)]
    note("forks", run.together(forks))
    run.forget(session)
    note("second, nothing cached", run.ask(session, "", ref=second[0].message))
    strangers = [(run.session(), f"{STORY}\n{run.words(num_words)}", {"new": True}) for _ in AGAIN]
    note("strangers", run.together(strangers))
    run.remove_sessions()


def _row(said: Sequence[Said]) -> dict[str, float]:
    """Several answers as one: sums, and the last of the times; samples share their prompt."""
    inputs = [each.input_tokens for each in said]
    cached = [each.cached_tokens for each in said]
    total = max(each.total_s for each in said)
    outputs = sum(each.output_tokens for each in said)
    rates = [each.tokens_per_s for each in said if each.tokens_per_s]
    return {
        "answers": len(said),
        "input_tokens": sum(inputs),
        "cached_tokens": sum(cached),
        "output_tokens": outputs,
        "first_token_s": max(each.first_token_s for each in said),
        "total_s": total,
        "tokens_per_s": sum(rates),
    }


def _result(
    rows: Rows, loaded: Mapping[str, Any], status: Mapping[str, Any], copying: float
) -> dict[str, Any]:
    medians = {
        name: {key: median(row[key] for row in each) for key in each[0]}
        for name, each in rows.items()
    }
    samples = medians["samples"]  # one prompt: its numbers come once for each sample
    samples["input_tokens"] /= samples["answers"]
    samples["cached_tokens"] /= samples["answers"]
    cold = medians["cold"]
    model = next(
        each
        for each in status["models"]
        if (each["name"], each["dtype"]) == (loaded["model"], loaded["dtype"])
    )
    speed = (cold["input_tokens"] - cold["cached_tokens"]) / cold["first_token_s"]
    width = BYTES.get(loaded["dtype"])
    return {
        "model": loaded["model"],
        "dtype": loaded["dtype"],
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "copy_bytes_per_s": copying,
        },
        "rounds": len(rows["cold"]),
        "rows": medians,
        "prefill_tokens_per_s": speed,
        "prefill_flops_per_s": 2 * model["bytes"] / width * speed if width else None,
        "weight_bytes": model["bytes"],
        "weight_bytes_per_s": model["bytes"] * medians["fork"]["tokens_per_s"],
        "memory": {
            "resident_bytes": resident_bytes(status["pid"]),
            "weight_bytes": model["bytes"],
            "kv_budget_bytes": model["kv_bytes"],
        },
    }


# -- the card ------------------------------------------------------------------------------------

LINES = (
    ("cold", "first turn"),
    ("second", "second turn"),
    ("second, nothing cached", "  the same, its KV evicted"),
    ("fork", "fork at the first answer"),
    ("samples", f"{FORKS} samples of one answer"),
    ("forks", f"{FORKS} forks at once"),
    ("strangers", f"  {FORKS} as long that share nothing"),
)


def card(result: Mapping[str, Any]) -> list[str]:
    """At most 22 lines of 79 columns."""
    rows, machine, memory = result["rows"], result["machine"], result["memory"]
    head = f"{one_line(result['model'])} {result['dtype']} on {machine['cores']} cores"
    lines = [
        f"{head} of {one_line(machine['cpu'])}, load {machine['load']}"[:79],
        "",
        f"{'':33}{'cached':>15}{'first token':>14}{'whole':>9}{'tok/s':>8}",
    ]
    for name, title in LINES:
        row = rows[name]
        cached = f"{count(round(row['cached_tokens']))}/{count(round(row['input_tokens']))}"
        first, whole = latency(row["first_token_s"]), seconds(row["total_s"])
        lines.append(f"{title:33}{cached:>15}{first:>14}{whole:>9}{row['tokens_per_s']:8.0f}")
    off, forks = rows["second, nothing cached"], rows["forks"]
    sooner = off["first_token_s"] / rows["second"]["first_token_s"]
    faster = rows["strangers"]["total_s"] / forks["total_s"]
    prefill = f"{count(round(result['prefill_tokens_per_s']))} tok/s"
    if result["prefill_flops_per_s"]:
        prefill += f", {result['prefill_flops_per_s'] / 1e9:,.0f} GFLOP/s (2 a weight and token)"
    reads, copies = result["weight_bytes_per_s"] / 1e9, machine["copy_bytes_per_s"] / 1e9
    alone = f"{rate(rows['fork']['tokens_per_s'])} alone, {rate(forks['tokens_per_s'])} in {FORKS}"
    rounds = f"medians of {result['rounds']} rounds" if result["rounds"] > 1 else "one round"
    weights = size(result["weight_bytes"])
    held = memory["resident_bytes"]
    resident = f"{size(held)} resident: " if held else ""
    lost = result["cache"]["evicted_tokens"]
    room = f"{count(lost)} tokens of yours had to make room" if lost else ""
    return [
        *lines,
        "",
        f"reuse    second turn's first token {sooner:.1f}x sooner, {FORKS} forks {faster:.1f}x",
        f"prompts  {prefill}",
        f"answers  {alone}",
        f"bound    one answer reads {weights} of weights a token: {reads:.1f} GB/s",
        f"         of the {copies:.1f} GB/s at which memory is copied here",
        f"memory   {resident}weights {weights}, KV up to {size(memory['kv_budget_bytes'])}",
        f"cache    {room or 'used, and left as it was: what was there still is'}",
        f"{rounds} in {seconds(result['seconds'])}, greedy, {ANSWER} tokens an answer",
        "is a reused answer the same answer? radchat bench --verify-reuse",
    ]
