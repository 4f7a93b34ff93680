"""The clipboard: the desktop's tool where there is one, else the terminal, else a plain word."""

from __future__ import annotations

import base64
import io
import os
import stat
from pathlib import Path

import pytest

from radchat.chat.clipboard import OSC_LIMIT, copy
from radchat.chat.exporting import format_of, write
from radchat.errors import InvalidInput, UsageError

TERMINAL = {"TERM": "xterm-256color"}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that are found first, and are alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/bin{os.pathsep}/usr/bin")
    return folder


def tool(folder: Path, name: str, code: int = 0) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat > {folder}/{name}.got\nexit {code}\n")
    path.chmod(0o700)
    return folder / f"{name}.got"


def test_the_terminal_gets_the_text_as_base64_where_there_is_no_tool() -> None:
    screen = io.StringIO()
    said = copy("naïve\n東京", screen, TERMINAL, which=lambda _: None)
    assert "OSC 52" in said
    written = screen.getvalue()
    assert written.startswith("\x1b]52;c;")
    assert written.endswith("\x07")
    assert base64.b64decode(written[7:-1]).decode() == "naïve\n東京"


def test_a_tool_of_the_desktop_goes_first_and_only_on_its_desktop(tools: Path) -> None:
    got = tool(tools, "wl-copy")
    screen = io.StringIO()
    assert copy("walnut", screen, {**TERMINAL, "WAYLAND_DISPLAY": "w"}) == "wl-copy"
    assert got.read_text() == "walnut"
    got.unlink()
    copy("walnut", screen, TERMINAL, which=lambda name: name if name == "wl-copy" else None)
    assert not got.exists()
    assert screen.getvalue()


def test_a_tool_that_fails_is_gone_around(tools: Path) -> None:
    tool(tools, "wl-copy", code=1)
    got = tool(tools, "xclip")
    env = {**TERMINAL, "WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}
    assert copy("walnut", None, env) == "xclip"
    assert got.read_text() == "walnut"


def test_what_is_too_long_for_a_terminal_is_refused_with_both_numbers() -> None:
    screen = io.StringIO()
    fits = "x" * (OSC_LIMIT // 4 * 3)
    copy(fits, screen, TERMINAL, which=lambda _: None)
    with pytest.raises(InvalidInput, match=f"{OSC_LIMIT:,}"):
        copy(fits + "xx", screen, TERMINAL, which=lambda _: None)


@pytest.mark.parametrize("env", [{}, {"TERM": "dumb"}])
def test_without_any_of_them_that_is_said(env: dict[str, str]) -> None:
    for screen in (None, io.StringIO()):
        with pytest.raises(InvalidInput, match="no clipboard here"):
            copy("walnut", screen, env, which=lambda _: None)
        assert screen is None or screen.getvalue() == ""


def test_a_file_is_written_whole_and_private_and_its_name_tells_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("before")
    path.chmod(0o644)
    link = tmp_path / "link.md"
    link.symlink_to(path)
    assert write(str(link), "after\n") == (link, True)
    assert link.is_symlink()
    assert path.read_bytes() == b"after\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidInput, match="cannot write"):
        write(str(tmp_path / "none" / "a.md"), "x")
    with pytest.raises(InvalidInput, match="cannot write"):
        write(str(tmp_path), "x")
    assert write(str(tmp_path / "new.md"), "x") == (tmp_path / "new.md", False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.md", "link.md", "new.md"]
    assert [format_of(p) for p in ("a.md", "a.JSON", "a.jsonl", "a.txt", None)] == [
        "md", "json", "jsonl", "md", "md",
    ]  # fmt: skip
    assert format_of("a.md", "openai") == "openai"
    with pytest.raises(UsageError, match="want md"):
        format_of(None, "pdf")
