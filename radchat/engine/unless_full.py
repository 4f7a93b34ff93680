"""What is done besides a step where the device may have no memory left for it.

A full device ends nothing: each caller has another way. The step itself: ``runner.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from radchat.engine.device import Device, DeviceFull

T = TypeVar("T")
log = logging.getLogger(__name__)


def unless_full(what: str, function: Callable[[], T]) -> T | None:
    """``function()``; None, and a line in the log, where the device is full.

    Then what it had made is free again, but for torch's own cache.
    """
    try:
        return function()
    except Exception as error:  # its traceback holds what has been made so far
        if not isinstance(error, DeviceFull) and not Device.is_full(error):
            raise
        log.warning("no device memory for %s: %s", what, error)
    return None


def or_on_cpu(function: Callable[[Tensor], T], logits: Tensor) -> T:
    """``function(logits)``, or of a copy in the machine's own memory.

    A step has run, and its tokens are drawn: the same ones, wherever that is done.
    """
    done = unless_full("what follows a step", lambda: function(logits))
    return function(logits.cpu()) if done is None else done
