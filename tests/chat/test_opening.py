"""What a chat does while its daemon opens the session and loads the model."""

from __future__ import annotations

import threading

from radchat.chat.opening import Opening
from radchat.cli.common import Cli
from radchat.client import Client
from radchat.paths import Places
from radchat.protocol import Event, Where
from tests.chat.conftest import SESSION
from tests.chat.fake_server import FakeDaemon
from tests.chat.trees import long

WHERE: Where = {"terminal": "t", "folder": "/"}


Told = list[str]


def opened(daemon: FakeDaemon, *, new: bool = False) -> Told:
    """What a chat says while it opens, to the end."""
    told: Told = []
    opening = Opening(
        lambda: Client.connect(Places.from_env(), start=False, daemon_socket=daemon.path),
        session={"where": WHERE, "session": None, "new": new},
        model={"model": "tiny"},
        on_open=lambda _session: None,
        on_change=lambda: None,
        say=told.append,
    )
    opening.start()
    assert opening.is_loaded(60.0)
    assert opening.error is None
    return told


def loading(restoring: int) -> list[Event]:
    done = {"model": "tiny", "context": 512, "restoring": restoring}
    return [Event("notice", {"text": "tiny makes room"}), Event("done", done)]


def test_the_kv_of_heads_path_is_restored_while_one_types(daemon: FakeDaemon) -> None:
    daemon.script["models.load"] = lambda _args: loading(1980)
    assert opened(daemon) == ["tiny makes room", "1,980 tokens come from disk"]
    (asked,) = daemon.asked("models.load")
    assert (asked["session"], asked["restore"]) == (SESSION["id"], True)
    assert asked["head"]["message"] == SESSION["head"]


def test_the_prompt_waits_for_no_daemon_that_is_only_starting(daemon: FakeDaemon) -> None:
    may_answer = threading.Event()

    def connect() -> Client:
        opening.show("starting the daemon")
        assert may_answer.wait(60)
        return Client.connect(Places.from_env(), start=False, daemon_socket=daemon.path)

    opening = Opening(
        connect,
        session={"where": WHERE, "session": None, "new": True},
        model={},
        on_open=lambda _session: None,
        on_change=lambda: None,
        say=lambda _text: None,
    )
    opening.start()
    assert not opening.first_look(1e6)
    may_answer.set()
    assert opening.wait(60)
    assert opening.first_look(1e6)


def test_what_restores_nothing_says_nothing(daemon: FakeDaemon) -> None:
    daemon.script["models.load"] = lambda _args: loading(0)
    assert opened(daemon) == ["tiny makes room"]
    opened(daemon, new=True)
    daemon.script["sessions.open"] = {**SESSION, "head": None, "messages": 0}
    opened(daemon)
    assert ["restore" in asked for asked in daemon.asked("models.load")] == [True, False, False]


def test_a_chat_at_an_earlier_place_restores_the_path_to_there(daemon: FakeDaemon) -> None:
    daemon.script["models.load"] = lambda _args: loading(1)
    daemon.script["sessions.open"] = {**SESSION, "at": long("c2aa")}
    assert opened(daemon)[-1] == "1 token comes from disk"
    assert daemon.asked("models.load")[0]["head"]["message"] == long("c2aa")
    daemon.script["sessions.open"] = {**SESSION, "at": None}
    daemon.script["models.load"] = lambda _args: loading(0)
    opened(daemon)  # the beginning: nothing of it was said yet
    assert "restore" not in daemon.asked("models.load")[1]


def test_the_prompt_is_painted_again_only_where_there_is_something_new(
    daemon: FakeDaemon,
) -> None:
    """A daemon says how far it is several times a second, changed or not."""
    shares = [0] * 20 + [40] * 20 + [100]
    daemon.script["models.load"] = lambda _args: [
        *(
            Event("progress", {"stage": "load", "done": done, "total": 100, "text": "tiny"})
            for done in shares
        ),
        Event("done", {"model": "tiny", "context": 512}),
    ]
    painted: list[str] = []

    def connect() -> Client:
        return Client.connect(Places.from_env(), start=False, daemon_socket=daemon.path)

    opening = Opening(
        connect,
        session={"where": WHERE, "session": None, "new": True},
        model={"model": "tiny"},
        on_open=lambda _session: None,
        on_change=lambda: painted.append(opening.text),
        say=painted.append,
    )
    opening.start()
    assert opening.is_loaded(60.0)
    assert opening.error is None
    assert painted == ["loading tiny 0%", "loading tiny 40%", "loading tiny 100%", ""]
    assert opening.loaded["context"] == 512
    opening.show("starting the daemon")  # another one, later: nobody would take it back
    assert opening.text == ""


def test_what_connects_below_a_prompt_leaves_the_terminal_alone(daemon: FakeDaemon) -> None:
    """The line of progress is erased by its end, and a prompt with it."""
    shown: list[str] = []

    class Watched(Cli):
        def status(self, text: str) -> None:
            shown.append(text)

    cli = Watched(daemon=str(daemon.path))
    cli.connect(on_wait=shown.append, on_notice=shown.append).close()
    assert shown == []
    cli.connect().close()
    assert shown == [""]
