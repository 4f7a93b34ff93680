"""What a person sees of KV on disk: `cache save`, `load`, `warm`, `verify`, and what goes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from radchat.chat import cache_view, why_view
from radchat.cli.common import Cli
from radchat.cli.complete import Candidate, wanted
from radchat.cli.values import candidates
from radchat.protocol import Event
from tests.chat.conftest import LOADED, PREDICTED, SAVED, VERIFIED, Run, full_script
from tests.chat.fake_server import FakeDaemon
from tests.chat.trees import long
from tests.e2e.harness import Terminal, clean_env, radchat
from tests.waiting import wait_until

GIB = 2**30


def test_a_prediction_comes_first_and_one_line_says_what_came_of_it(run: Run) -> None:
    done = run("cache", "load", "d9f1")
    assert (done.code, done.out) == (0, "")
    assert done.err == (
        "11,240 tokens: 10,900 on disk, about 0.2 s\n"
        "11,240 tokens: 10,900 restored from disk in 0.2 s; "
        "340 are on no tier: cache warm computes them\n"
    )
    assert run("cache", "warm").err.splitlines()[1] == (
        "11,240 tokens: 10,900 restored from disk, 340 computed in 0.2 s"
    )
    assert run("-q", "cache", "load").err == ""


def test_what_was_there_already_and_what_is_nowhere_are_told_as_they_are() -> None:
    there = {**LOADED, "device": 11239, "restored": 0, "missing": 1, "seconds": 0.003}
    assert cache_view.loaded(there) == "11,240 tokens: 11,239 were on the device in 3 ms"
    nowhere = {**there, "device": 0, "missing": 11240}
    assert cache_view.loaded(nowhere) == (
        "11,240 tokens: none restored in 3 ms; 11,240 are on no tier: cache warm computes them"
    )


def test_json_is_the_daemons_last_word_and_the_prediction_stays_on_stderr(run: Run) -> None:
    done = run("cache", "load", "--json")
    assert json.loads(done.out) == LOADED
    assert done.err == PREDICTED["text"] + "\n"


def test_a_save_says_how_much_of_the_path_is_on_disk_now(run: Run, daemon: FakeDaemon) -> None:
    assert run("cache", "save").err == (
        "saved 3,072 tokens of x\\x1b[31my\\x9bz (12 blocks, 64.0 MiB) in 0.3 s; "
        "all 3,210 tokens are on disk\n"
    )
    daemon.script["cache.save"] = lambda args: [Event("done", {**SAVED, "name": "q3", "tokens": 0})]
    assert run("cache", "save").err == (
        "nothing of q3 was still to be saved; all 3,210 tokens are on disk\n"
    )
    left = {**SAVED, "name": "q3", "on_disk_tokens": 3072, "left": "the hourly budget is used up"}
    daemon.script["cache.save"] = lambda args: [Event("done", left)]
    assert "; 3,072 of 3,210 tokens are on disk: the hourly budget" in run("cache", "save").err


@pytest.mark.parametrize(
    ("line", "method", "args"),
    [
        ("cache save", "cache.save", {"ref": "HEAD"}),
        ("cache load price --session x", "cache.load", {"ref": "price", "session": "x"}),
        ("cache warm", "cache.warm", {"ref": "HEAD"}),
        ("cache warm d9f1 -m other", "cache.warm", {"ref": "d9f1", "model": "other"}),
        ("cache evict d9f1 --tier disk", "cache.evict", {"ref": "d9f1", "tier": "disk"}),
        ("cache evict d9f1 --tier device", "cache.evict", {"ref": "d9f1"}),
        ("cache evict --tier disk -y", "cache.evict", {"tier": "disk"}),
        ("cache clear -y", "cache.clear", {"pinned": False, "device": True, "disk": False}),
        ("cache clear --disk -y", "cache.clear", {"pinned": False, "device": False, "disk": True}),
        ("cache clear --all -y", "cache.clear", {"pinned": True, "device": True, "disk": True}),
    ],
)
def test_what_is_asked_of_the_daemon(
    run: Run, daemon: FakeDaemon, line: str, method: str, args: dict[str, Any]
) -> None:
    done = run(*line.split())
    assert done.code == 0, done.err
    sent = daemon.asked(method)[-1]
    assert {key: sent.get(key) for key in args} == args


def test_a_file_is_warmed_as_f_sends_it(run: Run, daemon: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"\xef\xbb\xbfthe report\n")
    assert run("cache", "warm", f"@{path}", "-s", "be brief", "--dtype", "fp32").code == 0
    run("ask", "-f", str(path), "hi")
    warmed, asked = daemon.asked("cache.warm")[0], daemon.asked("generate")[0]
    assert warmed["files"] == asked["files"] == [{"name": "report.md", "text": "the report\n"}]
    assert (warmed["system"], warmed["dtype"], "ref" in warmed) == ("be brief", "fp32", False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cache warm one two", "takes one REF or files, @FILE (got one two)"),
        ("cache warm -s words", "a message has its own"),
        ("cache save @x", "only cache warm reads files"),
        ("cache load @x", "only cache warm reads files"),
        ("cache evict --tokens 5 --tier disk", "of the device"),
        ("cache evict --tier host", "want device or disk"),
        ("cache clear --disk", "add -y"),
        ("cache evict --tier disk", "forget all KV on disk? It will be computed again"),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_way_out(run: Run, line: str, says: str) -> None:
    done = run(*line.split())
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_file_that_cannot_be_read_is_named(run: Run, daemon: FakeDaemon) -> None:
    done = run("cache", "warm", "@/nonexist")
    assert done.code == 42
    assert "/nonexist" in done.err
    assert daemon.asked("cache.warm") == []


def test_what_was_freed_is_told_by_tier(run: Run) -> None:
    assert run("cache", "clear", "-y").err == "freed 32 tokens\n"
    assert run("cache", "clear", "--disk", "-y").err == "freed 256 tokens on disk (1.0 MiB)\n"
    assert run("cache", "clear", "--all", "-y").err == (
        "freed 32 tokens and 256 tokens on disk (1.0 MiB)\n"
    )
    done = run("cache", "evict", "--tier", "disk", "-y")
    assert done.err == "freed 32 tokens on disk (4.0 KiB)\n"


def test_verify_ends_with_one_and_a_list_where_a_block_was_damaged(
    run: Run, daemon: FakeDaemon
) -> None:
    done = run("cache", "verify")
    assert (done.code, done.err) == (0, "43 blocks, 512.0 MiB: all as they were written\n")
    bad = [{"key": "0f3a9c21" + "0" * 24, "why": "the checksum \x1b[1m"}]
    broken = {**VERIFIED, "ok": False, "bad": bad, "adopted": 1, "swept": 2}
    daemon.script["cache.verify"] = lambda args: [Event("done", broken)]
    done = run("cache", "verify")
    assert (done.code, done.out) == (1, "bad       0f3a9c21  the checksum \\x1b[1m\n")
    assert ": 1 damaged and deleted, computed again when needed; 1 file" in done.err
    assert "1 file without an entry taken in; 2 files without an entry swept away" in done.err
    as_json = run("cache", "verify", "--json")
    assert (as_json.code, json.loads(as_json.out)) == (1, broken)


def slow(args: dict[str, Any]) -> Any:
    yield Event("notice", PREDICTED)
    for done in range(600):
        yield Event("progress", {"stage": "restore", "done": done, "total": 600})
        time.sleep(0.05)


def test_ctrl_c_cancels_it_and_progress_is_a_terminals(
    home: Path, daemon: FakeDaemon, run: Run
) -> None:
    daemon.script["cache.load"] = slow
    command = radchat("--daemon", str(daemon.path), "cache", "load")
    pipe = subprocess.Popen(
        command, env=clean_env(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: daemon.asked("cache.load"))
    time.sleep(0.3)
    pipe.send_signal(signal.SIGINT)
    out, err = pipe.communicate(timeout=60)
    assert (pipe.returncode, out) == (130, b"")
    assert err.decode() == f"{PREDICTED['text']}\ncancelled: what was done so far stays\n"
    assert daemon.noticed_cancel.wait(10)
    shown = Terminal(command, clean_env(home))
    shown.wait_for("restoring from disk 1%")
    shown.type("\x03")
    shown.wait_for("cancelled: what was done so far stays")
    assert "restoring from disk" not in shown.lines[-1]


def stats(**more: Any) -> dict[str, Any]:
    told = full_script()["cache.stats"]
    assert isinstance(told, dict)
    return {**told, "pins": [], **more}


def test_stats_have_a_line_a_tier_and_what_was_written() -> None:
    assert cache_view.stats(stats(), None)[:6] == [
        "G device  10 tokens, 2.0 KiB of 4.0 KiB",
        "D disk    3,072 tokens, 64.0 MiB of 8.00 GiB",
        "blocks    12",
        "written   1.0 MiB of 2.00 GiB this hour",
        "restored  1,900 tokens",
        "disk      64.00 GiB free",
    ]


def test_stats_say_why_nothing_is_kept() -> None:
    tiers = {"device": stats()["tiers"]["device"]}
    lines = cache_view.stats(stats(tiers=tiers, persist_off="KV is not kept: kv/lock"), 80)
    assert "persist   KV is not kept: kv/lock" in lines
    narrow = cache_view.stats(stats(tiers=tiers, persist_off="another " * 6 + "end"), 40)
    assert [line for line in narrow if "another" in line or "end" in line] == [
        "persist   another another another",
        "          another another another end",
    ]
    assert not any(line.startswith(("D ", "blocks", "written")) for line in lines)
    lines = cache_view.stats(stats(persist="always", disk_trouble="the disk is full"), 80)
    assert "persist   always" in lines
    assert "trouble   the disk is full" in lines
    assert "\x1b" not in "".join(cache_view.stats(stats(disk_trouble="\x1b[1m"), 80))


def test_without_a_model_the_disk_is_told_all_the_same() -> None:
    tiers = {"device": None, "disk": stats()["tiers"]["disk"]}
    lines = cache_view.stats(stats(tiers=tiers, total_tokens=None), 80)
    assert lines[0] == "nothing is cached on the device: no model is loaded"
    assert lines[1].startswith("D disk    3,072 tokens")
    assert "written" in lines[3]


def test_why_says_what_of_it_would_come_from_disk_now() -> None:
    answer = full_script()["cache.why"]["answers"][0]
    answer |= {"restored": 3, "from_disk": [[4, 7]]}
    now = {"device": 4, "host": 0, "disk": 6, "computed": 2}
    lines = why_view.why({"answers": [{**answer, "now": now}]}, None)
    assert "  disk             3  restored (25.0%): 4-7" in lines
    assert "would be reused (83.3%), 6 of them from disk" in lines[-1]
    answer["parts"][0]["why"] = "it is no longer cached, and nothing of it is on disk (a reason)"
    shown = why_view.why({"answers": [{**answer, "now": now}]}, 60)
    assert all(len(line) <= 60 for line in shown)
    assert shown[5:7] == [
        "                   8  template: it is no longer cached, and",
        "                      nothing of it is on disk (a reason)",
    ]


def test_what_is_reused_behind_a_gap_does_not_contradict_where_it_begins() -> None:
    answer = full_script()["cache.why"]["answers"][0]
    answer |= {"matched": 0, "restored": 4, "from_disk": [[0, 4]]}
    lines = why_view.why({"answers": [answer]}, None)
    assert lines[2:5] == [
        "  device           0",
        "  disk             4  restored (33.3%): 0-4",
        "  computed         8",
    ]
    assert any(line.startswith("  reuse ended at token 4:") for line in lines)
    behind = {**answer, "restored": 6, "computed": 6, "from_disk": [[0, 4], [10, 12]]}
    told = why_view.why({"answers": [behind]}, None)
    assert any(line.startswith("  the first gap is at token 4:") for line in told)


@pytest.mark.parametrize("num", range(1, 8))
def test_an_excerpt_begins_with_a_whole_character(num: int) -> None:
    ended = {"position": 4, "before": "\x1b\n" * 9 + "a" * num, "token": "t", "after": ""}
    answer = full_script()["cache.why"]["answers"][0] | {"ended": ended}
    line = next(line for line in why_view.why({"answers": [answer]}, None) if ">>" in line)
    shown = line.partition(":  ...")[2].partition(">>")[0]
    assert shown.startswith(("\\x1b", "\\n"))
    assert len(shown) <= why_view.AROUND - 3


def test_where_nothing_is_on_the_device_the_tree_says_what_is_on_disk(
    run: Run, daemon: FakeDaemon
) -> None:
    disk = {"tokens": 3072, "bytes": 2**26, "budget_bytes": 2**33}
    daemon.script["cache.tree"] = {"nodes": [], "tiers": {"disk": disk}}
    assert run("cache", "tree").out == (
        "nothing is cached on the device\nD disk    3,072 tokens, 64.0 MiB of 8.00 GiB\n"
    )
    daemon.script["cache.tree"] = {"nodes": [], "tiers": {"disk": {**disk, "tokens": 0}}}
    assert run("cache", "tree").out == "nothing is cached\n"


def test_a_file_is_completed_behind_its_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.md").touch()
    Path("reports").mkdir()
    Path("reports/q3.md").touch()
    Path(".hidden").touch()

    def values(prefix: str) -> list[Candidate]:
        asked = wanted(["cache", "warm"], prefix)
        return candidates(Cli(env={"RADCHAT_HOME": str(tmp_path)}), asked)[0]

    assert [each.value for each in values("@rep")] == ["@report.md", "@reports/"]
    assert [each.more for each in values("@rep")] == [False, True]
    assert [each.value for each in values("@reports/")] == ["@reports/q3.md"]
    assert [each.value for each in values("@.h")] == ["@.hidden"]
    assert values("@nowhere/") == []


def test_the_same_words_in_a_chat(home: Path, daemon: FakeDaemon) -> None:
    daemon.script["models.load"] = lambda args: [Event("done", {"model": "tiny"})]
    terminal = Terminal(
        radchat("--daemon", str(daemon.path), "chat", "-c"),
        clean_env(home, RADCHAT_MODEL="tiny"),
        columns=120,
        rows=40,
    )
    terminal.wait_for("> ")
    for line, shown in (
        ("/cache load ~2", "10,900 restored from disk in 0.2 s"),
        ("/cache save", "all 3,210 tokens are on disk"),
        ("/cache warm #4", "340 computed"),
        ("/cache verify", "43 blocks, 512.0 MiB: all as they were written"),
        (
            "/cache clear disk",
            "forget all KV on disk? It will be computed again",
        ),
        ("y", "freed 256 tokens on disk"),
        ("/cache clear --all", "forget all KV, on the device and on disk, and all pins?"),
        ("", "error: not done"),
        ("/cache clear --all -y", "freed 32 tokens and 256 tokens on disk"),
        ("/cache evict 4 disk", "freed 32 tokens on disk (4.0 KiB)"),
        ("/cache evict --tier disk", "forget all KV on disk?"),
        ("yes", "freed 32 tokens on disk (4.0 KiB)"),
        ("/cache evict nowhere more", "/cache evict wants a REF, --tier device|disk or both"),
        ("/cache why", "reuse ended at token 4"),
        ("/cache pin 4 --for 90m", "pinned d9f1 of"),
        ("/cache clear nothing", "want disk, all, or nothing more"),
    ):
        terminal.type(f"{line}\r")
        terminal.wait_for(shown)
    assert [call["pinned"] for call in daemon.asked("cache.clear")] == [False, True]
    of_a_message, whole = daemon.asked("cache.evict")
    assert (of_a_message["ref"], of_a_message["tier"]) == ("4", "disk")
    assert (whole.get("ref"), whole["tier"]) == (None, "disk")
    assert daemon.asked("cache.pin")[0]["hold_s"] == 5400
    loaded, warmed = daemon.asked("cache.load")[0], daemon.asked("cache.warm")[0]
    assert (loaded["ref"], warmed["ref"]) == ("HEAD~2", "4")
    assert loaded["head"] == {"branch": "main", "message": long("d9f1")}
    daemon.script["cache.load"] = slow
    terminal.type("/cache load\r")
    terminal.wait_for("restoring from disk")
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    terminal.type("\x04")
    assert terminal.wait_end() == 0
