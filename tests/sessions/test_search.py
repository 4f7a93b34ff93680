"""Finding what was said: words, phrases, beginnings, every script; and nothing is an operator."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from radchat_sessions import schema, words
from radchat_sessions.store import Store
from tests.sessions.talk import Talk

SAID = {
    "fox": "the quick brown fox jumps over the lazy dog",
    "accent": "Voilà un café déjà vu, naïve Größe",
    "stacked": "ti\u1ebfng Vi\u1ec7t",  # two accents on one letter
    "decomposed": "re\u0301sume\u0301",
    "japanese": "東京都に住んでいます。カタカナも",
    "chinese": "我用Python写程序",
    "thai": "ภาษาไทยไม่เว้นวรรค",
    "korean": "한국어 문장입니다",
    "russian": "Ёлка и Мороз",
    "code": "def foo_bar(x): return x->y * 2  # C++",
}


@pytest.fixture
def said(store: Store) -> dict[str, str]:
    """Each text by the id of its message."""
    talk = Talk(store)
    return {str(talk.turn(text, "ok").parent): name for name, text in SAID.items()}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("quick", ["fox"]),
        ("QUICK Fox", ["fox"]),
        ("fox quick", ["fox"]),  # every word, in any order
        ("quick cat", []),
        ('"brown fox"', ["fox"]),
        ('"fox brown"', []),
        ("qui*", ["fox"]),
        ("qui", []),
        ('"lazy do"*', ["fox"]),
        ("cafe", ["accent"]),
        ("café", ["accent"]),
        ("GRÖSSE", []),  # the index does not know that ß is ss
        ("größe", ["accent"]),
        ("grosse", []),
        ("tieng viet", ["stacked"]),
        ("résumé", ["decomposed"]),
        ("東京", ["japanese"]),
        ("京都", ["japanese"]),
        ("京東", []),
        ("住んで", ["japanese"]),
        ("カタカナ", ["japanese"]),
        ("程序", ["chinese"]),
        ("python", ["chinese"]),
        ("用python写", ["chinese"]),
        ("ไทย", ["thai"]),
        ("한국어", ["korean"]),
        ("문장*", ["korean"]),
        ("елка", []),
        ("ёлка", ["russian"]),
        ("foo_bar", ["code"]),
        ("c++", ["code"]),
        ("x->y", ["code"]),
        ("  fox\t\n ", ["fox"]),
    ],
)
def test_words_are_found_in_every_script(
    store: Store, said: dict[str, str], asked: str, found: list[str]
) -> None:
    assert [said[hit.message] for hit in store.search(asked)] == found


@pytest.mark.parametrize(
    "asked",
    [
        'NOT "quick* OR (', "AND", "OR", "NEAR(quick fox)", "text:quick", "quick AND", '"', '""',
        "*", "**", '"*', "^quick", "-quick", "{text} : quick", "quick NEAR/2 fox", "(", ")", "'",
        "%", "_", "\\", "\0", "qu\0ick", "\x02quick\x03", "\ufffd", "🦆", "quick + fox", ";--",
        '"""', "a" * 100_000, " ".join(f"quick{n}" for n in range(5000)), '"quick', 'quick"',
        "\u200b", "\u0301", "…", "()" * 500,
    ],
)  # fmt: skip
def test_no_text_is_a_syntax_error(store: Store, said: dict[str, str], asked: str) -> None:
    for hit in store.search(asked):
        assert hit.message in said
    store.sessions_with(asked)


def test_operators_are_words(store: Store) -> None:
    talk = Talk(store)
    talk.turn("this or that", "ok")
    talk.turn("only this", "ok")
    assert len(store.search("this OR that")) == 1
    assert len(store.search("this NOT that")) == 0
    assert len(store.search("text:this")) == 0


def test_a_snippet_is_the_text_itself_with_the_matches_marked(store: Store) -> None:
    talk = Talk(store)
    talk.turn("a " * 50 + "the \x02needle\x03 in it " + "b " * 50, "ok")
    (hit,) = store.search("needle")
    assert [hit.snippet[start:stop] for start, stop in hit.marks] == ["needle"]
    assert hit.snippet.startswith("...")
    assert hit.snippet.endswith("...")
    talk.turn("東京都に住む人", "ok")
    (hit,) = store.search("都に住む")
    assert hit.snippet == "東京都に住む人"
    assert [hit.snippet[start:stop] for start, stop in hit.marks] == ["都に住む"]


def test_a_hit_is_seen_from_its_own_session_and_heads_branch(store: Store) -> None:
    talk = Talk(store)
    first = talk.turn("walnut", "1")
    talk.store.create_branch(talk.id, "also", first.id)
    assert [(h.session, h.branch) for h in store.search("walnut")] == [(talk.id, "main")]
    fork = Talk(store, store.create_session(clock="c", fork_of=(talk.id, first.id)))
    assert [(h.session, h.branch) for h in store.search("walnut")] == [(talk.id, "main")]
    assert [(h.session, h.branch) for h in store.search("walnut", fork.id)] == [(fork.id, "main")]
    assert {f.session for f in store.sessions_with("walnut")} == {talk.id, fork.id}
    store.remove(talk.id)
    assert [(h.session, h.branch) for h in store.search("walnut")] == [(fork.id, "main")]
    assert [(f.session, f.matches) for f in store.sessions_with("walnut")] == [(fork.id, 1)]


def test_an_unnamed_message_is_found_without_a_branch(talk: Talk, store: Store) -> None:
    talk.turn("one", "1")
    talk.turn("walnut", "2")
    store.undo(talk.id)
    assert [(h.session, h.branch) for h in store.search("walnut")] == [(talk.id, None)]


def test_the_best_come_first_and_no_more_than_asked_for(store: Store) -> None:
    talk = Talk(store)
    for n in range(30):
        talk.turn(f"filler words about a walnut number {n} " + "and more " * n, "ok")
    best = talk.turn("walnut walnut walnut", "ok").parent
    hits = store.search("walnut", limit=7)
    assert len(hits) == 7
    assert hits[0].message == best
    assert [h.rank for h in hits] == sorted(h.rank for h in hits)


def test_the_words_of_reasoning_and_files_are_found_too(talk: Talk, store: Store) -> None:
    from radchat_sessions.messages import NewMessage

    parts = ({"type": "file", "name": "a.md", "text": "walnut"}, {"type": "text", "text": "look"})
    store.append(talk.id, parent=None, new=[NewMessage("user", parts)], branch="main")
    assert len(store.search("walnut")) == 1


def test_an_index_of_format_2_is_made_again(tmp_path: Path) -> None:
    """Its words were not cut, and accents of some letters did not fold."""
    path = tmp_path / "radchat.db"
    db = sqlite3.connect(path, isolation_level=None)
    schema.migrate(db, None, schema.SCRIPTS[:2])
    db.executescript("""
        INSERT INTO sessions (id, name, named, head_branch, settings, clock, created, used)
          VALUES ('5e55', 'old', 1, NULL, '{}', 'c', 1, 1);
        INSERT INTO messages (seq, id, origin, role, parts, text, created, digest)
          VALUES (1, 'aaaa', '5e55', 'user', '[{"text":"\u6771\u4eac\u90fd","type":"text"}]',
                  '\u6771\u4eac\u90fd', 1, '');
    """)
    db.close()
    store = Store.open(path, synchronous="OFF")
    assert [hit.snippet for hit in store.search("京都")] == ["東京都"]
    assert schema.backup_path(path, 2).exists()
    assert [p.kind for p in store.verify()] == ["digest"]  # made up here; the index is in step
    store.close()


def test_what_is_indexed_is_what_was_said_with_cuts_between() -> None:
    assert words.indexed("ab c") == "ab c"
    assert words.shown(words.indexed("東京abc都"))[0] == "東京abc都"
    assert words.query("...") == ""
    assert words.query('say "two words" pre*') == '"say" "two words" "pre"*'
