"""Markdown in a real terminal: each line once, resized or not, and plain where it is to be."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radchat.errors import ModelBroken
from radchat.protocol import Event
from tests.chat.conftest import Run
from tests.chat.fake_server import FakeDaemon, answer_events
from tests.e2e.harness import Terminal, clean_env, radchat

Open = Callable[..., Terminal]
SGR = re.compile(r"\x1b\[[0-9;]*m")
MARK = re.compile(r"w\d{4}")
SAMPLE = """\
# A title

Some **bold** and `code`,
- an item

| a | b |
|---|---|
| c | d |

```py
x = 1
```
"""
BLOCK = """\
## Heading {}

A paragraph with **bold {}** and `code {}`, [a link {}](http://x.y), 2*3*4 = {}, long enough to be
broken into lines {}, 中文字 {} and so on {}; and this goes on so that it is broken once more {}.

- item {}
  - nested {} a[0] [/INST]
    goes on {}
3. third {}

> quoted {}
> more {}

```python
def {}(x):
    return 'a' + x  # {}


class {}: ...
```

| name | value |
|:-----|------:|
| {} | {} |
| 中文 | {} |

---

plain {} text
in lines {}
"""


def document(lines: int) -> str:
    """Markdown of so many lines, each mark in it another."""
    text, number = "", 0
    while text.count("\n") < lines:
        for part in re.split(r"(\{\})", BLOCK):
            text += f"w{number:04}" if part == "{}" else part
            number += part == "{}"
    return text


def cut(text: str, length: int = 5) -> Iterator[str]:
    for at in range(0, len(text), length):
        yield text[at : at + length]


@pytest.fixture
def ask(home: Path, daemon: FakeDaemon) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_(*args: str, rows: int = 24, columns: int = 80, **env: str) -> Terminal:
        command = radchat("--daemon", str(daemon.path), *(args or ("ask", "go")))
        env = clean_env(home, RADCHAT_MODEL="tiny") | env
        opened.append(Terminal(command, env, rows=rows, columns=columns))
        return opened[-1]

    yield open_
    for terminal in opened:
        terminal.child.close(force=True)


def test_500_lines_are_each_in_the_scrollback_once(ask: Open, daemon: FakeDaemon) -> None:
    text = document(500)
    daemon.script["generate"] = lambda args: answer_events(cut(text, 11))
    terminal = ask()
    assert terminal.wait_end() == 0
    assert MARK.findall(terminal.everything) == MARK.findall(text)
    lines = terminal.everything.split("\n")
    assert lines[0] == "## Heading w0000"
    assert lines[-2].startswith("main@d9f1")
    assert "w0018  w0019" in lines  # the table
    assert "  - nested w0010 a[0] [/INST]" in lines


def test_a_window_resized_in_mid_answer_repeats_and_loses_nothing(
    ask: Open, daemon: FakeDaemon
) -> None:
    text = document(90)
    goes_on = [threading.Event() for _ in range(3)]
    *parts, last = re.split("(?<=so that it )", text, maxsplit=3)

    def pieces() -> Iterator[str]:
        for number, (part, may_go) in enumerate(zip(parts, goes_on, strict=True)):
            yield from cut(part)
            yield f"resize{number} "
            assert may_go.wait(60)
        yield from cut(last)

    daemon.script["generate"] = lambda args: answer_events(pieces())
    terminal = ask()
    for number, columns in enumerate((60, 100, 80)):
        terminal.wait_for(lambda t, n=number: f"resize{n}".encode() in t.raw)  # type: ignore[misc]
        terminal.resize(24, columns)
        goes_on[number].set()
    assert terminal.wait_end() == 0
    answer = terminal.raw.decode().partition("##")[2].partition("main@d9f1")[0]
    left = SGR.sub("", re.sub(r"\r\x1b\[2K(table: \d+ lines)?", "", answer))
    assert "\x1b" not in left
    assert "\r" not in left.replace("\r\n", "")
    assert MARK.findall(left) == MARK.findall(text)


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (("ask", "--raw", "go"), {}),
        (("--plain", "ask", "go"), {}),
        (("--color", "never", "ask", "go"), {}),
        (("ask", "go"), {"NO_COLOR": "1"}),
        (("ask", "go"), {"TERM": "dumb"}),
        (("ask", "go"), {"TERM": "dumb", "FORCE_COLOR": "1"}),
    ],
)
def test_the_models_own_text_where_it_is_wanted(
    ask: Open, daemon: FakeDaemon, args: tuple[str, ...], env: dict[str, str]
) -> None:
    daemon.script["generate"] = lambda args: answer_events(cut(SAMPLE + "\x1b[2J", 4))
    terminal = ask("-q", *args, **env)
    assert terminal.wait_end() == 0
    wanted = (SAMPLE + "\\x1b[2J\n").replace("\n", "\r\n").encode()
    assert terminal.raw == wanted


@pytest.mark.parametrize("flag", [[], ["--raw"], ["--no-stream"]])
def test_a_pipe_gets_the_models_own_text(run: Run, daemon: FakeDaemon, flag: list[str]) -> None:
    daemon.script["generate"] = lambda args: answer_events(cut(SAMPLE))
    assert run("ask", "go", *flag, FORCE_COLOR="1").out == SAMPLE
    assert daemon.asked("generate")[-1].keys().isdisjoint({"raw"})


@pytest.mark.parametrize(
    "args", [("ask", "go", "--no-stream"), ("retry",), ("fork", "main", "go on")]
)
def test_other_commands_show_it_too(ask: Open, daemon: FakeDaemon, args: tuple[str, ...]) -> None:
    daemon.script["generate"] = lambda args: answer_events(cut(SAMPLE))
    terminal = ask(*args)
    assert terminal.wait_end() == 0
    assert (
        "Some bold and code,\n- an item\n\na  b\n-  -\nc  d\n\n```py\nx = 1\n```" in terminal.text
    )


def test_a_chat_shows_it_and_ctrl_c_in_mid_block_leaves_a_fresh_line(
    ask: Open, daemon: FakeDaemon
) -> None:
    cancelled = threading.Event()

    def pieces() -> Iterator[str]:
        yield "# Title\n\nhalf **of a "
        assert cancelled.wait(60)

    def cancel(args: dict[str, Any]) -> dict[str, Any]:
        cancelled.set()
        return {"cancelled": True}

    daemon.script |= {"generate": lambda args: answer_events(pieces()), "cancel": cancel}
    terminal = ask("chat")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("half")
    assert "of a" not in terminal.text  # it waits for its end
    terminal.type("\x03")
    terminal.wait_for("cancelled: what came so far is kept")
    terminal.settle()
    lines = terminal.lines
    at = lines.index("# Title")
    assert lines[at + 2] == "half **of a"
    assert lines[at + 3].startswith("main@d9f1")


def test_an_error_in_mid_block_shows_what_came_first(ask: Open, daemon: FakeDaemon) -> None:
    def events(args: dict[str, Any]) -> Any:
        for event in answer_events(["| a | b |\n", "|---|---|\n", "| c | *d"]):
            if event.name == "message":
                yield Event("error", ModelBroken("it broke").to_json())
                return
            yield event

    daemon.script["generate"] = events
    terminal = ask()
    assert terminal.wait_end() != 0
    assert terminal.text.startswith("a  b\n-  --\nc  *d\nerror: it broke")


def test_a_notice_in_mid_line_has_a_line_of_its_own(ask: Open, daemon: FakeDaemon) -> None:
    def events(args: dict[str, Any]) -> Any:
        for event in answer_events(["- one two ", "three **fo", "ur** five"]):
            yield event
            if event.name == "delta" and "three" in event.data["text"]:
                yield Event("notice", {"text": "mind the gap"})

    daemon.script["generate"] = events
    terminal = ask()
    assert terminal.wait_end() == 0
    assert terminal.text.startswith("- one two three\nmind the gap\n  four five\nmain@d9f1")


def test_a_table_says_that_it_comes(ask: Open, daemon: FakeDaemon) -> None:
    goes_on = threading.Event()

    def pieces() -> Iterator[str]:
        yield "| a | b |\n|---|---|\n| c | d |\n| e "
        assert goes_on.wait(60)
        yield "| f |\n\nafter"

    daemon.script["generate"] = lambda args: answer_events(pieces())
    terminal = ask()
    terminal.wait_for("table: 3 lines")
    goes_on.set()
    assert terminal.wait_end() == 0
    assert terminal.text.startswith("a  b\n-  -\nc  d\ne  f\n\nafter\nmain@d9f1")


def test_a_chat_that_wants_it_raw(ask: Open, daemon: FakeDaemon) -> None:
    daemon.script["generate"] = lambda args: answer_events(cut(SAMPLE))
    terminal = ask("chat", "--raw")
    terminal.wait_for("> ")
    terminal.type("go\r")
    terminal.wait_for("tok/s")
    assert "\n".join(SAMPLE.splitlines()) in terminal.text


def test_an_answer_that_is_gone_on_with_in_its_code(ask: Open, daemon: FakeDaemon) -> None:
    def events(args: dict[str, Any]) -> Any:
        for event in answer_events([" = a*b*c\n", "# d\n```\n*so*"]):
            if event.name == "init":
                event.data["continues"] = "Look:\n\n```py\nx"
            yield event

    daemon.script["generate"] = events
    terminal = ask("continue")
    assert terminal.wait_end() == 0
    assert terminal.text.startswith("x = a*b*c\n# d\n```\nso\nmain@d9f1")
