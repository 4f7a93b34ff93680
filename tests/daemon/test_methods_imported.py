"""Whatever an import lets in can be talked to and looked at: nothing of it breaks the daemon."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radchat.chat import sessions_view, tree_view, why_view
from radchat.errors import InvalidInput
from tests.daemon.test_methods import Daemon, daemon, name_of, served
from tests.sessions.test_exchange import VALUES, places_in

__all__ = ["daemon", "served"]  # fixtures
Document = dict[str, Any]
_made: list[Document] = []


@pytest.fixture
def document(daemon: Daemon) -> Document:
    """Two turns, a retry and a label, as a daemon wrote them."""
    if not _made:
        session = daemon.new("one", name_of(daemon, "written"))["session"]
        daemon("branch.label", ref="HEAD", text="good", session=session)
        daemon.ask("two", session=session)
        daemon.ask(kind="retry", session=session)
        _made.append(json.loads(daemon("sessions.export", session=session, format="json")["text"]))
    return copy.deepcopy(_made[0])


def taken(daemon: Daemon, document: Document) -> str:
    """The session it becomes. Raises InvalidInput."""
    files = [{"name": "a.json", "text": json.dumps(document)}]
    (row,) = daemon("sessions.import", files=files)["sessions"]
    return str(row["id"])


@contextmanager
def but(words: str) -> Iterator[None]:
    """All is well, or is refused in these words."""
    try:
        yield
    except InvalidInput as error:
        if words not in error.message:
            raise


def look_at(daemon: Daemon, session: str) -> None:
    """Every view of it, down to the lines of a terminal."""
    tree_view.render(daemon("tree", session=session, show_cache=True), columns=80, cache=True)
    listed = daemon("sessions.list", limit=100)["sessions"]
    sessions_view.listing([each for each in listed if each["id"] == session], 80)
    messages = daemon("tree", session=session, filter="all")["messages"]
    for message in messages:
        daemon("log", session=session, ref=message["id"])
    for message in daemon("log", session=session)["messages"]:
        if message["role"] == "assistant":
            with but("came as text"):  # a document of no format is a list of messages
                why_view.why(daemon("cache.why", ref=message["id"], session=session), 80)
    daemon("sessions.show", session=session)
    for form in ("md", "openai", "json"):
        daemon("sessions.export", session=session, format=form)
    assert daemon("sessions.verify", session=session)["ok"]


def talk_to(daemon: Daemon, session: str) -> None:
    """Plans and prepares a turn and runs it; of ids that no model has, the engine says so."""
    with but("vocabulary"):
        daemon.ask("and on", session=session, model="tiny", max_tokens=1)


CHANGES: dict[str, Callable[[Document], object]] = {
    "clock": lambda d: d["session"].update(clock="yesterday"),
    "points": lambda d: d["messages"][0]["prompts"][0].update(points="garbage"),
    "context": lambda d: d["messages"][-1]["extra"].update(context="lots"),
    "reuse": lambda d: d["messages"][-1]["usage"].update(reuse=5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_could_not_be_talked_to_is_refused_by_its_place(
    daemon: Daemon, document: Document, name: str
) -> None:
    CHANGES[name](document)
    with pytest.raises(InvalidInput, match=r"of (the session|a prompt|message \d)"):
        taken(daemon, document)


def test_what_a_daemon_wrote_is_taken_looked_at_and_talked_to(
    daemon: Daemon, document: Document
) -> None:
    session = taken(daemon, document)
    look_at(daemon, session)
    talk_to(daemon, session)
    look_at(daemon, session)


@given(st.integers(0, 10**6), VALUES | st.just("garbage"), st.booleans())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_document_changed_anywhere_is_refused_or_can_be_talked_to(
    daemon: Daemon, document: Document, at: int, value: Any, drop: bool
) -> None:
    changed = copy.deepcopy(document)
    *path, last = (places := places_in(changed))[at % len(places)]
    inside: Any = changed
    for key in path:
        inside = inside[key]
    if drop:
        del inside[last]
    else:
        inside[last] = value
    try:
        session = taken(daemon, changed)
    except InvalidInput:
        return
    look_at(daemon, session)
    talk_to(daemon, session)
    look_at(daemon, session)
    daemon("sessions.rm", sessions=[session])
