"""MCP servers: their tools as the agent's, and that one which misbehaves harms only itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radchat.agent.files.workspace import Folder
from radchat.agent.mcp import config, connection
from radchat.agent.mcp.config import ServerConfig
from radchat.agent.mcp.servers import Servers
from radchat.agent.permission.grants import Grants
from radchat.agent.permission.judge import Judge
from radchat.agent.permission.rules import Rule
from radchat.agent.tools.outputs import KeptOutputs
from radchat.agent.types import Call, Context, Limits, Outcome
from radchat.errors import ConfigInvalid
from radchat.paths import Places
from tests.agent.sandboxes import running
from tests.waiting import wait_until

HERE = Path(__file__).parent
SMALL = ServerConfig("small", sys.executable, (str(HERE / "mcp_server.py"),), {"KEY": "secret"})


def rogue(kind: str) -> ServerConfig:
    return ServerConfig(kind, sys.executable, ("-I", "-S", str(HERE / "mcp_rogue.py"), kind))


class Talk:
    """Servers, what they told, and a context to call them in."""

    def __init__(self, folder: Path, *configs: ServerConfig) -> None:
        self.told: list[str] = []
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TOKEN": "not for them"}
        self.servers = Servers.open(configs, env, self.told.append)
        self.context = Context(Folder.of(folder), KeptOutputs(folder / "outputs"))
        self.tools = {tool.name: tool for tool in self.servers.tools}

    def call(self, tool: str, **arguments: object) -> Outcome:
        call = Call("c1", tool, arguments)
        preview = self.tools[tool].preview(call, self.context)
        return self.tools[tool].run(call, self.context, preview)


@contextmanager
def talking(folder: Path, *configs: ServerConfig) -> Iterator[Talk]:
    talk = Talk(folder, *configs)
    try:
        yield talk
    finally:
        talk.servers.close()


def test_tools_of_a_server_of_the_package(tmp_path: Path) -> None:
    """One server, one life: what it lists, says, fails at, how long it may take, its death."""
    number = f"30.{time.monotonic_ns()}"
    with talking(tmp_path, SMALL) as talk:
        assert list(talk.tools) == sorted(talk.tools)
        add = talk.tools["mcp__small__add"]
        assert (add.kind, add.description) == ("other", "Add two numbers.")
        assert set(add.parameters["properties"]) == {"a", "b"}
        assert add.parameters["additionalProperties"] is False
        assert talk.call("mcp__small__add", a=2, b=40) == Outcome("42")
        names = talk.call("mcp__small__environment").text.split()
        assert "KEY" in names
        assert "TOKEN" not in names
        failed = talk.call("mcp__small__fail")
        assert failed.status == "error"
        assert "Error executing tool fail" in failed.text
        assert talk.call("mcp__small__picture").text == "look:\n[image image/png: 1,000 bytes]"
        talk.context.limits = Limits(timeout_s=0.2)
        assert talk.call("mcp__small__hang", seconds=1).status == "timeout"
        talk.context.limits = Limits()
        threading.Timer(0.2, talk.context.cancel.set).start()
        assert talk.call("mcp__small__hang", seconds=2).status == "interrupted"
        talk.context.cancel.clear()
        assert talk.call("mcp__small__leave", number=number).text == "left"
        wait_until(lambda: bool(running(number)))
        died = talk.call("mcp__small__die", message="out of \x1b[31mluck")
        assert died.status == "error"
        wait_until(lambda: not running(number))
        assert talk.told == []
        assert talk.call("mcp__small__add", a=1, b=1).text == "2"
        assert talk.told == ["MCP server small: it has ended, and is started again"]
        assert talk.servers.lines()[0].startswith("small · up · 7 tools")
        talk.call("mcp__small__leave", number=number)
        wait_until(lambda: bool(running(number)))
    assert not running(number)


def test_what_misbehaves_harms_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_S", 2.0)
    kinds = ("mute", "ends", "garbage", "many", "odd", "changing", "stays", "shapeless")
    missing = ServerConfig("missing", "/no/such/program")
    far = ServerConfig("far", problem="it has a url: only servers with a command are spoken to")
    with talking(tmp_path, *map(rogue, kinds), missing, far) as talk:
        told = "\n".join(talk.told)
        assert "MCP server mute: it did not answer within 2 s; the agent goes on without it" in told
        assert r"no key \x1b[31mset" in told
        assert "it ended (exit code 4)" in told
        assert "/no/such/program: no such file or directory" in told
        assert "MCP server far: it has a url" in told
        assert "MCP server many: 1,000 tools are too many: 960 are left out" in told
        assert r"the tool a b\x1b[31m! is left out" not in told
        assert "the tool a_b__31m_ is left out: another has its name" in told
        assert "the tool list is left out: its schema refers to itself" in told
        assert "MCP server shapeless: " in told
        assert "the tool outside is left out: its schema refers to http://x/y" in told
        assert "the tool huge is left out: its schema is larger" in told
        odd = talk.tools["mcp__odd__a_b__31m_"]
        assert odd.description.startswith(r"red \x1b[31m ignore")
        assert len(odd.description) <= 1000
        assert talk.call("mcp__garbage__go") == Outcome("fine")
        talk.told.clear()
        for _ in range(2):
            assert talk.call("mcp__changing__go") == Outcome("fine")
        wait_until(lambda: talk.call("mcp__changing__go") and bool(talk.told))
        assert len(talk.told) == 1
        assert "MCP server changing: its tools have changed: those here stay" in talk.told[0]
        states = dict(line.split(" · ")[:2] for line in talk.servers.lines())
        assert states["mute"] == states["ends"] == states["missing"] == "failed"
        assert states["stays"] == "up"


@pytest.mark.parametrize("kind", ["long", "flood"])
def test_a_flood_ends_its_server(tmp_path: Path, kind: str) -> None:
    with talking(tmp_path, rogue(kind), rogue("fine")) as talk:
        outcome = talk.call(f"mcp__{kind}__go")
        assert outcome.status == "error"
        assert "more than" in outcome.text
        assert talk.call("mcp__fine__go") == Outcome("fine")


AGENT = """
import sys, time
from pathlib import Path
from tests.agent.test_mcp import SMALL, Talk
talk = Talk(Path(sys.argv[1]), SMALL)
talk.call("mcp__small__leave", number=sys.argv[2])
print("up", flush=True)
talk.call("mcp__small__hang", seconds=30)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_agent(tmp_path: Path, how: signal.Signals) -> None:
    number = f"30.{time.monotonic_ns()}"
    words = [sys.executable, "-c", AGENT, str(tmp_path), number]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        wait_until(lambda: bool(running(number)))
        agent.send_signal(how)
    wait_until(lambda: not running(number))


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigInvalid, match=r"pip install 'radchat\[mcp\]'"):
        Servers.open([SMALL], {}, print)


def test_each_is_asked_for_by_its_rule(tmp_path: Path) -> None:
    rules = [Rule.parse("mcp(fine:go)")]
    grants = Grants(tmp_path / "rules", tmp_path, rules, print)
    judge = Judge("default", Folder.of(tmp_path), grants)
    with talking(tmp_path, rogue("odd"), rogue("fine")) as talk:
        verdicts = {}
        for name, tool in talk.tools.items():
            call = Call("c", name, {})
            verdicts[name] = judge.judge(call, tool, tool.preview(call, talk.context))
    assert verdicts["mcp__fine__go"].decision == "allow"
    asked = verdicts["mcp__odd__a_b__31m_"]
    assert (asked.decision, asked.rules) == ("ask", ("mcp(odd:a_b__31m_)",))


# -- settings --------------------------------------------------------------------------------------


def test_settings_name_file_and_key(tmp_path: Path) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path)})
    assert config.configured(places) == ()
    places.config.mkdir(parents=True)
    own, more = places.config / "mcp.json", tmp_path / "more.json"
    own.write_text('{"mcpServers": {"b": {"command": "x"}, "a": {"command": "y", "args": ["1"]}}}')
    more.write_text(
        '{"mcpServers": {"b": {"command": "z", "env": {"K": "v"}, "cwd": "/"},'
        ' "c": {"url": "http://x"}, "d": {"disabled": true}}}'
    )
    assert [server.name for server in config.configured(places)] == ["a", "b"]
    found = config.configured(places, more)
    assert [(server.name, server.command) for server in found] == [
        ("a", "y"),
        ("b", "z"),
        ("c", ""),
    ]
    assert "url" in found[2].problem
    wrong = {
        "x": "no JSON",
        '{"mcpServers": []}': "want {",
        '{"mcpServers": {"a": {"args": []}}}': r"mcpServers\.a\.command: want a string \(got null",
        '{"mcpServers": {"a": {"command": "x", "args": [1]}}}': r"mcpServers\.a\.args\[0\]",
        '{"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}}': r"mcpServers\.a\.env\.K",
        '{"mcpServers": {"a": {"command": "x", "cwd": 1}}}': r"mcpServers\.a\.cwd",
        '{"mcpServers": {"a": 1}}': r"mcpServers\.a: want an object",
        '{"mcpServers": {" ": {"command": "x"}}}': "a server has a name",
    }
    for text, message in wrong.items():
        own.write_text(text)
        with pytest.raises(ConfigInvalid, match=message) as error:
            config.configured(places)
        assert str(own) in error.value.message
    with pytest.raises(ConfigInvalid, match=r"none\.json: no such file"):
        config.read(tmp_path / "none.json")
