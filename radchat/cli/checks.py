"""What `radchat doctor` looks at: each thing that goes wrong in life, and what to type about it.

Every check reads and nothing more: no daemon is started, no model loaded, no package imported, no
folder made; only ``imports`` and ``hub``, which are asked for, take their time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from radchat.cli import gpu_checks
from radchat.cli import home_checks as home
from radchat.cli import machine_checks as machine
from radchat.cli.findings import Check, Finding
from radchat.errors import ConfigInvalid, RadchatError

if TYPE_CHECKING:
    from radchat.cli.common import Cli

CHECKS: tuple[Check, ...] = (
    machine.python,
    machine.packages,
    gpu_checks.gpu,
    machine.cpu,
    machine.memory,
    machine.disk,
    home.permissions,
    home.settings,
    home.database,
    home.models,
    home.kv,
    home.socket,
    home.daemon,
    machine.sandbox,
    machine.terminal,
)


def run(cli: Cli, *, imports: bool = False, online: bool = False) -> Iterator[Finding]:
    """Every check in turn. One that can't be made is itself a finding."""
    asked: list[Check] = [*CHECKS]
    asked += [machine.imports, gpu_checks.probe] if imports else []
    asked += [machine.hub] if online else []
    for check in asked:
        try:
            yield from check(cli)
        except ConfigInvalid:
            continue  # a finding of its own: settings
        except (RadchatError, OSError) as error:
            name = check.__name__
            yield Finding(name, "warning", f"can't be looked at: {error}")
