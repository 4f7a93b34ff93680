"""Where in the user's file a call was written."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def place() -> str:
    """``FILE:LINE`` of the nearest caller that is not of this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every file on the way
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
