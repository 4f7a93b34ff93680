"""Export and import as a client asks for them: what is written is talked on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radchat.errors import InvalidInput, NotFound, UsageError
from tests.daemon.test_methods import Daemon, daemon, name_of, served

__all__ = ["daemon", "served"]  # fixtures


def test_an_imported_session_goes_on_with_the_ids_and_the_cache_of_the_old(
    daemon: Daemon, tmp_path: Path
) -> None:
    name = name_of(daemon, "travels")
    first = daemon.new("a first question of some length", name, max_tokens=20)
    written = daemon("sessions.export", session=name, format="json")
    assert (written["name"], written["messages"]) == (name, 2)
    path = tmp_path / "travels.json"
    path.write_text(written["text"])
    result = daemon("sessions.import", files=[{"path": str(path)}])
    (taken,) = result["sessions"]
    assert taken == {
        "id": taken["id"], "name": f"{name}-2", "messages": 2, "branches": 1, "renewed": True,
        "file": "travels.json",
    }  # fmt: skip
    assert daemon("sessions.show")["id"] == taken["id"]  # it is the current one here
    again = daemon.ask("and on", session=taken["id"])
    old = daemon.ask("and on", session=first["session"])
    assert again["branches"][0]["text"] == old["branches"][0]["text"]
    assert again["cache"]["device"] > 40
    daemon("sessions.rm", sessions=[first["session"]])
    assert [m["text"] for m in daemon("log", session=taken["id"])["messages"]][:1] == [
        "a first question of some length"
    ]
    assert daemon("sessions.verify", session=taken["id"])["ok"]


def test_text_of_others_is_rendered_when_it_is_talked_to(daemon: Daemon) -> None:
    messages = [
        {"role": "user", "content": "what is this?"},
        {"role": "assistant", "content": "an imported talk. " * 40},
    ]
    files = [{"name": "talk.json", "text": json.dumps(messages)}]
    (taken,) = daemon("sessions.import", files=files)["sessions"]
    assert taken["name"].startswith("what-is-this")
    events = daemon.events("go on", session=taken["id"])
    assert events[-1].name == "done"
    told = [e.data["text"] for e in events if e.name == "notice"]
    assert any("came as text" in text for text in told)
    assert events[-1].data["usage"]["input_tokens"] > 40


def test_an_export_is_the_path_one_stands_on_or_names_or_all(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    first = daemon("sessions.show", session=session)["branches"]["main"]
    daemon.ask("two", session=session)
    daemon.ask("aside", session=session, at=first, branch="side")

    def text(**args: object) -> str:
        return str(daemon("sessions.export", session=session, **args)["text"])

    assert "aside" in text()
    assert "two" not in text()
    assert "two" in text(at="main")
    assert "\naside\n" in text(every=True)
    assert "\ntwo\n" in text(every=True)
    assert len(text(format="jsonl").splitlines()) == 1 + 6
    assert len(text(format="jsonl", at=first).splitlines()) == 1 + 2
    head = {"branch": "main", "message": first}
    assert "aside" not in text(head=head)  # an open chat's own
    assert len(json.loads(text(format="openai"))["messages"]) == 4
    with pytest.raises(NotFound):
        text(at="nowhere")
    with pytest.raises(UsageError, match="one path or all"):
        text(at="main", every=True)


def test_of_several_files_none_is_taken_where_one_is_bad(daemon: Daemon, tmp_path: Path) -> None:
    before = daemon("sessions.list")["total"]
    good = tmp_path / "good.json"
    good.write_text('[{"role": "user", "content": "hello"}]')
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"role": "user", "content": "walnut"}\n{"role": "us')
    for second, why in (
        ({"path": str(bad)}, "bad.jsonl: line 2 is not JSON"),
        ({"path": str(tmp_path / "none.json")}, "cannot read none.json: No such file"),
        ({"path": str(tmp_path)}, "cannot read"),
        ({"name": "stdin", "text": ""}, "stdin: it is empty"),
    ):
        with pytest.raises(InvalidInput, match=why) as told:
            daemon("sessions.import", files=[{"path": str(good)}, second])
        assert "walnut" not in told.value.message
    assert daemon("sessions.list")["total"] == before
    assert len(daemon("sessions.import", files=[{"path": str(good)}] * 2)["sessions"]) == 2


def test_an_ephemeral_session_is_exported_where_one_asks_for_it(daemon: Daemon) -> None:
    answer = daemon.new("between us", ephemeral=True)
    assert "between us" in daemon("sessions.export", session=answer["session"])["text"]
