from __future__ import annotations

from typing import Any

import pytest

from radchat.chat import footer
from radchat.chat.sessions_view import day_of, last_line
from tests.chat.fake_server import usage

ANSWER = {
    "branch": "main",
    "message": "d9f1" + "0" * 28,
    "model": "smollm2-135m",
    "dtype": "int4",
    "usage": usage(),
    "timing": {"first_token_s": 0.0412, "tokens_per_s": 62.3},
}


def test_the_footer_is_the_line_of_the_manual() -> None:
    line = footer.footer(ANSWER, context={"used": 1229, "limit": 8192}, saved_s=0.5)
    assert line == (
        "main@d9f1 · smollm2-135m int4 · ctx 1.2k/8.2k 15% · cached 1,180/1,211 (97.4%)"
        " saved 0.5 s · first token 41 ms · 62 tok/s"
    )


WHERE, MODEL, CONTEXT = "main@d9f1", "smollm2-135m int4", "ctx 1.2k/8.2k 15%"
CACHED, SAVED = "cached 1,180/1,211 (97.4%)", "cached 1,180/1,211 (97.4%) saved 0.5 s"
FIRST, SPEED = "first token 41 ms", "62 tok/s"


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (None, (WHERE, MODEL, CONTEXT, SAVED, FIRST, SPEED)),
        (130, (WHERE, MODEL, CONTEXT, SAVED, FIRST, SPEED)),
        (112, (WHERE, CONTEXT, SAVED, FIRST, SPEED)),
        (95, (WHERE, CONTEXT, CACHED, FIRST, SPEED)),
        (88, (WHERE, CONTEXT[:-4], CACHED, FIRST, SPEED)),
        (80, (WHERE, CACHED, FIRST, SPEED)),
        (60, (WHERE, CACHED, FIRST)),
        (40, (WHERE, CACHED)),
        (20, ("main@d9f1", "cache...")),
    ],
)
def test_the_footer_is_one_line_on_every_terminal(
    columns: int | None, parts: tuple[str, ...]
) -> None:
    context = {"used": 1229, "limit": 8192}
    line = footer.footer(ANSWER, context=context, saved_s=0.5, columns=columns)
    assert line == " · ".join(parts)
    assert columns is None or len(line) <= columns


RESTORED = {
    **ANSWER,
    "usage": usage(2012, 1980),
    "cache": {"device": 80, "host": 0, "disk": 1900, "computed": 32},
}
BOTH = "cached 1,980/2,012 (98.4%), 1,900 from disk"
NEW = "cached 0/2,012 (0.0%: the KV folder is new)"
LOST = {**ANSWER, "usage": usage(2012, 0), "cache": {"disk": 0, "computed": 2012}}
TOLD = "the KV folder is new"


@pytest.mark.parametrize(
    ("answer", "why", "columns", "parts"),
    [
        (RESTORED, None, None, (WHERE, MODEL, CONTEXT, f"{BOTH} saved 0.5 s", FIRST, SPEED)),
        (RESTORED, None, 100, (WHERE, BOTH, FIRST, SPEED)),
        (RESTORED, None, 80, (WHERE, BOTH, FIRST)),
        (RESTORED, None, 60, (WHERE, BOTH)),
        (RESTORED, None, 50, (WHERE, "cached 1,980/2,012 (98.4%)")),
        (LOST, TOLD, None, (WHERE, MODEL, CONTEXT, NEW, FIRST, SPEED)),
        (LOST, TOLD, 80, (WHERE, NEW, FIRST)),
        (LOST, TOLD, 60, (WHERE, NEW)),
        (LOST, TOLD, 50, (WHERE, "cached 0/2,012 (0.0%)")),
    ],
)
def test_what_came_from_disk_and_why_nothing_did_are_cut_last(
    answer: dict[str, Any], why: str | None, columns: int | None, parts: tuple[str, ...]
) -> None:
    context, saved = {"used": 1229, "limit": 8192}, None if why else 0.5
    line = footer.footer(answer, context=context, saved_s=saved, why=why, columns=columns)
    assert line == " · ".join(parts)
    assert columns is None or len(line) <= columns


def test_a_reason_is_one_line_whatever_is_in_it() -> None:
    line = footer.footer(LOST, context={}, saved_s=None, why="a\n\x1b[2Jb")
    assert "(0.0%: a \\x1b[2Jb)" in line


def test_what_was_not_measured_is_left_out_and_zero_is_shown() -> None:
    answer = {**ANSWER, "timing": {"first_token_s": None, "tokens_per_s": None}}
    answer["usage"] = usage(cached=0)
    line = footer.footer(answer, context={}, saved_s=None)
    assert line == "main@d9f1 · smollm2-135m int4 · cached 0/1,211 (0.0%)"


def test_a_branch_name_cannot_drive_the_terminal() -> None:
    line = footer.footer({**ANSWER, "branch": "a\x1b[2Jb\nc"}, context={}, saved_s=None)
    assert line.startswith("a\\x1b[2Jb c@d9f1")


def test_one_thing_is_no_plural() -> None:
    assert [footer.counted(number, "branch") for number in (1, 4)] == ["1 branch", "4 branches"]
    assert [footer.counted(number, "token") for number in (0, 1, 1180)] == [
        "0 tokens", "1 token", "1,180 tokens",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (1229, "1.2k"), (8192, "8.2k"), (99_949, "99.9k"),
     (131_072, "131k"), (1_048_576, "1.0M")],
)  # fmt: skip
def test_short_counts(number: int, text: str) -> None:
    assert footer.short_count(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "now"), (0.9, "now"), (1, "1s"), (4.4, "4s"), (59.7, "1m"), (60, "1m"),
     (125, "2m"), (7200, "2h"), (86400 * 5, "5d")],
)  # fmt: skip
def test_ages(value: float | None, text: str) -> None:
    assert footer.age(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2, "0s"), (1, "1s"), (59.7, "1m"), (90, "1m30s"), (3599, "59m59s"), (3599.8, "1h"),
     (5400, "1h30m"), (5398.7, "1h30m"), (7200, "2h"), (47 * 3600, "1d23h"), (85500, "23h45m"),
     (86399.5, "1d"), (86400, "1d"), (366 * 86400, "366d")],
)  # fmt: skip
def test_a_duration_that_was_given_is_not_made_shorter(value: float, text: str) -> None:
    assert footer.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0412, "41 ms"), (0.4121, "412 ms"), (0.9996, "1.0 s"), (1.24, "1.2 s"), (12.2, "12 s")],
)
def test_latencies(value: float, text: str) -> None:
    assert footer.latency(value) == text


def test_all_but_one_token_is_not_a_hundred_percent() -> None:
    assert footer.share(99_999, 100_000) == "99.9%"
    assert footer.share(5, 5) == "100.0%"


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(812, "812 B"), (1536, "1.5 KiB"), (int(1.42 * 2**30), "1.42 GiB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert footer.size(num_bytes) == text


def test_the_last_session_is_named_with_its_day() -> None:
    now = 1_700_000_000.0
    assert day_of(now, now) == "today"
    assert day_of(now - 86_400, now) == "yesterday"
    assert day_of(now - 30 * 86_400, now).startswith("2023-10-")
    last = {"name": "report", "messages": 14, "used": None}
    assert last_line(last) == "last: report, 14 messages: -c"
