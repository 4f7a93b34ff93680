"""When a command leaves the daemon alone that it would stop and start again."""

from __future__ import annotations

import pytest

from radchat.cli import restart
from radchat.cli.common import Cli
from radchat.client import Client
from radchat.paths import Places
from tests.chat.conftest import SESSION, full_script
from tests.chat.fake_server import FakeDaemon


@pytest.fixture
def cli(daemon: FakeDaemon) -> Cli:
    """As if this home's daemon were the scripted one."""
    client = Client.connect(Places.from_env(), start=False, daemon_socket=daemon.path)
    return Cli(_client=client)


def test_a_daemon_whose_end_loses_nothing_may_go(cli: Cli) -> None:
    assert restart.why_not(cli) is None
    assert restart.persist_off(cli) is None


def test_one_that_was_named_or_is_in_use_is_left_alone(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.script["sessions.list"] = {"sessions": [{**SESSION, "ephemeral": True}], "total": 1}
    assert restart.why_not(cli) == "an ephemeral session would be gone"
    daemon.script["status"] = {"state": "ready", "answers": 1}
    assert restart.why_not(cli) == "another answer is running"
    cli.daemon = str(daemon.path)
    assert restart.why_not(cli) == "this daemon was named with --daemon"


def test_kv_that_is_not_kept_is_said_why(cli: Cli, daemon: FakeDaemon) -> None:
    told = full_script()["cache.stats"]
    daemon.script["cache.stats"] = {**told, "persist_off": "KV is not kept on disk: persist = off"}
    assert restart.persist_off(cli) == "KV is not kept on disk: persist = off"
