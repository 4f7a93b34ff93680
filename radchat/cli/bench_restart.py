"""`radchat bench`: a second turn after the daemon was stopped and started, its KV from disk.

Needs a session that is stored; it is removed with its KV as the others are. The daemon is left
alone where somebody's KV or words would end with it.
"""

from __future__ import annotations

from radchat.cli import restart
from radchat.cli.bench_run import Bench, Said
from radchat.cli.common import Cli


def after_restart(
    cli: Cli, run: Bench, first: str, second: str, held: int
) -> tuple[list[Said], str | None]:
    """The second turn, as it was measured; else why it was not. ``held``: tokens of KV that were on
    the device before the bench began.
    """
    why_not = restart.why_not(cli) or restart.persist_off(cli)
    if why_not is None and held:
        why_not = "KV of yours is cached (radchat daemon stop)"
    if why_not is not None:
        return [], why_not
    cli.status("a restart: a first turn")
    session = run.session()
    run.ask(session, first, new=True, ephemeral=False)
    left = run.save(session)
    if left is not None:
        return [], left
    cli.status("a restart: stopped and started")
    restart.restart(cli)
    run.load()
    cli.status("a restart: the second turn")
    return run.ask(session, second, ephemeral=False), None
