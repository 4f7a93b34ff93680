"""`cache top`: the lines, the marks of what changed, and the live view in a terminal."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.chat import top_view
from radchat.chat.width import width
from radchat.errors import Busy, RadchatError
from tests.chat.conftest import HOSTILE, Run
from tests.chat.fake_server import FakeDaemon
from tests.chat.tops import of, row, top
from tests.e2e.harness import Terminal, clean_env, radchat

GONE = row("price", 329, device=0, disk=328)


def test_one_look_as_lines() -> None:
    lines = top_view.lines(top(), None)
    assert lines[:4] == [
        "smollm2-135m bf16  running 1  waiting 0  hit rate 87.3%",
        "G device [######..............] 324.0 MiB of 1.00 GiB",
        "D disk   [#...................] 256.0 MiB of 8.00 GiB",
        "tokens 4,096:  free 2,800  evictable 448  pinned 0  locked 848",
    ]
    assert lines[4:] == [
        "lru  kv  lock  tokens       room  used  hits  session    branch       text",
        "  1  G   -        329   84.0 MiB  4s       3  report-q3  price        the words of price",
        "  2  G   -        100   28.0 MiB  1m       3  -          (no branch)",
        "  -  G   L          -    8.0 MiB  -        3  -          (now)        for main: report-q3",
        "  -  G   L        765  192.0 MiB  now      3  report-q3  (shared)     for main: report-q3",
        "  -  G   L         40   12.0 MiB  now      3  report-q3  main         for main: report-q3",
        "  -  D   -        313          -  2m       -  report-q3  report-q3    report-q3",
        top_view.LEGEND,
    ]


@pytest.mark.parametrize("columns", [80, 109, 110, 200])
def test_it_fits_any_terminal_and_its_text_is_clean(columns: int) -> None:
    lines = top_view.lines(top("x\x1b[31m漢字" * 9), columns)
    assert all(width(line) <= columns for line in lines)
    assert not any(char < " " or char == "\x9b" for line in lines for char in line)
    assert any(" text" in line for line in lines) == (columns >= top_view.WIDE)


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_long_session_name_elsewhere_hides_no_branch(columns: int) -> None:
    """Numbers go, and names of sessions get shorter: branches are what one looks for."""
    names = ["price-of-the-tallest-tree", "main", "where-do-the-ducks-go-at"]
    rows = [row(name, 12_345, disk=8000, rank=i + 1) for i, name in enumerate(names)]
    rows.append(row("capital", 9, name="the-capital-of-france-and-of-spain", ephemeral=True))
    marks = {top_view.key_of(rows[0]): "G>D"}
    head, *lines = top_view.body(of(rows), rows, marks, columns)
    assert all(width(line) <= columns for line in [head, *lines])
    seen = [line[head.index("branch") :].split("  ")[0] for line in lines]
    assert seen[1:] == [*names[1:], "capital"]
    assert seen[0].removesuffix("...") in names[0]
    assert len(seen[0]) >= top_view.BRANCH_LEAST - 1
    assert head.split()[:4] == ["lru", "kv", "now", "lock"]
    assert "the-cap" in lines[-1]


def test_a_wide_terminal_gives_its_room_to_the_words() -> None:
    words = "the words of it " * 12
    rows = [row("a-branch-with-quite-a-long-name-of-its-own", 9, text=words)]
    line = top_view.body(of(rows), rows, {}, 200)[1]
    assert "a-branch-with-quite-a-long-name-of-it..." in line
    assert line.count("the words of it") == 6
    assert 195 < width(line) <= 200


def test_an_empty_cache_has_columns_too() -> None:
    assert top_view.body(of([]), [], {}, 80)[0].split()[-2:] == ["session", "branch"]


@pytest.mark.parametrize(
    ("share", "marks"), [(0.0, 0), (1e-9, 1), (0.5, 10), (0.999, 19), (1.0, 20), (1.2, 20)]
)
def test_a_bar_is_empty_and_full_only_where_that_is_so(share: float, marks: int) -> None:
    assert top_view.bar(share) == "#" * marks + "." * (20 - marks)


def test_a_row_says_where_its_tokens_are_who_locks_it_and_what_is_pinned() -> None:
    half = row("main", 100, device=80, disk=10)
    assert top_view.kv(half) == "G 80% D 10%"
    assert top_view.kv({**half, "pinned_tokens": 16}) == "G* 80% D 10%"
    assert top_view.kv(row("new", 0)) == "-"
    assert top_view.kv(row(None, 0, device=5, kind="shared")) == "G"
    result = of([{**half, "locked_tokens": 96, "answers": ["a", "b", "c"]}])
    asked = [{"message": m, "name": "s", "branch": None, "text": m} for m in "abc"]
    line = top_view.lines({**result, "answers": asked}, None)[-2]
    assert " L3 " in line
    assert line.endswith("for s: a, and 2 more")


def test_what_several_sessions_share_says_so() -> None:
    shared = row(None, 0, kind="shared", name=None, held_tokens=64, session=None)
    line = next(line for line in top_view.lines(of([shared]), 80) if "(shared)" in line)
    assert "(several)  (shared)" in line


def test_each_order_has_its_first() -> None:
    rows = top()["rows"]
    firsts = {by: top_view.ordered(rows, by)[0] for by in top_view.ORDERS}
    assert [firsts[by]["branch"] or firsts[by]["kind"] for by in ("lru", "size", "used")] == [
        "price", "shared", "shared",
    ]  # fmt: skip
    assert firsts["session"]["name"] is None


@pytest.mark.parametrize(
    ("before", "now", "mark"),
    [
        (row("a", 9), row("a", 9), ""),
        (row("a", 9), row("a", 9, device=0, disk=8), "G>D"),
        (row("a", 99), row("a", 99, device=50), "G>-"),
        (row("a", 9, device=0, disk=9), row("a", 9), "D>G"),
        (row("a", 9), row("a", 12), "+"),
        (row("a", 9, device=0, disk=9), row("a", 9, device=0), "D>-"),
        (None, row("a", 9), "+"),
        (row(None, 0, device=9, kind="running"), row(None, 0, device=40, kind="running"), "+"),
    ],
)
def test_what_has_changed(before: Any, now: Any, mark: str) -> None:
    assert top_view.change(before, now) == mark


def test_a_mark_stays_for_a_few_looks_and_the_first_look_has_none() -> None:
    changes = top_view.Changes()
    price, gone = row("price", 329), GONE
    key = top_view.key_of(price)
    assert changes.look([price]) == {}
    seen = [changes.look([gone]) for _ in range(top_view.KEPT_LOOKS + 1)]
    assert seen == [{key: "G>D"}] * top_view.KEPT_LOOKS + [{}]


def test_without_a_screen_it_looks_once(run: Run, daemon: FakeDaemon) -> None:
    for args in ([], ["--once"], ["--once", "-n", "9"]):
        done = run("cache", "top", *args)
        assert done.code == 0
        assert HOSTILE not in done.out
        assert "x\\x1b[31my" in done.out
    assert len(daemon.asked("cache.top")) == 3
    assert json.loads(run("cache", "top", "--json").out) == top(HOSTILE)
    assert run("cache", "top", "-n", "0").code == 2
    daemon.script["cache.top"] = Busy("the engine has been in one step for 3 s: try again later")
    assert run("cache", "top").code == 75


@pytest.mark.parametrize("args", [["--once"], ["--json"]], ids=str)
def test_one_look_waits_for_a_long_step(run: Run, daemon: FakeDaemon, args: list[str]) -> None:
    busy = Busy("the engine has been in one step for 3 s: try again later")
    answers = going(busy, busy, of([row("price", 329)]))
    daemon.script["cache.top"] = lambda _args: next(answers)
    done = run("cache", "top", *args)
    assert (done.code, done.err) == (0, "")
    assert "price" in done.out


def going(*results: dict[str, Any] | RadchatError) -> Iterator[dict[str, Any] | RadchatError]:
    return itertools.chain(results, itertools.repeat(results[-1]))


def test_live_a_branch_goes_from_the_device_to_disk(daemon: FakeDaemon, home: Path) -> None:
    busy = Busy("the engine has been in one step for 3 s: try again later")
    many = [row(f"branch-{n:02}", 9, rank=n + 2) for n in range(30)]
    now: list[dict[str, Any] | RadchatError] = [of([row("price", 329, rank=1), *many])]
    looked = []

    def look(_args: dict[str, Any]) -> dict[str, Any] | RadchatError:
        looked.append(now[0])
        return looked[-1]

    daemon.script["cache.top"] = look
    command = radchat("--daemon", str(daemon.path), "cache", "top", "-n", "0.2")
    with Terminal(command, clean_env(home)) as terminal:
        terminal.wait_for("q leave")
        assert "  1  G " in terminal.text
        assert "price" in terminal.text
        assert "text" not in terminal.text
        now[0] = busy
        terminal.wait_for("one step for 3 s")
        now[0] = of([GONE, *many])
        terminal.wait_for(lambda t: "one step" not in t.text)
        terminal.type("\x1b[F")  # End: what is on disk is the last
        terminal.wait_for(lambda t: "rows 16-31 of 31" in t.text and "  -  D   G>D" in t.text)
        terminal.type("\x1b[H")
        terminal.wait_for("rows 1-16 of 31")
        terminal.resize(50, 200)
        terminal.wait_for(lambda t: "rows 1-31 of 31" in t.text and "the words of price" in t.text)
        assert len(terminal.lines[-1]) <= 200
        terminal.type("s")
        terminal.wait_for("sort: size")
        terminal.type("p")
        terminal.wait_for("paused")
        terminal.resize(24, 80)
        terminal.wait_for("rows 1-16 of 31")
        num = len(looked)
        terminal.type("p")
        terminal.wait_for(lambda _: len(looked) > num)
        terminal.type("q")
        assert terminal.wait_end() == 0
        raw = terminal.raw
    assert raw.index(b"\x1b[?1049h") < raw.index(b"\x1b[?1049l")
    assert raw.rindex(b"\x1b[?1049l") > raw.rindex(b"price"), "nothing of it stays behind"
    assert b"G>D" in raw


def test_where_a_look_takes_long_it_looks_less_often(daemon: FakeDaemon, home: Path) -> None:
    looked = []

    def look(_args: dict[str, Any]) -> dict[str, Any]:
        looked.append(time.monotonic())
        return of([row("price", 329)], look_s=0.1)

    daemon.script["cache.top"] = look
    command = radchat("--daemon", str(daemon.path), "cache", "top", "-n", "0.01")
    with Terminal(command, clean_env(home)) as terminal:
        terminal.wait_for(lambda _: len(looked) >= 3)
        terminal.type("q")
        assert terminal.wait_end() == 0
    assert all(after - before >= 0.9 for before, after in itertools.pairwise(looked[:3]))


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_esc_and_ctrl_c_leave_too(daemon: FakeDaemon, home: Path, key: str) -> None:
    command = radchat("--daemon", str(daemon.path), "cache", "top")
    with Terminal(command, clean_env(home)) as terminal:
        terminal.wait_for("lru 1 goes first")
        terminal.type(key)
        assert terminal.wait_end() == 0


def test_it_ends_with_the_daemon_and_says_so(daemon: FakeDaemon, home: Path) -> None:
    answers = going(of([row("price", 329)]), RadchatError("the disk broke"))
    daemon.script["cache.top"] = lambda _args: next(answers)
    command = radchat("--daemon", str(daemon.path), "cache", "top", "-n", "0.1")
    with Terminal(command, clean_env(home)) as terminal:
        assert terminal.wait_end() == 1
        assert "error: the disk broke" in terminal.text


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_where_no_view_may_be_it_is_lines_and_without_colour_it_has_none(
    daemon: FakeDaemon, home: Path, env: dict[str, str]
) -> None:
    command = radchat("--daemon", str(daemon.path), "cache", "top")
    with Terminal(command, clean_env(home) | env) as terminal:
        terminal.wait_for("lru 1 goes first")
        if env.get("NO_COLOR"):
            terminal.type("q")
        assert terminal.wait_end() == 0
        assert (b"\x1b" in terminal.raw) == ("NO_COLOR" in env)
        assert b"\x1b[3" not in terminal.raw


def test_in_a_chat_it_is_a_view_and_the_prompt_comes_back(daemon: FakeDaemon, home: Path) -> None:
    env = clean_env(home, RADCHAT_MODEL="tiny")
    with Terminal(radchat("--daemon", str(daemon.path), "chat"), env) as terminal:
        terminal.wait_for("> ")
        terminal.type("/cache top\r")
        terminal.wait_for("q leave")
        terminal.type("q")
        # not the end of the screen: the bar is drawn under the prompt, when the model is known
        terminal.wait_for(lambda t: "\n>" in t.text.partition("q leave")[2])
        terminal.type("/cache top --once\r")
        terminal.wait_for("lru 1 goes first")
        terminal.type("/bye\r")
        assert terminal.wait_end() == 0
