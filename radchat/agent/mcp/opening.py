"""The servers of this run, where any are configured. Nothing heavy is imported before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.agent.mcp.config import configured
from radchat.paths import Places

if TYPE_CHECKING:
    from radchat.agent.mcp.servers import Servers


def open_servers(
    places: Places, more: Path | None, env: Mapping[str, str], note: Callable[[str], None]
) -> Servers | None:
    """``more``: the file of --mcp-config. Raises ConfigInvalid."""
    configs = configured(places, more)
    if not configs:
        return None
    from radchat.agent.mcp.servers import Servers

    return Servers.open(configs, env, note)
