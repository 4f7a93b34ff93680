"""What the daemon says of itself: its state, its models, the settings in force."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radchat.config import FOREVER, SETTINGS
from radchat.daemon.disk_methods import DiskMethods
from radchat.daemon.tiers import all_tiers_json
from radchat.models import registry

if TYPE_CHECKING:
    from radchat.daemon.answering import Answer
    from radchat.daemon.programs import Program
    from radchat.daemon.searches import Search
    from radchat.daemon.streams import Running


class ControlMethods(DiskMethods):
    _answers: dict[str, tuple[Answer, Running]]  # by request
    _programs: dict[str, Program]  # that are open
    _searches: dict[str, Search]  # likewise

    async def status(self) -> dict[str, Any]:
        loaded, loading = self._engines.loaded, self._engines.loading
        stats = [each.engine.stats() for each in self._engines.all]
        disk = await self._disk.tier()
        return {
            "model": None if loaded is None else loaded.name,
            "dtype": None if loaded is None else loaded.dtype,
            **self._runs_on(),
            "kv": all_tiers_json(stats, disk),
            "running": sum(one["running"] for one in stats),
            "waiting": sum(one["waiting"] for one in stats),
            "answers": len(self._answers),
            "programs": len(self._programs),
            "searches": len(self._searches),
            "loading": None
            if loading is None
            else {
                "model": loading.name,
                "done": round(100 * self._engines.share_loaded),
                "total": 100,
            },
            "models": self._models(),
            "locations": _locations(),
            "home": self._home(),
        }

    def _runs_on(self) -> dict[str, Any]:
        """Device and executor, as they were found when the first model was loaded; ``refused``:
        the setting that can't be had, and why.
        """
        opener = self._engines.opener
        executor, why = opener.executor or (None, None)
        error = opener.refused
        refused = error and {"setting": error.data["setting"], "message": error.message}
        device = opener.device
        return {"device": device, "executor": executor, "executor_why": why, "refused": refused}

    def _home(self) -> dict[str, str]:
        places = self._places
        return {
            "config": str(places.config_file),
            "database": str(places.database),
            "models": str(places.models),
            "kv": str(places.kv),
            "log": str(places.log),
        }

    def _models(self) -> list[dict[str, Any]]:
        """What is loaded, the one used last first."""
        return [
            {
                "name": loaded.name,
                "dtype": loaded.dtype,
                "context": loaded.context_length,
                "users": loaded.users,
                "bytes": loaded.model.num_bytes,
                "kv_bytes": loaded.kv_bytes,
                "kv_used_bytes": loaded.cached_tokens * loaded.bytes_per_token,
                "kv_tokens": loaded.cached_tokens,
                "until_s": self._engines.until(loaded),
            }
            for loaded in reversed(self._engines.all)
        ]

    async def models_ps(self) -> dict[str, Any]:
        return {"models": self._models()}

    async def defaults(self) -> dict[str, Any]:
        """The settings in force and where each comes from."""
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            value = getattr(self._config, setting.name)
            if value == FOREVER:
                value = "for ever"
            elif hasattr(value, "tokens"):
                value = {"bytes": value.bytes, "tokens": value.tokens}
            values[setting.name] = {"value": value, "from": self._config.sources[setting.name]}
        return {
            "settings": values,
            **self._runs_on(),
            "default_model": await asyncio.to_thread(registry.get_default, self._places),
        }


def _locations() -> list[str]:
    """Where our packages are loaded from; found, not imported: radchat_kernels brings torch."""
    specs = (find_spec(name) for name in ("radchat", "radchat_kernels", "radchat_sessions"))
    return [str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin]
