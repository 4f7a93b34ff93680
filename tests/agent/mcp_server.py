"""A small MCP server on the package's own API; what its tools do, tests need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("small")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def environment() -> str:
    """Names of the variables."""
    return " ".join(sorted(os.environ))


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("as it does")


@server.tool()
def hang(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "late"


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Words and a picture."""
    return ["look:", Image(data=b"x" * 1000, format="png")]


@server.tool()
def die(message: str) -> str:
    """Ends the server, with a process left behind that ignores signals."""
    if message:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    os._exit(3)


@server.tool()
def leave(number: str) -> str:
    """Leaves a process in a session of its own."""
    subprocess.Popen(
        ["setsid", "sh", "-c", f"trap '' TERM HUP; sleep {number}; sleep {number}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return "left"


if __name__ == "__main__":
    server.run("stdio")
