"""Which model a turn uses, and the offer of the first start.

-m, then RADCHAT_MODEL and config.toml, then the session's own (the daemon knows it), then the
default and the last used, then the only one installed, then the offer.
"""

from __future__ import annotations

import sys

from radchat.cli.common import Cli, is_terminal
from radchat.errors import NotFound

FALLBACK = "smollm2-135m"


def choose(cli: Cli, asked: str | None, *, is_new: bool, yes: bool = False) -> str | None:
    """The model to name in the call; None leaves an existing session its own.

    Raises NotFound (66), with the command to type, when there is none and nobody to ask.
    """
    from radchat.models import registry

    asked = asked or cli.config.model
    if asked or not is_new:
        return asked
    if cli.daemon:  # its models are its own business
        return registry.get_default(cli.places)
    if not registry.list_models(cli.places):
        return first_model(cli, yes=yes)
    return registry.choose(cli.places, None).name


def first_model(cli: Cli, *, yes: bool) -> str:
    """Offer what fits this machine; fetch it on a yes."""
    from radchat.models import fit, pull

    offer = fit.offer(cli.places)
    command = f"radchat models pull {offer.name}"
    if not yes:
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)) or cli.json:
            raise NotFound(f"no model is here yet; to fetch one that fits: {command}")
        for line in offer.lines:
            cli.note(line)
        sys.stderr.write(f"fetch {offer.name} now? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            raise NotFound(f"no model is here yet; to fetch one: {command}")
    entry = pull.pull(cli.places, offer.name, on_progress=cli.status)
    cli.status("")
    return str(entry.name)
