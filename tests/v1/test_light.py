"""What the API and other engines need is not imported before somebody asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

LATER = ("fastapi", "pydantic", "prometheus_client", "h11", "httpx2", "torch")
CODE = """
import sys
from radchat.daemon import main, service
from radchat.daemon.app import App
App(None, clock=lambda: 0.0)
print(*sys.modules)
"""


def test_a_daemon_starts_without_what_its_api_is_made_of() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", CODE]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "starlette.routing" in loaded
    assert not loaded & set(LATER)
