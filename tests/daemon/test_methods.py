"""The service's methods in process, on a tiny model: whose session, which message, which shape."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from radchat import config
from radchat.daemon.arguments import Options
from radchat.daemon.service import Service
from radchat.errors import InvalidInput, NotFound, UsageError
from radchat.models.registry import set_default
from radchat.paths import Places
from radchat.protocol import Event, Where
from tests.e2e.tiny_models import converted

Answer = dict[str, Any]
_terminals = itertools.count()


class Daemon:
    """A service, its loop, and what one terminal asks of it."""

    def __init__(self, service: Service, runner: asyncio.Runner) -> None:
        self.service, self._runner = service, runner
        self.where: Where = {"terminal": f"t{next(_terminals)}", "folder": "/"}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def __call__(self, method: str, **args: Any) -> dict[str, Any]:
        """A method, as the client would call it: from this terminal, where it asks from where."""
        call = getattr(self.service, method.replace(".", "_"))
        if "where" in call.__annotations__:
            args = {"where": self.where, **args}
        return dict(self.run(call(**args)))

    def events(self, text: str = "", *, max_tokens: int = 3, **args: Any) -> list[Event]:
        options: Options = {"temperature": 0.0, "max_tokens": max_tokens}

        async def read() -> list[Event]:
            stream = self.service.generate(
                self.where, text=text, dtype="fp32", options=options, **args
            )
            return [event async for event in stream]

        return list(self.run(read()))

    def ask(self, text: str = "", **args: Any) -> Answer:
        """The whole result of an answer."""
        last = self.events(text, **args)[-1]
        assert last.name == "done", last
        return last.data

    def new(self, text: str, name: str | None = None, **args: Any) -> Answer:
        return self.ask(text, new_session=name or True, **args)

    def texts(self, session: str, **args: Any) -> list[str]:
        """What the user said on the path to HEAD."""
        messages = self("log", session=session, **args)["messages"]
        return [m["text"] for m in messages if m["role"] == "user"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, asyncio.Runner]]:
    root = tmp_path_factory.mktemp("methods")
    env = {"RADCHAT_HOME": str(root), "RADCHAT_KV_DEVICE": "4096tok"}
    places = Places.from_env(env)
    converted(places.models, "tiny")
    set_default(places, "tiny")
    with asyncio.Runner() as runner:

        async def start() -> Service:
            service = Service(places, config.load(places, env))
            await service.start()
            return service

        service = runner.run(start())
        yield service, runner
        runner.run(service.close())


@pytest.fixture
def daemon(served: tuple[Service, asyncio.Runner]) -> Daemon:
    return Daemon(*served)


def name_of(daemon: Daemon, what: str) -> str:
    return f"{what}-{daemon.where['terminal']}"


# -- SESSION:REF -----------------------------------------------------------------------------------


@pytest.fixture
def two(daemon: Daemon) -> tuple[str, str, Answer, Answer]:
    """Two sessions, the second current; their names and first answers."""
    one, other = name_of(daemon, "one"), name_of(daemon, "other")
    return one, other, daemon.new("in one", one), daemon.new("in other", other)


@pytest.mark.parametrize("kind", ["retry", "edit", "continue", "turn"])
def test_a_ref_into_another_session_acts_there(
    daemon: Daemon, two: tuple[str, str, Answer, Answer], kind: str
) -> None:
    one, other, first, second = two
    args = {"at": f"{one}:HEAD"} if kind == "turn" else {"ref": f"{one}:HEAD"}
    text = "said there" if kind in ("turn", "edit") else ""
    before = daemon("sessions.show", session=other)["messages"]
    for head in (None, second["head"]):  # from a command, and from an open chat
        done = daemon.ask(text, kind=kind, head=head, session=second["session"], **args)
        assert done["session"] == first["session"]
        assert done["head"]["branch"] in daemon("sessions.show", session=one)["branches"]
    assert daemon("sessions.show", session=other)["messages"] == before
    assert daemon.texts(other) == ["in other"]


def test_fork_switch_branch_and_label_go_where_the_ref_leads(
    daemon: Daemon, two: tuple[str, str, Answer, Answer]
) -> None:
    one, _, first, second = two
    chat = {"session": second["session"], "head": second["head"]}
    for method, args in (("switch", {}), ("fork", {"name": "side"})):
        moved = daemon(method, ref=f"{one}:HEAD", **chat, **args)
        assert (moved["session"], moved["name"]) == (first["session"], one)
        assert moved["head"] == first["head"]["message"]
    assert daemon("tree")["session"] == first["session"]  # it was gone to
    made = daemon("branch.create", name="more", ref=f"{one}:HEAD", **chat)
    assert made["session"] == first["session"]
    daemon("branch.label", ref=f"{one}:1", text="seen", **chat)
    shown = daemon("tree", session=one)
    assert {"main", "side", "more"} <= set(shown["branches"])
    assert [m["text"] for m in shown["messages"] if m["labels"] == ["seen"]] == ["in one"]


def test_a_ref_that_names_the_chats_own_session_is_seen_from_its_own_head(daemon: Daemon) -> None:
    name = name_of(daemon, "chat")
    first = daemon.new("one", name)
    daemon.ask("two", session=name)
    moved = daemon("fork", ref=f"{name}:HEAD", session=name, head=first["head"])
    assert moved["head"] == first["head"]["message"]


def test_a_session_of_nowhere_is_not_found_and_a_new_one_has_nothing_to_go_back_to(
    daemon: Daemon,
) -> None:
    with pytest.raises(NotFound, match="no session nowhere"):
        daemon.ask(kind="retry", ref="nowhere:HEAD")
    count = len(daemon("sessions.list")["sessions"])
    with pytest.raises(InvalidInput, match="nothing to go back to"):
        daemon.new("hello", at="HEAD")
    assert len(daemon("sessions.list")["sessions"]) == count


def test_edit_keeps_the_files_of_the_turn_unless_others_are_given(daemon: Daemon) -> None:
    report = {"name": "report.md", "text": "the number is 42"}
    session = daemon.new("summarise", files=[report])["session"]
    kept = daemon.ask("name the risks", kind="edit", ref="1", session=session)
    last = daemon("log", session=session)["messages"][0]
    assert (last["text"], last["files"]) == ("name the risks", [report])
    bare = daemon.new("name the risks")
    assert kept["usage"]["input_tokens"] > bare["usage"]["input_tokens"] + len(report["text"])
    other = {"name": "other.md", "text": "43"}
    daemon.ask("and now?", kind="edit", ref="1", session=session, files=[other])
    assert daemon("log", session=session)["messages"][0]["files"] == [other]


# -- ephemeral and stored --------------------------------------------------------------------------


def test_an_ephemeral_session_keeps_away_from_the_names_of_stored_ones(daemon: Daemon) -> None:
    words = name_of(daemon, "same words")
    stored = daemon.new(words)
    ephemeral = daemon.new(words, ephemeral=True)
    assert stored["name"] != ephemeral["name"]
    for done in (stored, ephemeral):
        for ref in (done["name"], done["session"], done["session"][:12]):
            assert daemon("tree", session=ref)["session"] == done["session"]
            assert daemon.ask("on", session=ref)["session"] == done["session"]
    with pytest.raises(UsageError, match="already"):
        daemon("sessions.rename", session=ephemeral["name"], name=stored["name"])
    with pytest.raises(UsageError, match="already"):
        daemon("sessions.open", new=True, ephemeral=True, name=stored["name"])
    gone = daemon("sessions.rm", sessions=[stored["name"]])["removed"]
    assert [row["id"] for row in gone] == [stored["session"]]


def test_a_stored_session_keeps_away_from_the_names_of_ephemeral_ones(daemon: Daemon) -> None:
    words = name_of(daemon, "first in memory")
    ephemeral = daemon.new(words, ephemeral=True)
    stored = daemon.new(words)
    assert stored["name"] == f"{ephemeral['name']}-2"
    with pytest.raises(UsageError, match="already"):
        daemon("sessions.rename", session=stored["name"], name=ephemeral["name"])
    with pytest.raises(UsageError, match="already"):
        daemon("sessions.open", new=True, name=ephemeral["name"])


def test_a_name_that_both_have_is_ambiguous_and_both_are_told(daemon: Daemon) -> None:
    """Which only a store that does not know of the other would give; ids may begin alike."""
    name = name_of(daemon, "both")
    ephemeral = daemon.new("one", name, ephemeral=True)
    kept = daemon.service._desk.stored
    beside, kept.beside = kept.beside, None
    stored = daemon.new("two", name)
    kept.beside = beside
    calls: list[Callable[[], Any]] = [
        lambda: daemon("tree", session=name),
        lambda: daemon("log", ref=f"{name}:HEAD"),
        lambda: daemon("tree", ref=name),
        lambda: daemon.ask("on", session=name),
        lambda: daemon("sessions.rm", sessions=[name]),
    ]
    for call in calls:
        with pytest.raises(NotFound) as caught:
            call()
        for done in (ephemeral, stored):
            assert done["session"][:8] in caught.value.message
    assert len(caught.value.data["matches"]) == 2
    assert daemon("tree", session=stored["session"])["name"] == name


def test_ephemeral_goes_on_with_this_terminals_ephemeral_session(
    served: tuple[Service, asyncio.Runner],
) -> None:
    mine, other = Daemon(*served), Daemon(*served)
    mine.new("kept")
    with pytest.raises(NotFound, match="no ephemeral session yet"):
        mine.ask("on", ephemeral=True)
    first = mine.new("secret", ephemeral=True)
    assert mine.ask("on", ephemeral=True)["session"] == first["session"]
    opened = mine("sessions.open", ephemeral=True)
    assert (opened["id"], opened["ephemeral"]) == (first["session"], True)
    with pytest.raises(NotFound, match="no ephemeral session yet"):
        other.ask("on", ephemeral=True)
    assert mine.texts(first["session"]) == ["secret", "on"]


def test_a_stored_session_is_never_talked_in_as_ephemeral(daemon: Daemon) -> None:
    stored = daemon.new("kept")
    calls: list[Callable[[], Any]] = [
        lambda: daemon.ask("psst", ephemeral=True, session=stored["session"]),
        lambda: daemon("sessions.open", ephemeral=True, session=stored["name"]),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="kept on disk"):
            call()
    assert daemon.texts(stored["session"]) == ["kept"]


def test_one_session_at_most_is_current(daemon: Daemon) -> None:
    def current(**args: Any) -> list[str]:
        rows = daemon("sessions.list", **args)["sessions"]
        return [row["id"] for row in rows if row["current"]]

    stored = daemon.new("kept")
    ephemeral = daemon.new("secret", ephemeral=True)
    assert current() == [stored["session"]]
    assert current(session=ephemeral["session"]) == [ephemeral["session"]]  # of an open chat
    assert current(session="nowhere") == []


# -- undo and redo from an open chat ---------------------------------------------------------------


def test_a_chat_whose_head_is_its_own_can_undo_and_redo(daemon: Daemon) -> None:
    first = daemon.new("one")
    session = first["session"]
    second = daemon.ask("two", session=session)
    daemon("fork", session=session, ref="HEAD~1", name="side")  # the stored HEAD is elsewhere
    chat: dict[str, Any] = {"session": session, "head": second["head"]}
    back = daemon("undo", **chat)
    assert (back["branch"], back["head"]) == ("main", first["head"]["message"])
    assert back["text"] == "two"
    branches = daemon("sessions.show", session=session)["branches"]
    assert branches["main"] == first["head"]["message"]
    chat["head"] = {"branch": back["branch"], "message": back["head"]}
    again = daemon("redo", **chat)
    assert {"branch": again["branch"], "message": again["head"]} == second["head"]
    assert daemon("sessions.show", session=session)["branch"] == "side"
    with pytest.raises(NotFound, match="nothing to redo"):
        daemon("redo", session=session, head=second["head"])


def test_a_chat_that_undoes_where_its_branch_has_moved_on_stands_at_the_message(
    daemon: Daemon,
) -> None:
    first = daemon.new("one")
    session = first["session"]
    second = daemon.ask("two", session=session)
    third = daemon.ask("from elsewhere", session=session)
    back = daemon("undo", session=session, head=second["head"])
    assert (back["branch"], back["head"]) == (None, first["head"]["message"])
    branches = daemon("sessions.show", session=session)["branches"]
    assert branches["main"] == third["head"]["message"]
    own = {"branch": None, "message": back["head"]}
    assert daemon("redo", session=session, head=own)["head"] == second["head"]["message"]


# -- numbers and shapes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "field", "number"),
    [
        ("cache.evict", "tokens", -1),
        ("undo", "n", 0),
        ("undo", "n", -1),
        ("log", "n", 0),
        ("log", "n", -1),
        ("tree", "depth", 0),
    ],
)
def test_a_number_that_means_nothing_is_refused_by_name(
    daemon: Daemon, method: str, field: str, number: int
) -> None:
    first = daemon.new("one")
    for head in (None, {"branch": None, "message": first["parent"]}):
        with pytest.raises(InvalidInput, match=rf"^{field}: want \d or more") as caught:
            daemon(method, session=first["session"], head=head, **{field: number})
        assert caught.value.data["field"] == field


def test_a_fork_without_a_question_has_the_shape_of_one_with_it(daemon: Daemon) -> None:
    first = daemon.new("one")
    asked = daemon.ask("two", session=first["session"], at="HEAD", branch="asked")
    plain = daemon("fork", session=first["session"], ref="asked", name="plain")
    assert {"session", "parent", "branches", "usage", "cache"} <= set(plain)
    assert plain["parent"] == plain["head"] == asked["head"]["message"]
    (branch,) = plain["branches"]
    shape = set(asked["branches"][0]) - {"choice", "seed", "reasoning", "short"}
    assert set(branch) == shape
    assert (branch["branch"], branch["message"], branch["parent"]) == ("plain", None, plain["head"])
    assert plain["usage"] == dict.fromkeys(asked["branches"][0]["usage"], 0)
    assert plain["cache"] == dict.fromkeys(asked["branches"][0]["cache"], 0)


def test_what_moved_tells_the_shortest_id_that_is_enough(daemon: Daemon) -> None:
    first = daemon.new("one")
    moved = daemon("switch", session=first["session"], ref="main")
    assert moved["head"].startswith(moved["short"])
    assert daemon("log", session=first["session"], ref=moved["short"])["messages"]
    empty = daemon("undo", session=first["session"])
    assert (empty["head"], empty["short"]) == (None, None)


def test_whoever_goes_to_an_answer_is_told_what_it_was_told_itself(daemon: Daemon) -> None:
    def told(answer: Answer) -> dict[str, Any]:
        counts = ("input_tokens", "cached_input_tokens")
        usage = {key: answer["usage"][key] for key in counts}
        return {"context": answer["context"], "usage": usage}

    first = daemon.new("one")
    session = first["session"]
    second = daemon.ask("and two, with more words", session=session)
    assert told(first) != told(second)
    assert daemon("sessions.open", session=session)["answered"] == told(second)
    assert daemon("undo", session=session)["answered"] == told(first)
    assert daemon("sessions.open", session=session)["answered"] == told(first)
    assert daemon("redo", session=session)["answered"] == told(second)
    forked = daemon("fork", session=session, ref=first["head"]["message"])
    assert forked["answered"] == told(first)
    assert daemon("switch", session=session, ref="main")["answered"] == told(second)
    assert daemon("switch", session=session, ref="1")["answered"] is None  # before everything


def test_cache_stats_have_the_same_keys_with_a_model_and_without(daemon: Daemon) -> None:
    daemon.new("one")
    loaded = daemon("cache.stats")
    daemon("models.unload")
    without = daemon("cache.stats")
    assert set(without) == set(loaded)
    assert without["total_tokens"] is without["free_tokens"] is without["model"] is None
    assert without["evictable_tokens"] == without["locked_tokens"] == 0
    nothing = dict.fromkeys(("freed_tokens", "pinned_tokens", "disk_tokens", "disk_bytes"), 0)
    assert daemon("cache.clear") == nothing


def test_a_pin_that_has_ended_before_it_could_be_told_is_said(daemon: Daemon) -> None:
    answer = daemon.new("one")
    with pytest.raises(InvalidInput, match="ended already"):
        daemon("cache.pin", session=answer["session"], hold_s=1e-9)
    assert daemon("cache.pin", session=answer["session"])["expires_s"] > 0


def test_a_tree_says_how_much_its_depth_and_its_filter_leave_out(daemon: Daemon) -> None:
    session = daemon.new("one")["session"]
    first = daemon("sessions.show", session=session)["branches"]["main"]
    for text in ("two", "three"):
        daemon.ask(text, session=session)
    daemon.ask("aside", session=session, at=first, branch="side")

    def told(**asked: Any) -> list[tuple[str, int]]:
        rows = daemon("tree", session=session, **asked)["messages"]
        return [(row["role"][:4], row["more_below"]) for row in rows]

    assert told(depth=2) == [("user", 0), ("assi", 6)]
    assert told(depth=3) == [("user", 0), ("assi", 0), ("user", 3), ("user", 1)]
    assert told(depth=2, filter="user-only") == [("user", 3)]
    assert told(filter="labeled") == [("assi", 0), ("assi", 0)]
    assert told(depth=2, filter="labeled") == []
    daemon("switch", session=session, ref="main")

    def under(**asked: Any) -> str | None:
        told_of: str | None = daemon("tree", session=session, **asked)["head_below"]
        return told_of

    assert under(depth=2) == first
    asked = daemon("log", session=session)["messages"][-2]
    assert under(filter="user-only") == asked["id"]
    assert under(filter="labeled") is under(ref="side") is None  # it is shown; it is elsewhere
    assert len(told()) == len(told(filter="all")) == len(told(depth=9)) == 8
