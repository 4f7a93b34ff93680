"""The worked example of sessions/README.md is true."""

from __future__ import annotations

import re
from array import array
from hashlib import blake2b
from pathlib import Path

from radchat_sessions import schema
from radchat_sessions.content import text_part
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from radchat_sessions.store import Store

README = (Path(__file__).parents[2] / "sessions" / "README.md").read_text()
ROW = re.compile(
    r"^\| `(\[.*\])` \| (?:nothing|`([0-9a-f]+)`) \| `(b2:[0-9a-f]{32})` \|$", re.MULTILINE
)


def test_the_digests_in_the_readme_follow_from_the_lines_beside_them() -> None:
    rows = ROW.findall(README)
    assert len(rows) == 3
    for line, ids, digest in rows:
        data = line.encode() + b"\n" + bytes.fromhex(ids)
        assert digest == "b2:" + blake2b(data, digest_size=16).hexdigest()


def test_a_store_writes_the_digests_of_the_readme(store: Store) -> None:
    session = store.create_session(clock="c")
    begun = store.begin(
        session.id,
        parent=None,
        new=[NewMessage.of("system", "Be brief."), NewMessage.of("user", "Hi")],
        prompt=NewPrompt(tail=array("I", [1]), tokenizer="t", settings="s"),
        answers=[NewAnswer("main")],
    )
    store.finish(
        begun.answer_ids[0],
        ids=array("I", [19556, 2]),
        parts=[text_part("Hello")],
        finish_reason="stop",
    )
    assert [m.digest for m in store.messages(session.id)] == [row[2] for row in ROW.findall(README)]


def test_the_readme_names_every_file_and_the_format() -> None:
    files = {path.name for path in Path(schema.__file__).parent.glob("*.py")} - {"__init__.py"}
    assert {name for name in files if f"`{name}`" in README} == files
    assert f"is the format, now {len(schema.SCRIPTS)};" in README
