"""Which model a turn uses, and the offer of the first start.

-m, then RADCHAT_MODEL and config.toml, then the session's own (the daemon knows it), then the
default and the last used, then the only one installed, then the offer.
"""

from __future__ import annotations

import sys

from radchat.chat.footer import size
from radchat.cli.common import Cli, is_terminal
from radchat.errors import NotFound


def choose(cli: Cli, asked: str | None, *, is_new: bool, yes: bool = False) -> str | None:
    """The model to name in the call; None leaves an existing session its own.

    Raises NotFound (66), with the command to type, when there is none and nobody to ask.
    """
    asked = asked or cli.config.model
    if asked or not is_new:
        return asked
    from radchat.models import registry

    if cli.daemon:  # what it can load is its own business
        return registry.get_default(cli.places)
    if not registry.list_models(cli.places):
        return first_model(cli, yes=yes)
    return registry.choose(cli.places, None).name


def first_model(cli: Cli, *, yes: bool) -> str:
    """Say what fits this machine's memory, and fetch the best of it on a yes."""
    from radchat.models import fit

    memory = fit.available_memory()
    best = fit.recommended(memory)
    command = f"radchat models pull {best.source}"
    if not yes:
        if cli.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise NotFound(
                f"no model is here yet; {best.source} ({size(best.fetch_bytes)}) fits: {command}, "
                "or add -y"
            )
        _say_what_fits(cli, memory, best)
        sys.stderr.write(f"fetch {best.source} now, {size(best.fetch_bytes)}? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            raise NotFound(f"no model is here yet; to fetch one: {command}")
    from radchat.models.child import Step
    from radchat.models.pull import pull

    def show(step: Step) -> None:
        share = f" {100 * step.done / step.total:.0f}%" if step.total else ""
        cli.status(f"{step.text}{share}")

    try:
        return pull(cli.places, best.source, progress=show).name
    finally:
        cli.status("")


def _say_what_fits(cli: Cli, memory: int, best: object) -> None:
    from radchat.models import fit

    cli.note(f"no model is here yet. {size(memory)} of memory is free; these fit:")
    for one in fit.offers(memory):
        mark = "*" if one == best else " "
        cli.note(
            f" {mark} {one.source:<28} {size(one.fetch_bytes):>10} to fetch, "
            f"{size(one.memory_bytes)} in memory; {one.about}"
        )
