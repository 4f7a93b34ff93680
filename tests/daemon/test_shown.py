"""A message in one line, as lists and trees show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.services import GREEDY, WHERE, house, run


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("summarise", "@report.md @notes.txt summarise"),
        ("summarise @report.md", "@notes.txt summarise @report.md"),
        ("what says @docs/report.md, and who?", "@notes.txt what says @docs/report.md, and who?"),
        ('read @"my docs/notes.txt"', '@report.md read @"my docs/notes.txt"'),
        ("not @report.mdx, nor mail@report.md", "@report.md @notes.txt not @report.mdx, nor"),
        ("", "@report.md @notes.txt"),
    ],
)
def test_a_file_that_a_message_names_is_named_once(tmp_path: Path, text: str, line: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            files = [{"name": name, "text": "words"} for name in ("report.md", "notes.txt")]
            await home.say(text, files=files, new_session=True, options=GREEDY)
            row = (await home.service.tree(WHERE))["messages"][0]
            assert row["text"].startswith(line)
            assert row["text"].count("@notes.txt") <= 1

    run(main())
