"""The way in: ``radchat`` and ``python -m radchat``. Every ending of a command is decided here.

Errors are one line on stderr, or with ``--json`` one document on stdout; a closed pipe is the
reader's right and ends quietly; Ctrl+C is 130 and SIGTERM 143 (docs/cli.md, "Exit codes").
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from radchat.cli.common import Cli

OK, FAILED, INTERRUPTED, TERMINATED = 0, 1, 130, 143


def main() -> NoReturn:
    _prepare_streams()
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _silence(OK)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:  # a full disk behind stdout
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        code = _silence(FAILED)
    except SystemExit as end:  # SIGTERM's, raised wherever it met us
        code = end.code if isinstance(end.code, int) else FAILED
    _leave(code)


def _run(argv: list[str]) -> int:
    from radchat.cli import argv as words
    from radchat.errors import RadchatError

    json, cli = words.wants_json(argv), None
    try:
        if argv == ["daemon", "start", "--foreground"]:  # without Typer: 60 ms off a cold start
            from radchat.daemon.main import start
            from radchat.paths import Places

            return start(Places.from_env())
        if argv[:1] == ["__complete"]:  # a shell's Tab (cli/completion.py)
            from radchat.cli.completion import complete

            return complete(argv[1:])
        line = words.parse(argv)
        if line.command == "version":
            return _version(json=json)
        if line.command == "help":
            from radchat.cli.table import help_text

            print(help_text())
            return OK
        from radchat.cli.app import run
        from radchat.cli.common import Cli

        cli = Cli(json=json)
        return run(line, cli)
    except RadchatError as error:
        return _report(error, cli, json=json)
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, SystemExit) as end:
        if not json or (cli is not None and cli.has_data):
            raise
        return _report(_signal(end), cli, json=True)
    except Exception as error:
        return _report(_unexpected(error), cli, json=json, cause=error)


def _version(*, json: bool) -> int:
    from radchat import __version__

    print(f'{{"version": "{__version__}"}}' if json else f"radchat {__version__}")
    return OK


def _unexpected(error: Exception) -> Exception:
    """Something we did not foresee, still one sentence; -v shows the traceback."""
    from radchat.errors import RadchatError

    return RadchatError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _signal(end: BaseException) -> Exception:
    """Ctrl+C or SIGTERM, as an error: with --json a failure is a document too."""
    from radchat.errors import Interrupted, Terminated

    if isinstance(end, KeyboardInterrupt):
        return Interrupted("ended by Ctrl+C")
    return Terminated("ended by SIGTERM")


def _report(
    error: Exception, cli: Cli | None, *, json: bool, cause: Exception | None = None
) -> int:
    from radchat.chat.text import clean
    from radchat.errors import RadchatError

    assert isinstance(error, RadchatError)
    if cli is not None:
        cli.status("")
    if json:
        from json import dumps

        print(dumps({"error": error.to_json()}))
    else:
        from radchat.chat.say import columns, say

        say(f"error: {clean(error.message)}", columns(sys.stderr))
    if cause is not None and cli is not None and cli.verbose:
        import traceback

        traceback.print_exception(cause)
    return error.exit_code


def _prepare_streams() -> None:
    """A closed stream becomes /dev/null; a letter the locale lacks is shown escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: the missing one
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif number:
            stream.reconfigure(errors="backslashreplace")


def _on_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    raise SystemExit(TERMINATED)


def _silence(code: int) -> int:
    """Nobody reads stdout any more: what is still buffered goes to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _leave(code: int) -> NoReturn:
    """Flush what can be flushed, then exit: a pipe may close even between here and the end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            except (OSError, ValueError):
                code = code or FAILED
    sys.exit(code)


if __name__ == "__main__":
    main()
