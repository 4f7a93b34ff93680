"""The logs.db of simonw/llm, as its versions write it: old tables, new ones, both, and fewer."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from radchat_sessions import imports
from radchat_sessions.errors import Unreadable
from radchat_sessions.store import Store

FIRST = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT,
  prompt_json TEXT, options_json TEXT, response TEXT, response_json TEXT,
  conversation_id TEXT REFERENCES conversations (id), duration_ms INTEGER, datetime_utc TEXT);
"""
LATER = """
CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, path TEXT, url TEXT, content BLOB);
CREATE TABLE prompt_attachments (response_id TEXT, attachment_id TEXT, "order" INTEGER);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT, source TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE system_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT,
  arguments TEXT, tool_call_id TEXT);
CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER, name TEXT,
  output TEXT, tool_call_id TEXT);
ALTER TABLE responses ADD COLUMN input_tokens INTEGER;
ALTER TABLE responses ADD COLUMN reasoning TEXT;
"""
THREADS = """
CREATE TABLE IF NOT EXISTS fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT);
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT, provider_metadata TEXT);
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT,
  tool_name TEXT, text TEXT, payload TEXT);
CREATE TABLE threads (id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, forked_from TEXT,
  datetime_utc TEXT);
CREATE TABLE turns (id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT,
  tip_message_hash TEXT, model TEXT, datetime_utc TEXT);
"""


def make(path: Path, *scripts: str) -> Path:
    db = sqlite3.connect(path)
    for script in scripts:
        db.executescript(script)
    db.close()
    return path


def talks(store: Store, path: Path) -> list[list[tuple[str, str]]]:
    taken = store.take_in(imports.load(path))
    assert store.verify() == []
    return [
        [(m.role, m.text) for m in store.path(store.head(each.session).message)] for each in taken
    ]


def test_conversations_of_the_first_tables_come_in_the_order_of_their_time(
    tmp_path: Path, store: Store
) -> None:
    path = make(tmp_path / "logs.db", FIRST, """
        INSERT INTO conversations VALUES ('c1', 'pelicans', 'gpt'), ('c2', 'walruses', 'gpt');
        INSERT INTO responses (id, model, prompt, system, response, conversation_id, datetime_utc)
        VALUES ('r3', 'gpt', 'a walrus?', 'Be brief.', 'Wallace.', 'c2', '2024-01-03T00:00:00'),
               ('r2', 'gpt-2', 'and another?', NULL, 'Pete.', 'c1', '2024-01-02T00:00:00'),
               ('r1', 'gpt', 'a pelican?', NULL, 'Percy.', 'c1', '2024-01-01T00:00:00'),
               ('r4', 'gpt', 'alone', '', 'yes', NULL, '2024-01-04T00:00:00');
    """)  # fmt: skip
    assert talks(store, path) == [
        [("user", "a pelican?"), ("assistant", "Percy."), ("user", "and another?"),
         ("assistant", "Pete.")],
        [("system", "Be brief."), ("user", "a walrus?"), ("assistant", "Wallace.")],
        [("user", "alone"), ("assistant", "yes")],
    ]  # fmt: skip
    assert [s.session.name for s in store.sessions()] == ["alone", "walruses", "pelicans"]
    oldest = store.sessions()[-1]
    assert oldest.session.created == 1704067200.0
    path_of = store.path(oldest.head.message)
    assert [m.model for m in path_of] == [None, "gpt", None, "gpt-2"]
    assert all(m.out_len is None for m in path_of)  # text only: rendered when talked to


def test_fragments_tools_reasoning_and_attachments_of_later_tables(
    tmp_path: Path, store: Store
) -> None:
    path = make(tmp_path / "logs.db", FIRST, LATER, """
        INSERT INTO fragments VALUES (1, 'h', 'a whole novel', NULL), (2, 'i', 'rules', NULL);
        INSERT INTO responses (id, model, prompt, response, conversation_id, datetime_utc,
          reasoning)
        VALUES ('r1', 'm', 'sum it up', '', 'c', '2024-01-01T00:00:00', 'hm'),
               ('r2', 'm', '', 'done', 'c', '2024-01-01T00:00:01', NULL);
        INSERT INTO prompt_fragments VALUES ('r1', 1, 0);
        INSERT INTO system_fragments VALUES ('r1', 2, 0);
        INSERT INTO prompt_attachments VALUES ('r1', 'a', 0), ('r1', 'b', 1);
        INSERT INTO tool_calls VALUES (1, 'r1', 1, 'add', '{"a": 1}', 't1');
        INSERT INTO tool_results VALUES (1, 'r2', 1, 'add', '3', 't1');
    """)  # fmt: skip
    drafts = imports.load(path)
    assert imports.left_out(drafts) == {"attachments": 2}
    (taken,) = store.take_in(drafts)
    said = store.path(store.head(taken.session).message)
    assert [(m.role, m.text) for m in said] == [
        ("system", "rules"),
        ("user", "a whole novel\nsum it up"),
        ("assistant", ""),
        ("tool", "3"),
        ("assistant", "done"),
    ]
    assert said[2].reasoning == "hm"
    assert said[2].parts[-1] == {
        "type": "tool_call",
        "call": {"name": "add", "arguments": {"a": 1}, "id": "t1"},
    }


def test_threads_are_trees_and_what_they_left_behind_has_a_branch(
    tmp_path: Path, store: Store
) -> None:
    path = make(tmp_path / "logs.db", THREADS, """
        INSERT INTO fragments VALUES (1, 'h', 'a novel');
        INSERT INTO messages VALUES ('s', NULL, 'system', NULL), ('u', 's', 'user', NULL),
          ('a', 'u', 'assistant', NULL), ('b', 'u', 'assistant', NULL), ('v', 'a', 'user', NULL);
        INSERT INTO parts (message_hash, position, type, text, payload) VALUES
          ('s', 0, 'text', 'Be kind.', NULL),
          ('u', 0, 'text', NULL, '{"text_ref": [{"fragment": 1}, {"literal": "!"}]}'),
          ('u', 1, 'attachment', NULL, '{"attachment": {"id": "x"}}'),
          ('a', 0, 'reasoning', 'hm', NULL), ('a', 1, 'text', 'yes', NULL),
          ('b', 0, 'text', 'no', NULL), ('v', 0, 'text', 'why?', NULL);
        INSERT INTO threads VALUES ('t1', 'novels', 'v', NULL, '2026-01-01 00:00:00+00:00'),
          ('t2', 'a fork', 'b', 't1', '2026-01-02 00:00:00+00:00'),
          ('t3', 'empty', NULL, NULL, '2026-01-03 00:00:00+00:00');
        INSERT INTO turns VALUES ('1', 't1', 'u', 'b', 'm1', '2026-01-01T00:00:00+00:00'),
          ('2', 't1', 'u', 'a', 'm2', '2026-01-01T00:00:01+00:00');
    """)  # fmt: skip
    first, fork = store.take_in(imports.load(path))
    assert store.verify() == []
    said = store.path(store.head(first.session).message)
    assert [(m.role, m.text) for m in said] == [
        ("system", "Be kind."), ("user", "a novel!"), ("assistant", "yes"), ("user", "why?"),
    ]  # fmt: skip
    assert said[2].model == "m2"
    branches = {b.name: b.message for b in store.branches(first.session)}
    assert store.message(str(branches["main-2"])).text == "no"
    assert len(store.messages(first.session)) == 5
    assert [m.text for m in store.messages(fork.session)] == ["Be kind.", "a novel!", "no"]


def test_a_conversation_in_both_tables_is_taken_once(tmp_path: Path, store: Store) -> None:
    path = make(tmp_path / "logs.db", FIRST, THREADS, """
        INSERT INTO conversations VALUES ('c1', 'old', 'm'), ('c2', 'only old', 'm');
        INSERT INTO responses (id, prompt, response, conversation_id, datetime_utc)
        VALUES ('r1', 'q', 'a', 'c1', '2024-01-01'), ('r2', 'q2', 'a2', 'c2', '2024-01-02');
        INSERT INTO messages VALUES ('u', NULL, 'user', NULL);
        INSERT INTO parts (message_hash, position, type, text) VALUES ('u', 0, 'text', 'new q');
        INSERT INTO threads VALUES ('c1', 'old', 'u', NULL, '2024-01-01');
    """)  # fmt: skip
    assert talks(store, path) == [[("user", "new q")], [("user", "q2"), ("assistant", "a2")]]


def test_tables_of_few_columns_and_odd_values_are_taken_as_they_are(
    tmp_path: Path, store: Store
) -> None:
    path = make(tmp_path / "logs.db", """
        CREATE TABLE responses (id TEXT, prompt TEXT, response TEXT);
        INSERT INTO responses VALUES ('r1', 'q', NULL), (2, NULL, 'a');
    """, """
        CREATE TABLE threads (id, tip_message_hash);
        CREATE TABLE messages (hash, parent_hash, role);
        CREATE TABLE parts (message_hash, type, payload);
        INSERT INTO threads VALUES ('t', 'x');
        INSERT INTO messages VALUES ('x', 'y', 'wizard'), ('y', 'x', 'user');
        INSERT INTO parts VALUES ('x', 'text', '{broken'), ('x', 'hologram', NULL);
    """)  # fmt: skip
    assert sorted(len(talk) for talk in talks(store, path)) == [2, 2, 2]
    assert imports.left_out(imports.load(path)) == {"hologram": 1}


def test_the_file_is_only_read_also_where_nothing_can_be_written(
    tmp_path: Path, store: Store
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = make(folder / "logs.db", FIRST, "PRAGMA journal_mode = WAL;", """
        INSERT INTO responses (id, prompt, response) VALUES ('r1', 'q', 'a');
    """)  # fmt: skip
    before = path.read_bytes()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert talks(store, path) == [[("user", "q"), ("assistant", "a")]]
    finally:
        folder.chmod(0o700)
    assert path.read_bytes() == before


@pytest.mark.parametrize("harm", ["other tables", "cut short", "zeros"])
def test_another_or_a_damaged_database_is_refused_whole(
    tmp_path: Path, store: Store, harm: str
) -> None:
    path = make(tmp_path / "x.db", FIRST if harm != "other tables" else "CREATE TABLE t (x);")
    db = sqlite3.connect(path)
    if harm != "other tables":
        rows = [(f"r{n}", "q" * 300, "a" * 300) for n in range(200)]
        db.executemany("INSERT INTO responses (id, prompt, response) VALUES (?, ?, ?)", rows)
    db.commit()
    db.close()
    data = bytearray(path.read_bytes())
    if harm == "cut short":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "zeros":
        data[8192:16384] = bytes(8192)
        path.write_bytes(data)
    with pytest.raises(Unreadable, match="SQLite file"):
        store.take_in(imports.load(path))
    assert store.sessions() == []
