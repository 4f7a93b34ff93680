"""Opens models on what this machine has: chosen once, when the first is wanted.

torch is imported here and not before, which takes seconds: so all but ``device`` and ``executor``
is for a thread beside the event loop, and what is free is asked there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from radchat.config import Config
from radchat.errors import ConfigInvalid
from radchat.models.registry import ModelEntry

if TYPE_CHECKING:
    from radchat.engine.block_store import BlockStore
    from radchat.engine.engine import Engine
    from radchat.engine.hardware import Hardware, NotHere
    from radchat.engine.memory import Need
    from radchat.engine.model import LoadedModel

log = logging.getLogger(__name__)
Choose = Callable[[str, str], "Hardware"]


class Opener:
    """``choose``: of device and executor as set; this machine's, unless a test gives its own."""

    def __init__(self, config: Config, choose: Choose | None = None) -> None:
        self._config = config
        self._choose = choose
        self._hardware: Hardware | None = None
        self._latest: Hardware | None = None  # what the model loaded last runs on
        self.refused: ConfigInvalid | None = None  # the last try, where it failed

    @property
    def device(self) -> str | None:
        """For people, ``cuda (NVIDIA H200)``; None while nothing has been opened."""
        return None if self._hardware is None else str(self._hardware.device)

    @property
    def executor(self) -> tuple[str, str] | None:
        """Of the model loaded last: its name, and why it is this one."""
        found = self._latest or self._hardware
        return None if found is None else (found.executor.name, found.why)

    @property
    def hardware(self) -> Hardware:
        """Raises ConfigInvalid where a setting asks for what can't be had."""
        if self._hardware is None:
            from radchat.engine import hardware

            choose = self._choose or hardware.choose
            try:
                self._hardware = choose(self._config.device, self._config.executor)
            except hardware.NotHere as error:
                self.refused = _not_here(error, self._config)
                log.warning("%s", self.refused.message)
                raise self.refused from error
            self.refused = None
        return self._hardware

    def dtype(self, asked: str) -> str:
        """What ``auto`` comes to here for a model that fits."""
        from radchat.engine.dtypes import resolve_dtype

        return resolve_dtype(asked, self.hardware.device)

    def choose_dtype(self, entry: ModelEntry, asked: str, free: int) -> str:
        """What it comes to for this one, where so many bytes are free."""
        from radchat.engine import model

        budget, device = self._config.kv_device, self.hardware.device
        return model.choose_dtype(entry.folder, asked, free, budget, device=device)

    def needs(self, entry: ModelEntry, dtype: str) -> Need:
        from radchat.engine import model

        return model.needs(entry.folder, dtype, self._config.kv_device, device=self.hardware.device)

    def free(self) -> int:
        """Bytes that a model may take, where models go."""
        return self.hardware.device.free_bytes()

    def load(
        self, entry: ModelEntry, dtype: str, progress: Callable[[float], None], free: int
    ) -> LoadedModel:
        """Raises ConfigInvalid where an executor is set that can't run it; as ``model.load``."""
        from radchat.engine import hardware, model

        try:
            found = self.hardware.fitting(*model.layers_of(entry.folder))
        except hardware.NotHere as error:
            raise _not_here(error, self._config) from error
        made = model.load(
            entry.folder,
            dtype,
            progress=progress,
            free_bytes=free,
            device=found.device,
            executor=found.executor,
        )
        self._latest = found
        return made

    def build(
        self,
        model: LoadedModel,
        free: int,
        blocks: BlockStore | None,
        progress: Callable[[float], None],
    ) -> Engine:
        from radchat.engine.model import build_engine

        return build_engine(
            model,
            kv_budget=self._config.kv_device,
            context_length=self._config.context_length,
            free_bytes=free,
            blocks=blocks,
            progress=progress,
        )

    def is_lost(self, error: BaseException) -> bool:
        """Whether this says that nothing more can be run where models go: the daemon ends."""
        return self._hardware is not None and self._hardware.device.is_lost(error)

    @property
    def is_gpu(self) -> bool:
        """Where memory has to be given back by hand: ``release``."""
        return self._hardware is not None and self._hardware.device.type != "cpu"

    def release(self) -> None:
        """After models have gone: what the device still keeps for them is others' again."""
        self.hardware.device.release()


def _not_here(error: NotHere, config: Config) -> ConfigInvalid:
    """With where it is set, and what to type: a daemon that runs has read its settings already,
    the environment of whoever started it included.
    """
    name, source = error.setting, config.sources[error.setting]
    is_private = os.environ.get("RADCHAT_NO_DAEMON") == "1"
    again = "" if is_private else "radchat daemon restart"
    if not source.startswith("RADCHAT_"):
        undo = f"radchat config unset {name}" + (again and f", then {again}")
    elif is_private:
        undo = f"unset {source}"
    else:
        undo = f"the daemon was started with it: unset {source} if it is set here, then {again}"
    return ConfigInvalid(
        f"{name} = {error.asked!r} (from {source}) can't be had: {error}; {undo}",
        setting=name,
        asked=error.asked,
        reason=str(error),
    )
