"""kill -9, deleted folders, older and newer databases."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radchat_sessions import schema
from radchat_sessions.errors import Broken, SaveFailed, TooNew
from radchat_sessions.store import Store
from tests.sessions.talk import Talk

SESSIONS = Path(schema.__file__).parents[1]

CHILD = """
import os, sys
from array import array
from pathlib import Path
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt, text_part
from radchat_sessions.store import Store

home = Path(sys.argv[1])
store = Store.open(home / "radchat.db", running_dir=home / "running", synchronous="OFF")
found = store.sessions()
session = found[0].session if found else store.create_session(clock="c")
while True:
    head = store.head(session.id)
    begun = store.begin(
        session.id, parent=head.message, new=[NewMessage.of("user", "q")],
        prompt=NewPrompt(tail=array("I", [1]), tokenizer="t", settings="s"),
        answers=[NewAnswer("main")])
    answer = begun.answer_ids[0]
    for n in range(5):
        store.append_ids(answer, [n], str(n))
        os.write(1, f"{answer} {n}\\n".encode())  # shown
    store.finish(answer, ids=array("I", range(5)), parts=[text_part("01234")], finish_reason="stop")
"""


def test_kill_9_at_any_moment_loses_nothing_that_was_shown(home: Path) -> None:
    home.mkdir()
    shown: dict[str, list[int]] = {}
    for n in range(12):
        with subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, str(home)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SESSIONS)},
        ) as child:
            assert child.stdout is not None
            for _ in range(1 + 7 * n):  # another place in the cycle each time
                line = child.stdout.readline().split()
                shown.setdefault(line[0].decode(), []).append(int(line[1]))
            child.send_signal(signal.SIGKILL)
            for rest in child.stdout.read().splitlines():
                line = rest.split()
                shown.setdefault(line[0].decode(), []).append(int(line[1]))
    store = Store.open(home / "radchat.db", running_dir=home / "running")
    assert store.verify() == []
    (summary,) = store.sessions()
    on_path = [m.id for m in store.path(summary.head.message)]
    for answer, tokens in shown.items():
        assert list(store.out(answer) or ())[: len(tokens)] == tokens
        assert store.message(answer).text.startswith("".join(map(str, tokens)))
        assert answer in on_path
    assert len(shown) > 50
    store.close()


def test_deleting_the_state_folder_under_an_open_store_loses_nothing(
    talk: Talk, home: Path, open_store: Callable[[], Store]
) -> None:
    talk.turn("one", "1")
    begun = talk.begin("two")
    talk.store.append_ids(begun.answer_ids[0], [50], "2")
    shutil.rmtree(home)
    talk.finish(begun.answer_ids[0], "2")
    talk.turn("three", "3")
    assert talk.store.recreated == 1
    assert talk.store.verify() == []
    talk.store.close()
    again = open_store()
    assert talk.id in {s.session.id for s in again.sessions()}
    path = again.path(again.head(talk.id).message)
    assert [m.text for m in path] == ["one", "1", "two", "2", "three", "3"]
    assert (home / "radchat.db").stat().st_mode & 0o777 == 0o600


def test_a_state_folder_that_can_not_come_back_is_one_clear_error_and_no_loss(
    talk: Talk, home: Path
) -> None:
    talk.turn("one", "1")
    shutil.rmtree(home)
    home.write_text("in the way")
    with pytest.raises(SaveFailed, match="was deleted and can't be put back"):
        talk.turn("two", "2")
    assert talk.words(talk.head) == ["one", "1"]
    home.unlink()
    talk.turn("two", "2")
    assert talk.words(talk.head) == ["one", "1", "two", "2"]


def test_a_database_put_in_place_of_ours_is_not_written_over(talk: Talk, home: Path) -> None:
    talk.turn("one", "1")
    for path in home.glob("radchat.db*"):
        path.unlink()
    other = Store.open(home / "radchat.db", synchronous="OFF")
    with pytest.raises(SaveFailed, match="another file"):
        talk.turn("two", "2")
    assert other.sessions() == []
    other.close()


def old_database(path: Path) -> None:
    """As format 1 wrote it: a session, one turn, no text index."""
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path, isolation_level=None)
    schema.migrate(db, None, schema.SCRIPTS[:1])
    db.executescript("""
        PRAGMA foreign_keys = ON;
        BEGIN;
        INSERT INTO sessions (id, name, named, head_branch, settings, clock, created, used)
          VALUES ('5e55', 'old', 1, 'main', '{}', 'c', 1, 1);
        INSERT INTO messages (seq, id, origin, role, parts, text, created, digest)
          VALUES (1, 'aaaa', '5e55', 'user', '[{"text":"findme","type":"text"}]', 'findme', 1,
                  'b2:5713f1a1a2c6a5b3ad1bbc6ccf4e1a62');
        INSERT INTO branches VALUES ('5e55', 'main', 'aaaa');
        COMMIT;
    """)
    db.close()


def test_an_older_database_is_migrated_after_a_backup(
    home: Path, open_store: Callable[[], Store]
) -> None:
    old_database(home / "radchat.db")
    store = open_store()
    assert [hit.message for hit in store.search("findme")] == ["aaaa"]
    assert store.path("aaaa")[0].text == "findme"
    backup = schema.backup_path(home / "radchat.db", 1)
    assert backup.stat().st_mode & 0o777 == 0o600
    copy = sqlite3.connect(backup)
    assert schema.version(copy) == 1
    assert copy.execute("SELECT text FROM messages").fetchall() == [("findme",)]
    copy.close()


def test_migrating_twice_is_a_noop(home: Path, open_store: Callable[[], Store]) -> None:
    old_database(home / "radchat.db")
    open_store().close()
    backup = schema.backup_path(home / "radchat.db", 1)
    backup.unlink()
    open_store()
    assert not backup.exists()


def test_a_migration_that_fails_leaves_the_older_database_whole(home: Path) -> None:
    old_database(home / "radchat.db")
    db = sqlite3.connect(home / "radchat.db", isolation_level=None)
    broken = (*schema.SCRIPTS, "CREATE TABLE half (x) STRICT; nonsense;")
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(db, home / "radchat.db", broken)
    assert schema.version(db) == len(schema.SCRIPTS)
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    assert "half" not in tables
    db.close()


def test_a_new_database_needs_no_backup(store: Store, home: Path) -> None:
    assert schema.backups(home / "radchat.db") == []


def test_a_newer_database_is_refused_and_not_touched(
    home: Path, open_store: Callable[[], Store]
) -> None:
    store = open_store()
    store.close()
    db = sqlite3.connect(home / "radchat.db")
    db.execute(f"PRAGMA user_version = {len(schema.SCRIPTS) + 1}")
    db.close()
    before = (home / "radchat.db").read_bytes()
    with pytest.raises(TooNew, match="newer radchat"):
        open_store()
    assert (home / "radchat.db").read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_kept(
    home: Path, open_store: Callable[[], Store]
) -> None:
    home.mkdir()
    (home / "radchat.db").write_bytes(b"not a database, but somebody's diary" * 100)
    with pytest.raises(Broken, match="damaged or no database"):
        open_store()
    assert (home / "radchat.db").read_bytes().startswith(b"not a database")


def test_a_folder_that_can_not_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveFailed, match="can't be opened"):
        Store.open(tmp_path / "file" / "radchat.db")


def test_every_table_is_strict_and_writes_wait_for_the_disk(home: Path) -> None:
    store = Store.open(home / "radchat.db", running_dir=home / "running")
    for row in store._db.all("PRAGMA table_list"):
        if row["type"] == "table" and not row["name"].startswith("sqlite_"):
            assert row["strict"], row["name"]
    settings = {
        name: store._db.all(f"PRAGMA {name}")[0][0]
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "secure_delete")
    }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "secure_delete": 1,
    }
    store.close()


def test_an_exception_inside_a_write_undoes_all_of_it(talk: Talk) -> None:
    before = talk.store.messages(talk.id)

    def fail_half_way() -> None:
        with talk.store._db.write():
            talk.store._db.do("DELETE FROM branches")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert talk.store.messages(talk.id) == before
    assert [b.name for b in talk.store.branches(talk.id)] == ["main"]


def test_another_program_holding_the_database_is_told_as_such(talk: Talk, home: Path) -> None:
    talk.store._db._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(home / "radchat.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SaveFailed, match="another program holds it"):
        talk.turn("one", "1")
    other.rollback()
    other.close()
    talk.turn("one", "1")
