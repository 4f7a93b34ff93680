"""The daemon's log: 5 MB a file, three files, 0600, and none of anybody's words in it."""

from __future__ import annotations

import io
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType

from radchat.paths import private_file

MAX_BYTES = 5_000_000
FILES = 3  # the current one and two older
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# An exception of these kinds speaks of the program and the machine. Others (ValueError, KeyError,
# a template's error …) quote what they choked on, which may be a prompt: only their names are kept.
_SPEAKS_OF_US = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
)


class Formatter(logging.Formatter):
    """Tracebacks without the words of the exception, where those could be the user's."""

    def formatException(  # noqa: N802 - the standard library's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        import traceback

        lines: list[str] = []
        error = ei[1]
        while error is not None:
            lines[:0] = [
                *("  " + line for line in traceback.format_tb(error.__traceback__)),
                f"{type(error).__module__}.{type(error).__qualname__}{_words(error)}\n",
            ]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "".join(lines).rstrip("\n")


def _words(error: BaseException) -> str:
    return f": {error}" if isinstance(error, _SPEAKS_OF_US) else " (its message is not logged)"


class LogFile(RotatingFileHandler):
    """Rotates, can be reopened (SIGHUP); stdout and stderr go along where they are the log."""

    def __init__(self, path: Path, *, owns_output: bool) -> None:
        self._owns_output = owns_output
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=FILES - 1, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        private_file(Path(self.baseFilename))
        stream = super()._open()
        if self._owns_output:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        return stream

    def reopen(self) -> None:
        """Somebody moved the file away: go on in a new one at the same path."""
        self.acquire()
        try:
            if self.stream is not None:
                self.stream.close()
            self.stream = self._open()
        finally:
            self.release()


def set_up(path: Path, level: str, *, owns_output: bool) -> LogFile:
    """Log to ``path``, and to stderr as well unless stderr is that file already."""
    handler = LogFile(path, owns_output=owns_output)
    handlers: list[logging.Handler] = [handler]
    if not owns_output:
        handlers.append(logging.StreamHandler(sys.stderr))
    root = logging.getLogger()
    for one in handlers:
        one.setFormatter(Formatter(LINE))
        root.addHandler(one)
    root.setLevel(level.upper())
    for chatty in ("asyncio", "uvicorn", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    return handler


def take_down(handler: LogFile) -> None:
    """Undo ``set_up``, for a daemon that runs inside a longer-lived process."""
    root = logging.getLogger()
    for one in list(root.handlers):
        if one is handler or isinstance(getattr(one, "formatter", None), Formatter):
            root.removeHandler(one)
            one.close()
    logging.captureWarnings(False)
