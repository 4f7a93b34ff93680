"""The service's methods on what is kept: search, prune, verify, and sessions as a list."""

from __future__ import annotations

import time

import pytest

from radchat.daemon.arguments import ChatHead
from radchat.errors import Busy, InvalidInput, NotFound, UsageError
from radchat_sessions.store import Store
from tests.daemon.test_methods import Answer, Daemon, daemon, name_of, served

__all__ = ["daemon", "served"]  # fixtures


def test_a_search_tells_where_it_was_said(daemon: Daemon) -> None:
    word = name_of(daemon, "pomegranate")
    answer = daemon.new(f"the {word} is ripe", name_of(daemon, "orchard"))
    (hit,) = daemon("sessions.search", query=word)["hits"]
    assert (hit["session"], hit["name"]) == (answer["session"], name_of(daemon, "orchard"))
    assert (hit["branch"], hit["role"]) == ("main", "user")
    assert hit["message"].startswith(hit["short"])
    assert hit["snippet"] == f"the {word} is ripe"
    assert [hit["snippet"][a:b] for a, b in hit["marks"]] == [word]
    assert daemon("sessions.search", query=word, session=name_of(daemon, "orchard"))["hits"]
    other = daemon.new("something else")
    assert daemon("sessions.search", query=word, session=other["session"])["hits"] == []
    found = daemon("sessions.search", query=word, only_sessions=True)
    assert [(s["id"], s["matches"]) for s in found["sessions"]] == [(answer["session"], 1)]


def test_the_names_of_a_search_in_one_session_are_of_that_session(daemon: Daemon) -> None:
    word = f"medlar{daemon.where['terminal']}"
    one, other = daemon.new(word), daemon.new(word)
    hidden = daemon.new(word, ephemeral=True)

    def names(session: str | None) -> set[str]:
        found = daemon("sessions.search", query=word, session=session, only_sessions=True)
        return {each["id"] for each in found["sessions"]}

    assert names(None) == {one["session"], other["session"], hidden["session"]}
    for session in names(None):
        assert names(session) == {session}
    assert names(daemon.new("no such word")["session"]) == set()
    with pytest.raises(NotFound):
        names("nowhere")


def test_a_search_says_when_there_is_more(daemon: Daemon) -> None:
    word = f"plum{daemon.where['terminal']}"
    for _ in range(3):
        daemon.new(word)
    assert not daemon("sessions.search", query=word, limit=3)["more"]
    two = daemon("sessions.search", query=word, limit=2)
    assert two["more"]
    assert len(two["hits"]) == 2
    assert daemon("sessions.search", query=word, limit=2, only_sessions=True)["more"]


def test_a_search_for_no_word_and_in_no_session_is_refused(daemon: Daemon) -> None:
    with pytest.raises(InvalidInput, match="no word"):
        daemon("sessions.search", query=" ... ")
    with pytest.raises(NotFound):
        daemon("sessions.search", query="x", session="nowhere")


def test_an_ephemeral_session_is_searched_too(daemon: Daemon) -> None:
    word = f"quince{daemon.where['terminal']}"
    answer = daemon.new(word, ephemeral=True)
    hits = daemon("sessions.search", query=word)["hits"]
    assert [hit["session"] for hit in hits] == [answer["session"]]
    assert hits[0]["ephemeral"]
    kept = daemon.new(f"{word} on disk")["session"]
    by_id = {h["session"]: h["ephemeral"] for h in daemon("sessions.search", query=word)["hits"]}
    assert by_id == {answer["session"]: True, kept: False}


def test_the_last_used_session_is_the_first_listed_in_whichever_store_it_is(
    daemon: Daemon,
) -> None:
    made = [daemon.new("one", ephemeral=n % 2 == 0)["session"] for n in range(4)]
    rows = daemon("sessions.list", limit=4)["sessions"]
    assert [row["id"] for row in rows] == made[::-1]
    assert [row["ephemeral"] for row in rows] == [False, True, False, True]


def test_prune_tells_what_goes_and_forgets_its_kv(daemon: Daemon) -> None:
    first = daemon.new("a question of some length to be retried", max_tokens=30)
    session = first["session"]
    again = daemon.ask(kind="retry", session=session, max_tokens=30)["branches"][0]
    told = daemon("sessions.prune", session=session, dry_run=True)
    assert (told["messages"], told["tokens"]) == (1, 30)
    assert again["text"] == first["branches"][0]["text"]
    assert told["kv_tokens"] == 0  # it is the very KV of what stays
    daemon.ask("a question of another sort", kind="edit", session=session, max_tokens=30)
    told = daemon("sessions.prune", session=session, dry_run=True)
    assert told["messages"] == 3
    assert told["kv_tokens"] in range(32, told["tokens"] + 16, 16)  # whole pages
    assert told["kv_bytes"] > 0
    assert len(daemon("tree", session=session)["messages"]) == 5
    used = daemon("cache.stats")["tiers"]["device"]["tokens"]
    done = daemon("sessions.prune", session=session)
    assert done == told | {"dry_run": False}
    assert daemon("cache.stats")["tiers"]["device"]["tokens"] < used
    assert len(daemon("tree", session=session)["messages"]) == 2
    assert daemon("sessions.prune", session=session)["messages"] == 0
    again = daemon.ask("and on", session=session)
    assert again["cache"]["device"] > 20


def test_marked_messages_go_with_their_kv_but_not_those_that_somebody_stands_on(
    daemon: Daemon,
) -> None:
    session = daemon.new("a question of some length", max_tokens=30)["session"]
    main = daemon("sessions.show", session=session)["branches"]["main"]
    side = daemon.ask("aside", session=session, at=main, branch="side", max_tokens=30)
    daemon("switch", session=session, ref="main")
    asked = side["branches"][0]["parent"]
    told = daemon("sessions.prune", session=session, marked=[asked], dry_run=True)
    assert (told["messages"], told["branches"]) == (2, ["side"])
    assert told["kv_tokens"] >= 16
    head: ChatHead = {"branch": "side", "message": side["branches"][0]["message"]}
    with pytest.raises(UsageError, match="this chat is"):
        daemon("sessions.prune", session=session, marked=[asked], head=head)
    with pytest.raises(UsageError, match="HEAD is"):
        daemon("sessions.prune", session=session, marked=["main"])
    for marked, unlabeled in (([], False), ([asked], True)):
        with pytest.raises(UsageError, match="marked"):
            daemon("sessions.prune", session=session, marked=marked, unlabeled=unlabeled)
    used = daemon("cache.stats")["tiers"]["device"]["tokens"]
    assert daemon("sessions.prune", session=session, marked=[asked]) == told | {"dry_run": False}
    assert daemon("cache.stats")["tiers"]["device"]["tokens"] < used
    assert len(daemon("tree", session=session)["messages"]) == 2


def test_only_what_was_asked_about_is_deleted(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    main = daemon("sessions.show", session=session)["branches"]["main"]
    asked = daemon.ask("aside", session=session, at=main, branch="side")["branches"][0]["parent"]
    daemon("switch", session=session, ref="main")

    def prune(digest: str | None, *, dry_run: bool = False) -> Answer:
        return daemon(
            "sessions.prune", session=session, marked=[asked], dry_run=dry_run, digest=digest
        )

    told = prune(None, dry_run=True)
    daemon("branch.label", session=session, ref="side", text="good")
    daemon.ask("and more", session=session, at="side", branch="deeper")
    daemon("switch", session=session, ref="main")
    with pytest.raises(Busy, match="look again") as caught:
        prune(told["digest"])
    assert caught.value.data["changed"]
    assert len(daemon("tree", session=session)["messages"]) == 6
    now = prune(None, dry_run=True)
    assert (now["messages"], now["labels"]) == (4, 1)
    assert prune(now["digest"]) == now | {"dry_run": False}


def test_unlabeled_prunes_side_branches_by_name(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    main = daemon("sessions.show", session=session)["branches"]["main"]
    daemon.ask("aside", session=session, at=main, branch="side")
    daemon("switch", session=session, ref="main")
    assert daemon("sessions.prune", session=session)["branches"] == []
    told = daemon("sessions.prune", session=session, unlabeled=True, dry_run=True)
    assert (told["branches"], told["messages"]) == (["side"], 2)
    daemon("branch.label", session=session, ref="side", text="keep")
    told = daemon("sessions.prune", session=session, unlabeled=True)
    assert (told["branches"], told["messages"]) == ([], 0)


def test_a_chat_whose_place_was_pruned_is_told_how_to_go_on(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    last = daemon.ask("two", session=session)["branches"][0]["message"]
    head: ChatHead = {"branch": None, "message": last}
    daemon("undo", session=session)
    daemon("sessions.prune", session=session)
    with pytest.raises(NotFound, match="was pruned: /branches"):
        daemon.ask("three", session=session, head=head)
    there = daemon("switch", session=session, ref="main", head=head)
    head = {"branch": there["branch"], "message": there["head"]}
    assert daemon.ask("three", session=session, head=head)["branches"][0]["branch"] == "main"
    assert daemon.texts(session) == ["one", "three"]


def test_verify_is_content_with_what_the_daemon_wrote(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    assert daemon("sessions.verify", session=session) == {
        "ok": True,
        "messages": 2,
        "problems": [],
    }
    assert daemon("sessions.verify")["messages"] > 2


def test_nothing_is_removed_where_one_name_is_wrong_and_one_twice_is_one(daemon: Daemon) -> None:
    one, two = daemon.new("one")["session"], daemon.new("two")["session"]
    with pytest.raises(NotFound):
        daemon("sessions.rm", sessions=[one, "nowhere"])
    assert daemon("sessions.show", session=one)["messages"] == 2
    removed = daemon("sessions.rm", sessions=[one, two, one[:12]])["removed"]
    assert [each["id"] for each in removed] == [one, two]


def test_a_list_is_limited_and_of_a_folder_and_says_how_many_there_are(daemon: Daemon) -> None:
    daemon.where = {**daemon.where, "folder": "/somewhere"}
    for _ in range(3):
        daemon.new("here")
    here = daemon("sessions.list", folder="/somewhere", begun=True, limit=2)
    assert len(here["sessions"]) == 2
    assert here["total"] == 3
    assert {row["folder"] for row in here["sessions"]} == {"/somewhere"}
    used = [row["used"] for row in here["sessions"]]
    assert used == sorted(used, reverse=True)
    assert daemon("sessions.list", folder="/elsewhere")["sessions"] == []
    with pytest.raises(InvalidInput, match="limit"):
        daemon("sessions.list", limit=0)


def test_five_hundred_sessions_are_listed_without_a_question_for_each() -> None:
    """Of 50 messages each; CPU time of this machine, not under a stopwatch: the goal is 50 ms."""
    store = Store.open(":memory:")
    statements: list[str] = []
    sessions = [store.create_session(clock="c").id for _ in range(500)]
    rows = [(f"{s}-{n}", f"{s}-{n - 1}" if n else None, s) for s in sessions for n in range(50)]
    db = store._db._connection
    db.execute("DROP TRIGGER message_text_added")  # which would take ten times as long
    db.executemany(
        "INSERT INTO messages (id, parent, origin, role, parts, text, created, digest) "
        "VALUES (?, ?, ?, 'user', '[]', '', 0, '')",
        rows,
    )
    db.execute("UPDATE branches SET message = session || '-49'")
    db.set_trace_callback(statements.append)
    best = 9.0
    for _ in range(3):
        statements.clear()
        start = time.process_time()
        found = store.sessions()
        best = min(best, time.process_time() - start)
    assert [s.messages for s in found] == [50] * 500
    assert len(statements) == 3
    assert best < 0.2  # with room for a slower machine
    store.close()
