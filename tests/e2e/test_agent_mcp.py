"""`radchat agent` with MCP servers: the real command, a real server, a model that is a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.agent.scripted_steps import Calls
from tests.chat.fake_server import FakeDaemon
from tests.e2e.test_agent_runs import Work

SERVER = Path(__file__).parents[1] / "agent" / "mcp_server.py"


def test_a_servers_tool_is_called_by_its_rule(tmp_path: Path) -> None:
    """One that does not start is told, and one that stands in the folder is not read (AG-07)."""
    servers = {
        "small": {"command": sys.executable, "args": [str(SERVER)]},
        "gone": {"command": "/no/such/program"},
    }
    steps: list[str | Calls] = [[("mcp__small__add", {"a": 1, "b": 41})], "it is 42"]
    with FakeDaemon() as daemon:
        work = Work(tmp_path, daemon)
        evil = {"mcpServers": {"evil": {"command": "touch", "args": [str(tmp_path / "ran")]}}}
        for name in ("mcp.json", ".mcp.json"):
            (work.root / name).write_text(json.dumps(evil))
        config = tmp_path / "servers.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        with work.start(steps, "--mcp-config", str(config)) as command:
            out, err = command.communicate(timeout=60)
        assert json.loads(out)["result"] == "it is 42"
        assert [result["text"] for result in work.model.results] == ["42"]
        assert "MCP server gone: " in err
        assert not (tmp_path / "ran").exists()
        named = [tool["name"] for tool in daemon.asked("generate")[0]["tools"]]
        assert named == sorted(named)
        assert "mcp__small__add" in named
        config.write_text('{"mcpServers": {"small": {}}}')
        with work.start([], "--mcp-config", str(config)) as command:
            out, err = command.communicate(timeout=60)
        assert command.returncode == 52
        assert "mcpServers.small.command: want a string" in json.loads(out)["error"]["message"]
