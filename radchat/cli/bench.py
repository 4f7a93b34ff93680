"""`radchat bench`: what reuse is worth on this machine, in one card, from real runs.

Every request goes through the daemon in a session that is removed afterwards, ephemeral but for the
one that is to outlive the daemon: that is restarted where nothing of yours is lost by it. "Nothing
cached" is the same request after its KV has been evicted, not another one. Times are the daemon's;
those of a server that is compared are this end's, and its rounds alternate with ours.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from radchat.chat.footer import latency
from radchat.cli import common
from radchat.cli.bench_card import card
from radchat.cli.bench_restart import after_restart
from radchat.cli.bench_run import (
    ANSWER,
    FORKS,
    Bench,
    Said,
    copy_speed,
    cpu_name,
    resident_bytes,
)
from radchat.cli.choose_model import choose
from radchat.cli.reuse_check import check_reuse
from radchat.errors import UsageError

if TYPE_CHECKING:
    from radchat.cli.bench_peer import Heard, Server

ROUNDS, ENOUGH_S = 3, 35.0  # another round begins only before so many seconds
NUM_WORDS = 700
STORY = "Write a long story in which all of these words occur."
SECOND, FORKED = "Now tell it from the end to the beginning.", "Now tell it in the first person."
AGAIN = tuple(f"Now tell it as the {who} would." for who in ("baker", "sailor", "judge", "child"))
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}  # a weight; of int4 not all are that
Rows = dict[str, list[dict[str, float]]]
Heards: TypeAlias = "dict[str, list[list[Heard]]]"  # by turn, by round


def bench(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="which model is measured")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify-reuse", help="instead: is a reused answer the same answer?"),
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option(metavar="URL", help="also ask this OpenAI-compatible server the same"),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="fetch a model if none is here")] = False,
) -> None:
    """What reuse is worth on this machine: turns, what-ifs and samples, measured in a minute."""
    cli = common.of(ctx)
    if compare is None:
        _bench(cli, model, verify=verify, yes=yes)
        return
    if verify:
        raise UsageError("--verify-reuse compares with nobody: leave out --compare")
    from radchat.cli.bench_peer import Server

    key = cli.env.get("OPENAI_API_KEY", "").strip()
    with Server(compare, max_tokens=ANSWER, key=key) as server:
        cli.status(f"waiting for {server.url}")
        try:
            server.ready()
        finally:
            cli.status("")
        _bench(cli, model, yes=yes, server=server)


def _bench(
    cli: common.Cli,
    model: str | None,
    *,
    yes: bool,
    verify: bool = False,
    server: Server | None = None,
) -> None:
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
        theirs: Heards = defaultdict(list)
        num_words = min(NUM_WORDS, loaded["context"] // 10)  # of up to 7 tokens, and room to spare
        while len(rows["cold"]) < ROUNDS:
            if rows["cold"] and time.monotonic() - began > ENOUGH_S:
                break
            said = _round(cli, run, rows, num_words)
            if server is not None:
                cli.status(f"round {len(rows['cold'])}: {server.name}")
                _their_round(server, said, theirs)
        result = _result(rows, loaded, cli.client.call("status"), copying)
        asked = f"{STORY}\n{run.words(num_words)}"
        restarted, result["restart_why_not"] = after_restart(cli, run, asked, SECOND, held)
        if restarted:
            result["rows"]["restart"] = _row(restarted)
    result["seconds"] = time.monotonic() - began
    lost = held - cli.client.call("status")["kv"]["device"]["tokens"]
    if server is not None:
        result["compare"] = comparison(server, theirs, result["rows"])
    result["cache"] = {"evicted_tokens": max(0, lost)}
    if cli.json:
        cli.data(result)
        return
    for line in card(result):
        cli.out(line)


def _round(cli: common.Cli, run: Bench, rows: Rows, num_words: int) -> str:
    """One of each; all that is asked is new, so that nothing of it is cached by chance. The first
    turn's text.
    """
    number = len(rows["cold"]) + 1

    def note(name: str, said: Sequence[Said]) -> None:
        rows[name].append(_row(said))
        cli.status(f"round {number}: {name}, first token {latency(_row(said)['first_token_s'])}")

    cli.status(f"round {number}")
    session = run.session()
    asked = f"{STORY}\n{run.words(num_words)}"
    cold = run.ask(session, asked, new=True)
    note("cold", cold)
    first = cold[0].message
    second = run.ask(session, SECOND)
    note("second", second)
    note("fork", run.ask(session, FORKED, at=first, branch="fork"))
    sampled = {"temperature": 0.8}
    note("samples", run.ask(session, "", ref=second[0].message, n=FORKS, options=sampled))
    note("what-ifs", run.ask(session, "", texts=list(AGAIN), at=first))
    run.forget(session)
    note("second, nothing cached", run.ask(session, "", ref=second[0].message))
    strangers = [(run.session(), f"{STORY}\n{run.words(num_words)}", {"new": True}) for _ in AGAIN]
    note("strangers", run.together(strangers))
    run.remove_sessions()
    return asked


def _their_round(server: Server, text: str, rows: Heards) -> None:
    """The turns of a round that any server can be asked for."""

    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    rows["cold"].append(cold := server.ask([[user(text)]]))
    so_far = [user(text), {"role": "assistant", "content": cold[0].text}]
    rows["second"].append(server.ask([[*so_far, user(SECOND)]]))
    rows["what-ifs"].append(server.ask([[*so_far, user(each)] for each in AGAIN]))


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
        "disk_tokens": sum(each.disk_tokens for each in said),
        "output_tokens": outputs,
        "first_token_s": max(each.first_token_s for each in said),
        "total_s": total,
        "tokens_per_s": sum(rates),
    }


def comparison(
    server: Server, heard: Heards, ours: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Medians of the other side's rounds, and how many times as long as ours they took."""

    def told(name: str, key: str) -> float | None:
        values = [[getattr(each, key) for each in answers] for answers in heard[name]]
        if any(value is None for some in values for value in some):
            return None
        return float(median(sum(some) for some in values))

    rows: dict[str, dict[str, float | None]] = {}
    for name, rounds in heard.items():
        row: dict[str, float | None] = {
            key: told(name, key) for key in ("input_tokens", "cached_tokens", "output_tokens")
        }
        for key in ("first_token_s", "total_s"):
            took = median(max(getattr(each, key) for each in answers) for answers in rounds)
            row |= {key: took, f"{key.removesuffix('_s')}_ratio": took / ours[name][key]}
        rows[name] = row | {"answers": len(rounds[0])}
    return {
        "url": server.url,
        "name": server.name,
        "model": server.model,
        "note": "the figures compare the programs only where both ran the same model",
        "rows": rows,
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
            "device": status["device"],
            "executor": status["executor"],
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
