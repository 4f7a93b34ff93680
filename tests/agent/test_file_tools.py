"""Tools on files: bytes as they were, paths by where they really lead, errors one can act on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from radchat.agent.files import workspace
from radchat.agent.tools import schema, shaping
from radchat.agent.types import Call, Limits, Question
from radchat.errors import InvalidInput
from tests.agent.calls import TOOLS, Hands


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (made / "away").symlink_to(tmp_path / "outside")
    (made / "a.txt").write_text("one\ntwo\nthree\n")
    return made


@pytest.mark.parametrize(
    "text",
    ["../outside/secret", "away/secret", "./x/../../outside/secret", "away/../outside/secret"],
)
def test_a_path_is_judged_by_where_it_really_leads(text: str, root: Path) -> None:
    hands = Hands(root)
    for name, more in (
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit", {"old": "secret", "new": "x"}),
        ("grep", {"pattern": "s"}),
    ):
        preview = hands.preview(name, path=text, **more)
        (path,) = preview.reads or preview.writes
        assert path == root.parent / "outside" / "secret", name
        assert not hands.folder.is_inside(path)


@pytest.mark.parametrize("text", ["a\0b", "x" * 5000, "\ud800"])
@pytest.mark.parametrize("name", ["read_file", "list", "glob"])
def test_what_can_be_no_path_is_said(name: str, text: str, root: Path) -> None:
    arguments = {"pattern": "*", "path": text} if name == "glob" else {"path": text}
    assert Hands(root).preview(name, **arguments).error


def test_home_and_absolute_paths_are_what_they_say(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(root.parent / "outside"))
    folder = workspace.Folder.of(root)
    assert folder.resolve("~/secret") == root.parent / "outside" / "secret"
    assert folder.resolve(str(root / "a.txt")) == root / "a.txt"
    with pytest.raises(InvalidInput):
        folder.resolve("a\0")
    copy = workspace.Folder.of(root, alias=Path("/the/original"))
    assert copy.resolve("/the/original/a.txt") == root / "a.txt"


def test_a_link_that_is_swapped_in_later_is_not_followed(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_text("inside")
    hands = Hands(root)
    call = Call("c", "read_file", {"path": "d/f"})
    preview = TOOLS["read_file"].preview(call, hands.context)
    (root / "d").rename(root / "e")
    (root / "d").symlink_to(root.parent / "outside")
    (root.parent / "outside" / "f").write_text("outside")
    outcome = TOOLS["read_file"].run(call, hands.context, preview)
    assert outcome.status == "error"
    assert "outside" not in outcome.text
    write = Call("c", "write_file", {"path": "d/f", "content": "x"})
    from radchat.agent.types import Preview

    outcome = TOOLS["write_file"].run(write, hands.context, Preview("", writes=(root / "d" / "f",)))
    assert outcome.status == "error"
    assert (root.parent / "outside" / "f").read_text() == "outside"


def test_lines_are_numbered_and_read_in_parts(root: Path) -> None:
    hands = Hands(root)
    assert hands.call("read_file", path="a.txt").text == "1\tone\n2\ttwo\n3\tthree"
    part = hands.call("read_file", path="a.txt", offset=2, limit=1).text
    assert part == "2\ttwo\n[lines 2 to 2 of 3; offset=3 reads on]"
    assert hands.call("read_file", path="a.txt", offset=9).text == "a.txt: it has 3 lines"
    (root / "empty").write_bytes(b"")
    assert hands.call("read_file", path="empty").text == "empty: empty"
    (root / "bin").write_bytes(bytes(range(256)))
    assert hands.call("read_file", path="bin").text == "bin: binary, 256 bytes"
    (root / "latin").write_bytes("süß\n".encode("latin-1"))
    assert "s" in hands.call("read_file", path="latin").text
    os.mkfifo(root / "pipe")
    for name in ("nope", ".", "pipe"):
        assert hands.call("read_file", path=name).status == "error"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\n", "a\nb", "c\nd", b"c\r\nd\r\n"),
        (b"\xef\xbb\xbfa b", "a", "c", b"\xef\xbb\xbfc b"),
        (b"a \xff b", "b", "c", b"a \xff c"),
        (b"no end", "end", "more", b"no more"),
        ("é ü".encode(), "ü", "ö", "é ö".encode()),
    ],
)
def test_an_edit_changes_what_it_says_and_no_other_byte(
    before: bytes, old: str, new: str, after: bytes, root: Path
) -> None:
    file = root / "f"
    file.write_bytes(before)
    file.chmod(0o751)
    outcome = Hands(root).call("edit", path="f", old=old, new=new)
    assert outcome.status == "ok", outcome.text
    assert file.read_bytes() == after
    assert file.stat().st_mode & 0o777 == 0o751
    assert sorted(path.name for path in root.iterdir()) == ["a.txt", "away", "f"]


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("x", "old is in it 3 times (lines 1, 2, 4)"),
        ("xy", "old is not in it, to the last space"),
        ("def thre():", "(line 5 is 'def three():')"),
        ("", "old is empty"),
    ],
)
def test_an_edit_that_can_not_be_made_says_why(old: str, says: str, root: Path) -> None:
    (root / "f").write_text("x\nx\ny\nx\ndef three():\n")
    outcome = Hands(root).call("edit", path="f", old=old, new="z")
    assert outcome.status == "error"
    assert says in outcome.text


def test_all_places_or_one_and_only_of_what_was_read(root: Path) -> None:
    hands = Hands(root)
    (root / "f").write_text("x x x")
    assert hands.call("edit", path="f", old="x", new="y", all=True).status == "ok"
    assert (root / "f").read_text() == "y y y"
    hands.call("read_file", path="f")
    (root / "f").write_text("y else")
    outcome = hands.call("edit", path="f", old="y", new="z")
    assert "changed since it was read" in outcome.text
    hands.call("read_file", path="f")
    call = Call("c", "edit", {"path": "f", "old": "y", "new": "z"})
    preview = TOOLS["edit"].preview(call, hands.context)
    (root / "f").write_text("Y y")
    hands.context.seen.clear()
    assert "since this was approved" in TOOLS["edit"].run(call, hands.context, preview).text
    assert (root / "f").read_text() == "Y y"


def test_a_whole_file_is_written_with_its_folders_and_the_difference_is_shown(root: Path) -> None:
    hands = Hands(root)
    preview = hands.preview("write_file", path="new/deep/f.py", content="a\n")
    assert preview.body.startswith("--- /dev/null\n+++ b/new/deep/f.py\n")
    assert hands.call("write_file", path="new/deep/f.py", content="a\n").status == "ok"
    assert (root / "new" / "deep" / "f.py").read_text() == "a\n"
    preview = hands.preview("write_file", path="a.txt", content="one\n2\nthree")
    assert "-two\n-three\n+2\n+three\n" in preview.body
    assert "no newline at the end" in preview.body
    (root / "link").symlink_to("a.txt")
    hands.call("write_file", path="link", content="through")
    assert (root / "link").is_symlink()
    assert (root / "a.txt").read_text() == "through"
    assert hands.call("write_file", path=".", content="x").status == "error"


def test_files_are_found_by_name_and_by_what_is_in_them(root: Path) -> None:
    for name in ("src/a.py", "src/deep/b.py", "c.md", "node_modules/x/d.py", ".git/config"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"hello {name}\n")
    (root / "src" / "bin.py").write_bytes(b"hello\0")
    hands = Hands(root)
    assert hands.call("glob", pattern="*.py").text == "src/a.py\nsrc/bin.py\nsrc/deep/b.py"
    assert hands.call("glob", pattern="src/*.py").text == "src/a.py\nsrc/bin.py"
    assert "node_modules/x/d.py" in hands.call("glob", pattern="**/*.py", all=True).text
    assert hands.call("glob", pattern="*.{md,rst}").text == "c.md"
    assert hands.call("glob", pattern="*.zig").text == "none"
    for hostile in ("*a" * 30 + "b", "[ab].py"):
        assert hands.call("glob", pattern=hostile).status == "error"
    found = hands.call("grep", pattern="hel+o", glob="*.py").text
    assert found == "src/a.py:1:hello src/a.py\nsrc/deep/b.py:1:hello src/deep/b.py"
    assert hands.call("grep", pattern="HELLO", ignore_case=True, path="c.md").text.startswith(
        "c.md:1"
    )
    assert hands.call("grep", pattern="(").status == "error"
    assert hands.call("list").text.splitlines()[0] == ".git/ (not looked into)"
    assert f"away -> {root.parent / 'outside'}" in hands.call("list").text


def test_a_pattern_that_takes_for_ever_ends(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("radchat.agent.tools.finding.GREP_S", 0.5)
    (root / "f").write_text("a" * 60 + "\n")
    outcome = Hands(root).call("grep", pattern="(a+)+b", path="f")
    assert outcome.status == "timeout"


def test_a_long_result_is_cut_in_the_middle_and_can_be_read_on(root: Path) -> None:
    hands = Hands(root)
    hands.context.limits = Limits(result_bytes=400)
    text = "".join(f"line {number} é\n" for number in range(500))
    key = hands.context.outputs.keep(text.encode())
    shown = shaping.cut(text, 400, key)
    assert len(shown.encode()) < 560
    assert shown.startswith("line 0")
    assert shown.endswith("line 499 é\n")
    read, offset = "", 0
    while True:
        part = hands.call("read_output", id=key, offset=offset).text
        words = part.partition("\n[of ")[0] if "\n[of " in part else part
        assert len(part.encode()) <= 400
        read += words
        offset += len(words)
        if words == part:
            break
    assert read == text
    assert "there are o1" in hands.call("read_output", id="o7").text
    assert "named o1" in hands.call("read_output", id="../x").text


@pytest.mark.parametrize(
    ("data", "shown"),
    [(b"a\0b", "[binary: 3 bytes]"), (b"\xff\xfe x", "\ufffd\ufffd x"), (b"plain", "plain")],
)
def test_bytes_become_text_whatever_they_are(data: bytes, shown: str) -> None:
    assert shaping.as_text(data) == shown


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read_file", {}, "wants 'path'"),
        ("read_file", {"path": 5}, "path: want string"),
        ("read_file", {"path": "a", "offset": 0}, "offset: want 1 or more"),
        ("read_file", {"path": "a", "offset": True}, "offset: want integer"),
        ("read_file", {"path": "a", "mode": "x"}, "read_file has no 'mode'"),
        ("edit", {"path": "a", "old": "b"}, "wants 'new'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, arguments: Any, says: str) -> None:
    found = schema.problem(Call("c", name, arguments), TOOLS[name].parameters)
    assert found is not None
    assert says in found


def test_the_user_is_asked_or_there_is_nobody(root: Path) -> None:
    hands = Hands(root)
    assert hands.call("ask_user", question="Which?").status == "error"
    asked: list[Question] = []

    def answer(question: Question) -> str | None:
        asked.append(question)
        return "blue" if question.choices else None

    hands.context.ask_user = answer
    assert hands.call("ask_user", question="Which?", choices=["red", "blue"]).text == "blue"
    assert hands.call("ask_user", question="Why?").status == "denied"
    assert asked[0].choices == ("red", "blue")
