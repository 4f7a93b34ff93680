"""A command as a process: connect, ask, print what came as JSON. ``fake_client.py METHOD``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from radchat.client import Client
from radchat.errors import RadchatError
from radchat.paths import Places

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("fake_daemon.py")))


def main(method: str = "sessions.list", *flags: str) -> int:
    try:
        with Client.connect(
            Places.from_env(), command=COMMAND, start="--no-start" not in flags
        ) as client:
            print(json.dumps({"health": client.health, "answer": client.call(method)}), flush=True)
            if "--stay" in flags:
                sys.stdin.read()
    except RadchatError as error:
        print(json.dumps({"error": error.to_json()}))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
