"""What a request asks of a model, once its prompt is prepared. A command has one, or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radchat.daemon.disk_paths import Ranges
from radchat.daemon.prepared import Prepared
from radchat.daemon.reuse import Excuse
from radchat.engine.request import Request


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of which model. Not its engine: an answer may wait longer than that lives."""

    prepared: Prepared
    request: Request
    model: str
    dtype: str
    loaded_at: float  # time.time, of the engine
    limit: int  # tokens, prompt and answer
    asked_at: float  # time.monotonic
    excuse: Callable[[float], Excuse]  # of the disk, for what was computed then (Disk.excuse)
    on_disk: Callable[[], Ranges]  # where the prompt is on disk, when asked
    call_parts: bool = False  # calls are told as they are written
    first: int = 0  # the number of its first answer, among all of the command
