"""What every command needs: places, settings, the daemon, and the rules of the two streams.

stdout is for the answer or the data alone; everything else is a note on stderr (docs/cli.md,
"Streams"). One ``Cli`` a process, made from the global options.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from radchat.chat.say import columns as columns  # noqa: PLC0414 - for the commands
from radchat.chat.say import say
from radchat.chat.text import clean, one_line
from radchat.chat.width import table as table  # noqa: PLC0414 - for the commands
from radchat.errors import ConfigInvalid, InvalidInput, UsageError

if TYPE_CHECKING:
    import typer

    from radchat.client import Client
    from radchat.config import Config
    from radchat.paths import Places

STYLES = {"dim": "\x1b[2m", "bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m"}
RESET = "\x1b[0m"


def wants_color(stream: TextIO, mode: str, env: Mapping[str, str]) -> bool:
    """Flag, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE, then the terminal itself."""
    if mode != "auto":
        return mode == "always"
    if env.get("NO_COLOR"):
        return False
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        if env.get(name, "0") not in ("", "0"):
            return True
    return is_terminal(stream) and env.get("TERM", "") not in ("dumb", "")


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


_DRAWING = threading.Lock()  # a program prints from threads, beside the line of progress


@dataclass
class Cli:
    """The global options, and what follows from them."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    plain: bool = False
    session: str | None = None
    daemon: str | None = None
    engine: str | None = None  # a URL: the model is behind it
    config_file: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _places: Places | None = None
    _config: Config | None = None
    _client: Client | None = None
    _has_told_settings: bool = False
    has_data: bool = False  # the one JSON document is written, or about to be

    @property
    def places(self) -> Places:
        if self._places is None:
            from radchat.paths import Places

            places = Places.from_env(self.env)
            if self.config_file:
                places = replace(places, config=Path(self.config_file).expanduser().absolute())
            self._places = places
        return self._places

    @property
    def config(self) -> Config:
        if self._config is None:
            from radchat import config

            if self.config_file and not self.places.config_file.exists():
                raise ConfigInvalid(f"{self.places.config_file} is not there (--config)")
            self._config = config.load(self.places, self.env)
        return self._config

    def forget_config(self) -> None:
        """The file has changed: it is read again when it is asked for."""
        self._config = None

    @property
    def client(self) -> Client:
        """The daemon, started if need be; kept for the rest of the command."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(
        self,
        *,
        start: bool = True,
        on_wait: Callable[[str], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> Client:
        """A connection of one's own. ``--daemon`` names a running one: it is never started.

        ``on_wait`` shows what is waited for in place of the line of progress, where something else
        has the terminal.
        """
        from radchat.client import Client

        socket = Path(self.daemon).expanduser().absolute() if self.daemon else None
        waiting = on_wait or (self.status if self.shows_status else None)
        notice = on_notice or self.note
        try:
            client = Client.connect(
                self.places,
                start=start and socket is None,
                daemon_socket=socket,
                on_wait=waiting,
                on_notice=notice,
            )
        finally:
            if on_wait is None:
                self.status("")
        self._tell_settings(client, notice)
        return client

    def _tell_settings(self, client: Client, notice: Callable[[str], None]) -> None:
        """Once, what the environment asks of a daemon that was started without it."""
        from radchat.config import not_in_force

        in_force = client.health.get("settings") or {}
        names = not_in_force(self.env, in_force) if not self._has_told_settings else []
        self._has_told_settings = True
        if names:
            notice(
                f"not in force: {', '.join(f'{name}={self.env[name]}' for name in names)}; "
                "the running daemon goes on with what it has: radchat daemon restart"
            )

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """One question to the daemon about a session, asked from here."""
        return dict(self.client.call(method, **self.here(), **args))

    def here(self) -> dict[str, Any]:
        """Which session is meant, and from where one asks."""
        from radchat.whereabouts import where

        return {"where": where(), "session": self.session_named}

    @property
    def session_named(self) -> str | None:
        return self.session or self.env.get("RADCHAT_SESSION") or None

    # --- the two streams ---

    def out(self, text: str) -> None:
        """A line of data. Text of others must have been cleaned."""
        print(text)

    def data(self, value: Any) -> None:
        """The one JSON document."""
        text = json.dumps(value)
        self.has_data = True
        print(text)

    def tell(self, value: Mapping[str, Any], line: str) -> None:
        """What was done: the one JSON document, or a line on stderr."""
        if self.json:
            self.data(value)
        else:
            self.note(line)

    def note(self, text: str) -> None:
        """A line on stderr about what is done; not with -q."""
        if not self.quiet:
            self.status("")
            say(clean(text), self.error_columns())

    def moved(self, result: Mapping[str, Any], was: Mapping[str, Any] | None = None) -> None:
        """Where one is now, as every command that moves says it: `session · branch@id`."""
        from radchat.chat.footer import where

        self.note(where(result, was))

    @property
    def shows_status(self) -> bool:
        return (
            is_terminal(sys.stderr)
            and not self.quiet
            and not self.plain
            and self.env.get("TERM", "") not in ("dumb", "")
        )

    @property
    def shows_screens(self) -> bool:
        """May a view take the whole screen? Else each has a plain form."""
        both = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        return both and not self.plain and self.env.get("TERM", "") not in ("dumb", "")

    _shown: str = ""  # the line of progress

    def status(self, text: str) -> None:
        """The line of progress: replaced by the next, gone with the empty one; a terminal only."""
        if not self.shows_status or (not text and not self._shown):
            return
        from radchat.chat.width import cut

        shown = cut(one_line(text), max(columns(sys.stderr) - 1, 1))
        with _DRAWING:
            sys.stderr.write(f"\r\x1b[2K{shown}")
            sys.stderr.flush()
            self._shown = shown

    def above(self, text: str) -> None:
        """As it is, on stderr; the line of progress stays below it."""
        with _DRAWING:
            gone, again = ("\r\x1b[2K", self._shown) if self._shown else ("", "")
            sys.stderr.write(f"{gone}{text}{again if text.endswith(chr(10)) else ''}")
            sys.stderr.flush()

    def paints(self, stream: TextIO) -> bool:
        mode = "never" if self.plain and self.color == "auto" else self.color
        return wants_color(stream, mode, self.env)

    def paint(self, text: str, style: str) -> str:
        """Text for stdout in a style, where colour is wanted."""
        return f"{STYLES[style]}{text}{RESET}" if self.paints(sys.stdout) else text

    @property
    def columns(self) -> int | None:
        """Columns to fit data into; None where nothing limits it: a pipe or a file."""
        return columns(sys.stdout) if is_terminal(sys.stdout) else None

    def error_columns(self) -> int:
        """Columns of the terminal that stderr is."""
        return columns(sys.stderr)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is lost; without a terminal, ``-y`` must have been given."""
        if yes:
            return
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise UsageError(f"{question} Nobody to ask here: add -y")
        sys.stderr.write(f"{clean(question)} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise InvalidInput("not done")


def of(ctx: typer.Context) -> Cli:
    """The Cli of this command line."""
    assert isinstance(ctx.obj, Cli)
    return ctx.obj
