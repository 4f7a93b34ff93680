"""``radchat`` as it is, but that its daemons are fake ones: ``fake_radchat.py daemon start``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import radchat.client
import radchat.daemon.main
from radchat.__main__ import main

sys.path.append(str(Path(__file__).parents[2]))  # after the copy of radchat that is tested

from tests.daemon.fake_client import COMMAND
from tests.daemon.fake_daemon import FakeService

if __name__ == "__main__":
    # The command line has no seam for another daemon, and a user needs none: replaced by hand here.
    radchat.client.Client.connect = functools.partial(  # type: ignore[method-assign]
        radchat.client.Client.connect, command=COMMAND
    )
    radchat.daemon.main.start = functools.partial(
        radchat.daemon.main.start, service_factory=FakeService
    )
    main()
