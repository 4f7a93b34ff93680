"""`radchat bench` on a real daemon and a tiny model: its figures add up, and it leaves no trace."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.chat.width import width
from radchat.cli.bench_card import card
from radchat.cli.bench_restart import after_restart
from radchat.cli.bench_run import Bench
from radchat.cli.common import Cli
from radchat.stop import stop_daemon
from tests.e2e.conftest import Homes
from tests.e2e.homes import Home, Shell, finish
from tests.openai_server import Handler, OpenAIServer, well
from tests.waiting import wait_until

KEPT = "KV of yours is cached (radchat daemon stop)"


@pytest.fixture(scope="module")
def home(sources: str, tiny: Path) -> Iterator[Home]:
    home = Home(sources, {"tiny": tiny}, RADCHAT_KV_DEVICE="8192tok", RADCHAT_CONTEXT_LENGTH="1024")
    yield home
    home.close()


def tokens_held(home: Home) -> int:
    return int(home.status()["kv"]["device"]["tokens"])


@pytest.fixture
def talked(home: Home) -> Shell:
    """A terminal with a session whose KV is in the cache."""
    shell = Shell(home, "1")
    shell.ask("something said before", "--temp", "0", "--max-tokens", "9")
    return shell


def test_bench_measures_what_adds_up_and_leaves_all_as_it_was(talked: Shell, home: Home) -> None:
    before = talked.json("sessions", "ls"), talked.json("tree", "--show-cache"), tokens_held(home)
    result = talked.json("bench", "-m", "tiny")
    after = talked.json("sessions", "ls"), talked.json("tree", "--show-cache"), tokens_held(home)
    for one, other in zip(before, after, strict=True):
        assert timeless(one) == timeless(other)
    rows = result["rows"]
    cold, second, off = rows["cold"], rows["second"], rows["second, nothing cached"]
    assert second["cached_tokens"] >= cold["input_tokens"], "the first turn and its answer"
    assert off["input_tokens"] == second["input_tokens"]
    assert off["cached_tokens"] <= cold["cached_tokens"] < second["cached_tokens"]
    assert rows["samples"]["input_tokens"] == second["input_tokens"]
    assert rows["samples"]["answers"] == rows["what-ifs"]["answers"] == 4
    assert rows["what-ifs"]["cached_tokens"] >= 4 * cold["input_tokens"]
    longer = rows["what-ifs"]["total_s"] / rows["fork"]["total_s"]
    assert any(f"in 4 what-ifs, {longer:.1f}x" in line for line in card(result))
    assert rows["strangers"]["cached_tokens"] < cold["input_tokens"]
    for row in rows.values():
        assert 0 < row["first_token_s"] <= row["total_s"]
        assert row["output_tokens"] >= row["answers"]
    assert result["weight_bytes"] == home.status()["models"][0]["bytes"]
    assert result["memory"]["resident_bytes"] > result["weight_bytes"]
    machine = result["machine"]
    assert machine["copy_bytes_per_s"] > 0
    assert (machine["device"], machine["executor"]) == ("cpu", "torch")
    assert f" on {machine['cores']} cores of " in card(result)[0]
    there = {"device": "cuda (NVIDIA H200)", "executor": "triton"}
    on_gpu = card({**result, "machine": machine | there})
    assert " on cuda (NVIDIA H200), triton, load " in on_gpu[0]
    assert not any("memory is copied here" in line for line in on_gpu), "it is not read from there"
    assert ("restart" in rows, result["restart_why_not"]) == (False, KEPT)
    assert f"  after a restart: not measured, {KEPT}" in card(result)
    restarted = {**rows, "restart": {**second, "first_token_s": 0.001}}
    for lost in (result["cache"]["evicted_tokens"], 12_345):
        shown = card({**result, "rows": restarted, "cache": {"evicted_tokens": lost}})
        assert len(shown) <= 23, "fits 80x24 with the prompt below it"
        assert all(len(line) < 80 and line.isprintable() for line in shown)
        assert any(line.startswith("  the same after a restart") for line in shown)
        assert ("12,345 tokens of yours" if lost else "what was there still is") in "\n".join(shown)


def test_a_second_turn_is_measured_after_a_restart_where_nothing_is_lost_by_one(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes(RADCHAT_CHECK="")
    for name, value in home.env.items():  # of the daemons that this process starts
        monkeypatch.setenv(name, value)
    shell = Shell(home, "1")
    cli = Cli(env=home.env)
    with Bench(cli, "tiny", max_tokens=4) as run:
        run.load()
        pid = home.status()["pid"]
        assert after_restart(cli, run, "a", "b", held=9) == ([], KEPT)
        (said,), why_not = after_restart(cli, run, run.words(50), "and then", held=0)
        assert why_not is None
        assert home.status()["pid"] != pid
        assert home.stats()["tiers"]["disk"]["tokens"] > said.input_tokens // 2
    assert 0 < said.first_token_s <= said.total_s
    assert said.disk_tokens == said.cached_tokens, "nothing was on the device"
    assert shell.num_sessions() == 0
    assert home.stats()["tiers"]["disk"]["blocks"] == 0, "its KV went with it"
    stop_daemon(home.places)


def timeless(value: Any) -> Any:
    """Without ages, and ranks and hits, which are about what else there is and was."""
    gone = {"last_used_s", "used", "tiers"}
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in gone}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def test_an_interrupted_bench_ends_its_answers_and_leaves_nothing(
    talked: Shell, home: Home
) -> None:
    held = tokens_held(home)
    running = talked.start("bench", "-m", "tiny")
    wait_until(lambda: home.status()["answers"] > 0)
    time.sleep(0.2)  # anywhere in it
    running.send_signal(signal.SIGINT)
    done = finish(running)
    assert done.code == 130
    assert done.out == ""
    assert home.status()["answers"] == 0
    assert tokens_held(home) == held
    sessions = talked.json("sessions", "ls")["sessions"]
    assert not [one for one in sessions if one["name"].startswith("bench")]


def test_reused_answers_are_the_same_in_exact_mode_and_counted(talked: Shell, home: Home) -> None:
    held = tokens_held(home)
    result = talked.json("bench", "--verify-reuse", "-m", "tiny")
    exact = result["reuse"][-1]
    assert exact["dtype"] == "fp32"
    assert exact["same"] == exact["answers"] >= 3
    assert exact["ids"] >= exact["answers"]
    assert exact["cached_tokens"] > 0, "they were reused"
    for tally in result["reuse"]:
        differing = [place for places in tally["differ_at"].values() for place in places]
        assert len(differing) == tally["answers"] - tally["same"]
    assert tokens_held(home) == held


def test_bench_of_a_model_that_is_not_here_is_one_json_error(talked: Shell) -> None:
    failed = talked.json("bench", "-m", "nobody", code=66)
    assert "nobody" in failed["error"]["message"]


def test_a_server_is_asked_the_same_and_stands_beside(talked: Shell) -> None:
    with OpenAIServer(well) as there:
        result = talked.json("bench", "-m", "tiny", "--compare", there.url)
    other, shown = result["compare"], card(result)
    assert re.search(r"^4 what-ifs from there .*x .*x$", "\n".join(shown), re.MULTILINE)
    assert any("their-model, first answers of 3 tokens" in line for line in shown)
    assert (other["url"], other["name"]) == (f"{there.url}/v1", "llama-server")
    assert (result["model"], other["model"]) == ("tiny", "their-model")
    assert "only where both ran the same model" in other["note"]
    assert [(name, row["answers"]) for name, row in other["rows"].items()] == [
        ("cold", 1),
        ("second", 1),
        ("what-ifs", 4),
    ]
    for name, row in other["rows"].items():
        assert row["total_ratio"] == pytest.approx(row["total_s"] / result["rows"][name]["total_s"])
    lengths = [len(each["messages"]) for each in there.asked]
    assert lengths == [1] + [1, 3, 3, 3, 3, 3] * result["rounds"], "one to load it, then rounds"
    assert there.asked[2]["messages"][1]["content"] == "one two three", "its own answer"
    for name, model in (("llama-server", "m"), ("a" * 60, "\x1b[1m界" * 60)):
        shown = card({**result, "compare": {**other, "name": name, "model": model}})
        assert len(shown) <= 23
        assert all(width(line) < 80 and line.isprintable() for line in shown)
        assert any("same model" in line for line in shown)


def test_a_server_that_is_not_there_ends_bench_before_it_begins(talked: Shell) -> None:
    both = talked("bench", "--verify-reuse", "--compare", "127.0.0.1:9", code=2)
    assert "leave out --compare" in both.err
    failed = talked.json("bench", "-m", "tiny", "--compare", "127.0.0.1:9", code=69)
    assert "http://127.0.0.1:9/v1" in failed["error"]["message"]


def test_a_silent_server_does_not_hold_up_a_ctrl_c(talked: Shell) -> None:
    def silent(handler: Handler, body: dict[str, Any]) -> None:
        handler.server.over.wait(120)

    with OpenAIServer(silent) as there:
        running = talked.start("bench", "-m", "tiny", "--compare", there.url)
        wait_until(lambda: there.asked)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        done = finish(running)
    assert done.code == 130
    assert done.out == ""
