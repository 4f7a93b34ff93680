"""A Python file of the user's: run as a module, and its failures told with its lines."""

from __future__ import annotations

import sys
import types
from pathlib import Path

from radchat.chat.files import load
from radchat.errors import RadchatError, Terminated


def execute(path: str, name: str) -> types.ModuleType:
    """The file as module ``name``. As Python runs a script: its folder is where it imports from."""
    module = types.ModuleType(name)
    module.__file__ = path
    source = load(path)["text"]
    sys.modules[name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user's
    return module


class ProgramFailed(RadchatError):
    """What the user's own code raised, told with its line."""

    code = "program_failed"


def failure(path: str, error: BaseException) -> RadchatError:
    """An exception of the file's, as `FILE:LINE: what`; one of ours stays as it is."""
    if isinstance(error, RadchatError):
        return error
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    line = line_of(path, error)
    if isinstance(error, SyntaxError) and error.filename == path:
        told, line = f"{type(error).__name__}: {error.msg}", error.lineno
    where = f"{path}:{line}" if line else path
    return ProgramFailed(f"{where}: {told}", file=path, line=line)


def line_of(path: str, error: BaseException) -> int | None:
    """The last line of the file that ``error`` came through, if it came through it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def is_ours(path: str, error: BaseException) -> bool:
    """The reader of the result has gone, or SIGTERM; not what the file does itself."""
    if isinstance(error, SystemExit):
        return error.code == Terminated.exit_code
    return isinstance(error, BrokenPipeError) and line_of(path, error) is None
