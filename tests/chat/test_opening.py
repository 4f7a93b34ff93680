"""What a chat does while its daemon opens the session and loads the model."""

from __future__ import annotations

from radchat.chat.opening import Opening
from radchat.client import Client
from radchat.paths import Places
from radchat.protocol import Event
from tests.chat.fake_server import FakeDaemon


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
        session={"where": {"terminal": "t", "folder": "/"}, "session": None, "new": True},
        model={"model": "tiny"},
        on_open=lambda _session: None,
        on_change=lambda: painted.append(opening.text),
        say=painted.append,
    )
    opening.start()
    assert opening.is_loaded(60.0)
    assert opening.error is None
    assert painted == ["loading tiny 0%", "loading tiny 40%", "loading tiny 100%", ""]
    assert opening.limit == 512
