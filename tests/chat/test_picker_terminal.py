"""The tree picker in a chat: a pty of 80 by 24, a scripted daemon, real keys."""

from __future__ import annotations

from typing import Any

import pytest

from radchat.errors import Busy, NotFound, RadchatError, UsageError
from tests.chat.conftest import Open
from tests.chat.fake_server import FakeDaemon
from tests.chat.talking import sent
from tests.chat.test_chat_terminal import at_prompt
from tests.chat.trees import chain, long, report
from tests.e2e.harness import Terminal

KEYS = {"up": "\x1b[A", "down": "\x1b[B", "end": "\x1b[F", "home": "\x1b[H", "left": "\x1b[D"}


class Tree:
    """A daemon's tree that is labelled and pruned."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.tree = report()
        self.tree["messages"][3]["text"] = "価格を10％下げたら\x1b[2J?"
        daemon.script |= {
            "tree": lambda _args: self.tree,
            "switch": lambda args: self.moved("main", "a19e", "price -10 %"),
            "fork": self.fork,
            "branch.label": self.label,
            "sessions.prune": self.prune,
        }

    def moved(self, branch: str, head: str, text: str | None = None) -> dict[str, Any]:
        return {"session": long("e7f2"), "name": "report-q3", "branch": branch,
                "head": long(head), "text": text}  # fmt: skip

    def fork(self, args: dict[str, Any]) -> dict[str, Any] | RadchatError:
        if args["name"] == "price":
            return UsageError("there is a branch price already")
        return self.moved(args["name"] or "main-2", "b7d0")

    def label(self, args: dict[str, Any]) -> dict[str, Any]:
        row = next(m for m in self.tree["messages"] if m["id"] == args["ref"])
        row["labels"].append(args["text"])
        return {}

    def prune(self, args: dict[str, Any]) -> dict[str, Any]:
        gone = {long("c3b4"), long("e1c7")}
        assert args["marked"] == [long("c3b4")]
        if not args["dry_run"]:
            messages = [m for m in self.tree["messages"] if m["id"] not in gone]
            self.tree = {**self.tree, "messages": messages, "branches": {"price": long("c2aa")}}
        return {"session": long("e7f2"), "name": "report-q3", "messages": 2, "tokens": 313,
                "kv_tokens": 0, "kv_bytes": 0, "branches": ["costs"], "labels": 1,
                "thoughts": 0, "shared": 0, "digest": "ab12"}  # fmt: skip


@pytest.fixture
def tree(daemon: FakeDaemon) -> Tree:
    return Tree(daemon)


def opened(chat: Open, by: str = "/tree\r") -> Terminal:
    terminal = chat("chat", "-c")
    terminal.wait_for(at_prompt)
    terminal.type(by)
    terminal.wait_for("q leave")
    return terminal


def is_left(terminal: Terminal) -> bool:
    """pyte has no second screen: the picker's last picture stays on it."""
    ends = [terminal.raw.count(b"\x1b[?1049" + each) for each in (b"h", b"l")]
    return ends[0] == ends[1] > 0


def row(terminal: Terminal, text: str) -> str:
    return next((line for line in terminal.lines if text in line), "")


def test_a_walk_labels_prunes_finds_and_takes_a_message_back_to_the_editor(
    chat: Open, daemon: FakeDaemon, tree: Tree
) -> None:
    terminal = opened(chat, by="\x1b\x1b")
    assert row(terminal, "d9f1").startswith(">          d9f1 asst Revenue would fall...")
    assert row(terminal, "d9f1").endswith("<- HEAD  G")
    assert "価格を10％下げたら\\x1b[2J?" in row(terminal, "c2aa")
    terminal.type("lgood\r")
    terminal.wait_for("good  <- HEAD  G")
    terminal.type("d")
    terminal.wait_for("HEAD is there or after it")
    terminal.type(KEYS["end"] + KEYS["up"] + "d")
    terminal.wait_for("d mark  x delete 2  / find")
    assert "2 marked d" in terminal.text
    assert row(terminal, "e1c7").startswith(" d")
    terminal.type("x")
    terminal.wait_for("delete 2 messages, 313 tokens, 1 branch, 1 label for good? y/N")
    assert [args["dry_run"] for args in sent(daemon, 1, "sessions.prune")] == [True]
    terminal.type("y")
    terminal.wait_for("deleted 2 messages")
    assert "e1c7" not in terminal.text
    terminal.type("/下げ")
    terminal.wait_for("1 with 下げ")
    terminal.type("\r")
    terminal.wait_for("d mark  Esc all again  ? keys  q leave")
    terminal.type("/")
    terminal.type("\r")
    terminal.resize(30, 100)
    terminal.wait_for(lambda screen: len(row(screen, "price  G")) > 85)
    terminal.type("\r")
    terminal.wait_for(is_left)
    terminal.wait_for("> price -10 %")  # its text, to be changed
    assert daemon.asked("switch")[0]["ref"] == long("c2aa")
    assert "report-q3 · main@a19e" in terminal.text
    assert b"\x1b[2J?" not in terminal.raw


def test_a_fork_is_named_and_a_name_that_is_taken_is_asked_for_again(
    chat: Open, daemon: FakeDaemon, tree: Tree
) -> None:
    terminal = opened(chat)
    terminal.type("fprice\r")
    terminal.wait_for("there is a branch price already")
    terminal.type("r\r")
    terminal.wait_for(is_left)
    terminal.wait_for("pricer> ")
    assert [args["name"] for args in daemon.asked("fork")] == ["price", "pricer"]
    assert daemon.asked("fork")[1]["ref"] == long("d9f1")
    terminal.type("/tree\r")
    terminal.wait_for(lambda screen: screen.raw.count(b"\x1b[?1049h") == 2)
    terminal.wait_for("q leave")
    terminal.type("\x1b")
    terminal.wait_for(is_left)
    assert daemon.asked("sessions.prune") == []


def test_what_is_pasted_is_text_and_what_is_gone_meanwhile_is_seen_to_be(
    chat: Open, daemon: FakeDaemon, tree: Tree
) -> None:
    terminal = opened(chat)
    terminal.type("\x1b[200~q\x1b[201~")  # no key
    terminal.type("l\x1b[200~well\nput\x1b[201~\r")
    terminal.wait_for("well put  <- HEAD  G")
    terminal.type("/\x1b[200~cost -5\x1b[201~")
    terminal.wait_for("1 with cost -5")
    terminal.type("\x1b")
    terminal.wait_for(lambda screen: bool(row(screen, "e1c7")))
    daemon.script["switch"] = lambda _args: NotFound("no branch costs")
    tree.prune({"marked": [long("c3b4")], "dry_run": False})  # by another terminal
    terminal.type(KEYS["end"] + "\r")
    terminal.wait_for("no branch costs")
    terminal.wait_for(lambda screen: not row(screen, "e1c7"))
    assert [args["ref"] for args in daemon.asked("switch")] == ["costs"]


def test_keys_typed_before_it_is_seen_are_not_its_own(
    chat: Open, daemon: FakeDaemon, tree: Tree
) -> None:
    """They would mark and delete; they are offered at the prompt, and not sent."""
    terminal = chat("chat", "-c")
    terminal.wait_for(at_prompt)
    terminal.type("/tree\rkkdxy\r")
    terminal.wait_for("q leave")
    terminal.type("q")
    terminal.wait_for(is_left)
    terminal.wait_for("> kkdxy")
    assert daemon.asked("sessions.prune") == daemon.asked("generate") == []


def test_marks_are_asked_about_when_one_leaves(chat: Open, daemon: FakeDaemon, tree: Tree) -> None:
    terminal = opened(chat)
    terminal.type(KEYS["end"] + KEYS["up"] + "dq")
    terminal.wait_for("for good? y/N")
    terminal.type("n")
    terminal.wait_for(is_left)
    assert [args["dry_run"] for args in daemon.asked("sessions.prune")] == [True]


def test_what_is_more_by_now_is_asked_about_before_it_goes(
    chat: Open, daemon: FakeDaemon, tree: Tree
) -> None:
    says: list[dict[str, Any] | RadchatError] = [
        tree.prune({"marked": [long("c3b4")], "dry_run": True}),
        Busy("look again", changed=True),
        tree.prune({"marked": [long("c3b4")], "dry_run": True}) | {"messages": 4, "digest": "cd34"},
        Busy("the disk does not answer"),
    ]
    daemon.script["sessions.prune"] = lambda _args: says.pop(0)
    terminal = opened(chat)
    terminal.type(KEYS["end"] + KEYS["up"] + "dx")
    terminal.wait_for("delete 2 messages")
    terminal.type("y")
    terminal.wait_for("by now: delete 4 messages, 313 tokens, 1 branch, 1 label for good? y/N")
    terminal.type("y")
    terminal.wait_for("the disk does not answer")  # another way to be busy is told as it is
    calls = daemon.asked("sessions.prune")
    assert [args.get("digest") for args in calls] == [None, "ab12", None, "cd34"]


def test_prune_deletes_what_it_asked_about(chat: Open, daemon: FakeDaemon) -> None:
    terminal = chat("prune")
    terminal.wait_for("for good?")
    terminal.type("y\r")
    terminal.wait_for("deleted 2 messages")
    calls = daemon.asked("sessions.prune")
    assert [(args["dry_run"], args.get("digest")) for args in calls] == [
        (True, None),
        (False, "ab12"),
    ]


def test_five_thousand_messages_and_a_daemon_in_a_long_step(chat: Open, daemon: FakeDaemon) -> None:
    tree = chain(5000) | {"branches": {}}
    daemon.script["tree"] = lambda args: Busy("a long step") if args.get("show_cache") else tree
    terminal = opened(chat)
    assert row(terminal, "1387").startswith(">")
    terminal.type(KEYS["home"])
    terminal.wait_for("0000 user message 0")
    terminal.type("/message 4999")
    terminal.wait_for("1 with message 4999")
    terminal.type("\x1b")
    terminal.wait_for("5000/5000")
    terminal.type("q")
    terminal.wait_for(is_left)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {}], ids=["dumb", "plain"])
def test_where_no_screen_can_be_shown_the_tree_is_printed(
    chat: Open, daemon: FakeDaemon, env: dict[str, str]
) -> None:
    terminal = chat("chat", "-c", *([] if env else ["--plain"]), **env)
    terminal.wait_for(at_prompt)
    terminal.type("/tree\r")
    terminal.wait_for("Revenue would fall...")
    terminal.wait_for("costs")
    assert b"\x1b[?1049h" not in terminal.raw
