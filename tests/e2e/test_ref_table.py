"""Every kind of REF with every command that takes one, through a real daemon (docs/cli.md, "REF").

The session: three turns on ``main``, ``side`` at the second answer, the label ``seen`` on the first
answer and ``asked`` on the second question; ``side`` is the branch before; ``s1.1`` is a search's
thought after the first answer. A row says which message its REF names; what a command makes of it
is one rule a command, stated once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from radchat.errors import NotFound, RadchatError, UsageError
from radchat.programs.search.asks import Answer, Ask, DaemonAsks
from tests.e2e.conftest import EXACT
from tests.e2e.homes import Home, Shell

OPTIONS = {"temperature": 0, "max_tokens": 2}
# REF -> (message it names, kind); {a2} and so on are the ids of answers and users
REFS = {
    "HEAD": ("a3", "head"),
    "head": ("a3", "head"),
    "HEAD~1": ("a2", "back"),
    "HEAD~": ("a2", "back"),
    "HEAD~2": ("a1", "back"),
    "HEAD~3": (None, "back"),
    "~1": ("a2", "back"),
    "-": ("a2", "previous"),
    "main": ("a3", "branch"),
    "side": ("a2", "branch"),
    "seen": ("a1", "label"),
    "asked": ("u2", "label"),
    "s1.1": ("t1", "thought"),
    "1": ("u1", "turn"),
    "3": ("u3", "turn"),
    "003": ("u3", "turn"),
    "#2": ("u2", "turn"),
    "{a2:6}": ("a2", "id"),
    "{u3:6}": ("u3", "id"),
    "{u1:32}": ("u1", "id"),
    "{name}:HEAD": ("a3", "head"),
    "{name}:": ("a3", "head"),
    "{name}:~1": ("a2", "back"),
    "{name}:side": ("a2", "branch"),
    "{name}:2": ("u2", "turn"),
    "{name}:s1.1": ("t1", "thought"),
    "{id:8}:{a1:6}": ("a1", "id"),
    "{other}:HEAD": ("o1", "head"),
    "{other}:main": ("o1", "branch"),
    "{other}:1": ("q1", "turn"),
}
OFFERS = ("label", "turn", "id")  # a user message named so is offered for editing
NOWHERE = (
    "nowhere",
    "s1",
    "s1.2",
    "abcd",
    "12",
    "0",
    "999",
    "abc",
    "nobody:HEAD",
    "HEAD~4",
    "{name}:nowhere",
)


@dataclass
class World:
    shell: Shell
    session: str
    name: str
    ids: dict[str, str]
    parents: dict[str, str | None]

    def typed(self, ref: str) -> str:
        named = {**self.ids, "name": self.name, "id": self.session, "other": self.ids["other"]}
        return ref.format(**{key: Cut(value) for key, value in named.items()})

    def point(self, message: str | None, kind: str) -> tuple[str | None, str | None]:
        """Where `fork`, `switch`, `--at` go, and the words that are offered."""
        if message is not None and message[0] in "uq" and kind in OFFERS:
            return self.parents[message], f"turn {message}"
        return self.ids[message] if message else None, None

    def asked(self, message: str | None) -> str | None:
        """The user message that `retry` answers again and `edit` says otherwise."""
        if message is None:
            return None
        return {"a": "u", "o": "q", "t": "x"}.get(message[0], message[0]) + message[1]

    def home(self) -> None:
        """HEAD on main, and side the branch before; the other session as it was."""
        for branch in ("side", "main"):
            self.shell.call("switch", session=self.session, ref=branch)
        other = self.shell.call("tree", session="ref-other")
        if (other["num_messages"], other["branch"], other["head"]) != (2, "main", self.ids["o1"]):
            self.shell.call("sessions.rm", sessions=["ref-other"])
            self.make_other()

    def make_other(self) -> None:
        done = self.shell.quick("turn q1")
        self.ids |= {"o1": done["message"], "q1": done["parent"], "other": "ref-other"}
        self.parents["q1"] = None
        self.shell.call("sessions.rename", session=done["session"], name="ref-other")

    def talk(self, **args: Any) -> dict[str, Any]:
        """A generating command of a chat that stands at the third answer, on no branch."""
        head = {"branch": None, "message": self.ids["a3"]}
        asked = {"dtype": "fp32", "options": OPTIONS, "session": self.session, "head": head, **args}
        with self.shell.stream(new_session=False, **asked) as events:
            done = list(events)[-1].data
        return dict(done["branches"][0])


class Cut(str):
    """``{a2:6}``: the first six letters."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return self[: int(spec)] if spec else str(self)


@pytest.fixture(scope="module")
def world(shared: Home) -> World:
    shell = Shell(shared, "refs", EXACT)
    found = World(shell, "", "ref-table", {}, {})
    last = None
    for number in range(1, 4):
        done = shell.quick(f"turn u{number}", found.session or None)
        found.ids |= {f"a{number}": done["message"], f"u{number}": done["parent"]}
        found.parents[f"u{number}"], last = last, done["message"]
        found.session = done["session"]
    found.make_other()
    ids = found.ids
    shell.call("sessions.rename", session=found.session, name=found.name)
    shell.call("branch.create", session=found.session, name="side", ref=ids["a2"])
    shell.call("branch.label", session=found.session, ref=ids["a1"], text="seen")
    shell.call("branch.label", session=found.session, ref=ids["u2"], text="asked")
    ids["t1"] = thought(shell, found.session, ids["a1"])
    ids["x1"] = shell.call("log", session=found.session, ref=ids["t1"])["messages"][-2]["id"]
    found.parents["x1"] = ids["a1"]
    found.home()
    return found


def thought(shell: Shell, session: str, at: str) -> str:
    """One that a search was given as text."""
    asked = {"where": shell.where, "session": session, "at": at, "dtype": "fp32"}
    client = shell.home.client()
    asks = DaemonAsks.open(client, asked, on_notice=print, on_wait=lambda _text: None)
    extra = {"search": {"number": 1}}
    (answer,) = asks.ask(
        [Ask(None, "turn x1", says=["a step"], names=["s1.1"], extra=extra)], lambda *_: None
    )
    asks.close()
    assert isinstance(answer, Answer), answer
    return answer.outputs[0].message


ROWS = [pytest.param(ref, *meant, id=ref) for ref, meant in REFS.items()]
# one of each kind is enough where every row costs three answers
FEWER = [
    pytest.param(ref, *REFS[ref], id=ref)
    for ref in {(k, m and m[0], ref[:6] == "{other"): ref for ref, (m, k) in REFS.items()}.values()
]


def session_of(world: World, ref: str) -> str:
    return "other" if ref.startswith("{other}") else "own"


@pytest.mark.parametrize(("ref", "message", "kind"), ROWS)
def test_log_and_tree_show_what_the_ref_names(
    world: World, ref: str, message: str | None, kind: str
) -> None:
    world.home()
    asked = {"session": world.session, "ref": world.typed(ref)}
    log = world.shell.call("log", **asked)["messages"]
    assert (log[-1]["id"] if log else None) == (world.ids[message] if message else None)
    tree = world.shell.call("tree", **asked)["messages"]
    assert message is None or tree[0]["id"] == world.ids[message]
    shown = world.shell.call("refs", session=world.session, prefix=world.typed(ref))["refs"]
    typed = world.typed(ref).rpartition(":")[2]
    if kind in ("branch", "label", "thought", "turn", "id") and typed[0] not in "#0":
        assert [row["kind"] for row in shown if typed.startswith(row["ref"])] == [kind]


@pytest.mark.parametrize(("ref", "message", "kind"), ROWS)
def test_switch_and_fork_and_branch_go_to_the_point_it_means_and_offer_a_users_words(
    world: World, ref: str, message: str | None, kind: str
) -> None:
    point, words = world.point(message, kind)
    there, own = session_of(world, ref), world.session
    world.home()
    moved = world.shell.call("switch", session=own, ref=world.typed(ref))
    assert (moved["head"], moved["text"]) == (point, words)
    assert (moved["session"] == own) == (there == "own")
    if kind == "branch":
        assert moved["branch"] == ref.rpartition(":")[2]
    assert world.shell.call("sessions.show")["id"] == moved["session"]  # and is current
    world.home()
    forked = world.shell.call("fork", session=own, ref=world.typed(ref), name="forked")
    assert (forked["head"], forked["text"], forked["branch"]) == (point, words, "forked")
    world.home()
    if there == "own":
        world.shell.call("branch.delete", session=own, name="forked")
    made = world.shell.call("branch.create", session=own, name="made", ref=world.typed(ref))
    assert made["message"] == world.point(message, kind)[0]
    world.shell.call("branch.delete", session=made["session"], name="made")


@pytest.mark.parametrize(("ref", "message", "kind"), FEWER)
def test_edit_retry_and_at_answer_where_it_says(
    world: World, ref: str, message: str | None, kind: str
) -> None:
    world.home()
    typed, user = world.typed(ref), world.asked(message)
    said = world.talk(kind="turn", text="beside", at=typed)
    asked = world.shell.call("log", session=said["session"], ref=said["message"])["messages"][-2]
    assert (asked["text"], asked["parent"]) == ("beside", world.point(message, kind)[0])
    if user is None:
        for command in ("edit", "retry"):
            with pytest.raises(NotFound, match="no user message"):
                world.talk(kind=command, text="x" if command == "edit" else "", ref=typed)
        return
    world.home()
    again = world.talk(kind="retry", ref=world.typed(ref))
    assert again["parent"] == world.ids[user]
    world.home()
    typed = world.typed(ref)
    other = world.talk(kind="edit", text="otherwise", ref=typed)
    asked = world.shell.call("log", session=other["session"], ref=other["message"])["messages"][-2]
    assert (asked["text"], asked["parent"]) == ("otherwise", world.parents[user])


@pytest.mark.parametrize(("ref", "message", "kind"), FEWER)
def test_a_label_and_the_cache_take_the_message_itself(
    world: World, ref: str, message: str | None, kind: str
) -> None:
    world.home()
    asked = {"session": world.session, "ref": world.typed(ref)}
    if message is None:
        with pytest.raises(UsageError, match="before everything"):
            world.shell.call("branch.label", **asked, text="noted")
        return
    noted = world.shell.call("branch.label", **asked, text=f"noted-{message}")
    assert noted["message"] == world.ids[message]
    assert world.shell.call("cache.evict", **asked)["freed_tokens"] >= 0


@pytest.mark.parametrize("ref", NOWHERE)
def test_what_names_nothing_is_sixty_six_and_moves_nothing(world: World, ref: str) -> None:
    world.home()
    for method in ("log", "tree", "switch", "fork", "cache.evict"):
        with pytest.raises(NotFound):
            world.shell.call(method, session=world.session, ref=world.typed(ref))
    for kind in ("retry", "edit"):
        with pytest.raises(RadchatError) as caught:
            world.talk(kind=kind, text="x" if kind == "edit" else "", ref=world.typed(ref))
        assert caught.value.exit_code == 66
    here = world.shell.call("sessions.show", session=world.session)
    assert (here["branch"], here["head"]) == ("main", world.ids["a3"])


def test_names_go_before_numbers_and_numbers_before_ids(world: World) -> None:
    """HEAD, -, branch, label, turn number, id prefix."""
    beginning = world.ids["a1"][:5]
    world.shell.call("branch.create", session=world.session, name=beginning, ref="side")
    try:
        found = world.shell.call("log", session=world.session, ref=beginning)["messages"]
        assert found[-1]["id"] == world.ids["a2"]
    finally:
        world.shell.call("branch.delete", session=world.session, name=beginning)
    for taken in ("12", "0", "007", "HEAD", "head", "-x", "#4", "~2", "a:b", "a b", "a\tb", ""):
        with pytest.raises(UsageError, match="can't be the name"):
            world.shell.call("branch.create", session=world.session, name=taken, ref="HEAD")
        with pytest.raises(UsageError, match="can't be the name"):
            world.shell.call("branch.label", session=world.session, ref="HEAD", text=taken)


def test_a_prefix_that_fits_several_lists_them_and_exits_sixty_six(world: World) -> None:
    session = world.session
    made: list[str] = [m["id"] for m in world.shell.call("tree", session=session)["messages"]]
    for message in made[:2]:
        world.shell.call("branch.label", session=session, ref=message, text="both")
    done = world.shell("log", "both", "--session", "ref-table", code=66)
    assert "both fits 2 messages:" in done.err
    assert all(message[:4] in done.err for message in made[:2])
    error = world.shell.json("log", "both", "--session", "ref-table", code=66)["error"]
    assert len(error["matches"]) == 2


def test_every_move_makes_its_session_the_terminals_and_looking_does_not(world: World) -> None:
    call = world.shell.call
    moves: list[tuple[str, dict[str, Any]]] = [
        ("undo", {}),
        ("redo", {}),
        ("switch", {"ref": "main"}),
        ("fork", {"name": "moved"}),
    ]
    looks: list[tuple[str, dict[str, Any]]] = [
        ("tree", {}),
        ("log", {}),
        ("branch.list", {}),
        ("sessions.show", {}),
        ("refs", {}),
        ("branch.create", {"name": "noted"}),
        ("branch.label", {"ref": "HEAD", "text": "looked"}),
    ]
    for method, args in moves:
        world.home()
        call("switch", session="ref-other", ref="HEAD")
        call(method, session=world.session, **args)
        assert call("sessions.show")["id"] == world.session, method
    call("switch", session="ref-other", ref="HEAD")
    other = call("sessions.show")["id"]
    for method, args in looks:
        call(method, session=world.session, **args)
        assert call("sessions.show")["id"] == other, method
    world.home()
    for name in ("moved", "noted"):
        call("branch.delete", session=world.session, name=name)
