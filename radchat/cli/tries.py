"""`radchat agent --tries K --check CMD`: a task done several times side by side, once kept."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.chat import compare_view, keyboard
from radchat.chat.footer import counted
from radchat.chat.paths import beside
from radchat.chat.text import clean, one_line
from radchat.cli import common
from radchat.errors import ApprovalNeeded, NotFound, RadchatError, UsageError

if TYPE_CHECKING:
    from radchat.agent.lines import JsonLines
    from radchat.agent.setting_up import Asked
    from radchat.agent.tries.playing import Played
    from radchat.agent.tries.race import Try
    from radchat.agent.types import Approver, Listener


@dataclass(frozen=True, slots=True)
class TriesAsked:
    """``can_ask``: somebody is at the terminal."""

    num: int
    check: str | None
    max_turns: int
    form: str
    can_ask: bool
    yes: bool


class NoneWon(RadchatError):
    code = "no_try_passed"


def check_flags(tries: int | None, check: str | None, *, can_ask: bool) -> None:
    """UsageError, before anything is done."""
    from radchat.agent.tries.playing import MOST_TRIES

    if tries is None:
        if check is not None:
            raise UsageError("--check is for --tries: it says which of them is right")
        return
    if not 2 <= tries <= MOST_TRIES:
        raise UsageError(f"--tries: want 2 to {MOST_TRIES} (got {tries})")
    if check is None and not can_ask:
        raise UsageError("--tries without a terminal wants --check CMD: nobody is there to pick")
    if check is not None and not check.strip():
        raise UsageError("--check: the command is empty")


def tried(
    cli: common.Cli,
    text: str,
    args: dict[str, Any],
    permits: Asked,
    names: Sequence[str] | None,
    wanted: TriesAsked,
) -> int:
    from radchat.agent.lines import JsonLines, LogLines
    from radchat.agent.mcp.config import configured
    from radchat.agent.prompt import SYSTEM
    from radchat.agent.setting_up import Place
    from radchat.agent.tools.registry import choose as choose_tools
    from radchat.agent.tries.lines import TryLines
    from radchat.agent.tries.playing import Play, Wanted

    if not text.strip():
        raise UsageError('--tries wants a task: radchat agent --tries 3 --check "make test" "..."')
    lines = JsonLines(sys.stdout) if wanted.form == "stream-json" else None

    def listener_of(number: int) -> Listener:
        if lines is not None:
            return TryLines(lines.out, number=number) if number else lines
        label = f"try {number}  " if number else ""
        return LogLines(lambda line: cli.note(f"{label}{line}"), _silent, cli.quiet)

    if args.get("new_session"):
        args.setdefault("system", SYSTEM)
    place = Place.open(permits, cli.places, cli.env, cli.note)
    quiet = keyboard.quiet() if wanted.can_ask else contextlib.nullcontext()
    try:
        with quiet:
            play = Play(
                cli.client,
                {**cli.here(), **args},
                place,
                permits,
                cli.places,
                cli.env,
                cli.note,
                listener_of,
                _approver(cli) if wanted.can_ask else None,
                _Picking(cli).pick if wanted.can_ask else None,
            )
            if configured(cli.places, permits.mcp_config):
                cli.note("MCP servers are left out: they would work in the folder, not in a copy")
            tools = choose_tools(names, can_ask=False)
            played = play.play(
                Wanted(wanted.num, wanted.check, text, wanted.max_turns, wanted.yes), tools
            )
    except KeyboardInterrupt:
        cli.note("interrupted: what the tries had said is on their branches; the copies are gone")
        raise
    except RadchatError as error:
        if lines is not None:
            lines.line("error", error.to_json())
            lines.line("result", {"is_error": True, "error": error.to_json()})
            return error.exit_code
        raise
    finally:
        place.close()
    return _told(cli, played, wanted, lines)


def _silent(_text: str) -> None:
    """One status line is none for several tries."""


def _told(cli: common.Cli, played: Played, wanted: TriesAsked, lines: JsonLines | None) -> int:
    from radchat.agent.tries import table

    error = None if played.won is not None else _error(played, wanted)
    if played.won is not None:
        _tell_won(cli, played)
    elif wanted.form == "text":
        for line in table.lines(played.tries, cli.error_columns()):
            cli.note(line)
    if wanted.form == "text":
        if error is not None:
            raise error
        assert played.won is not None
        text = played.won.ended.text if played.won.ended is not None else ""
        print(clean(text) if common.is_terminal(sys.stdout) else text)
        return 0
    body = document(played, error)
    if lines is not None:
        if error is not None:
            lines.line("error", error.to_json())
        lines.line("result", {"is_error": error is not None, **body})
    else:
        cli.data(body)
    return 0 if error is None else error.exit_code


def _tell_won(cli: common.Cli, played: Played) -> None:
    won = played.won
    assert won is not None
    changed = counted(len(played.brought.restored), "file")
    others = ", ".join(one.branch for one in played.tries if one is not won)
    cli.note(f"try {won.number} is kept, on {won.branch}: {changed} changed here; also {others}")
    for line in played.brought.left:
        cli.note(f"left as it is: {one_line(line)}")
    if (copy := played.copies.get(won.number)) is not None:
        cli.note(f"what it says of that is in {copy}: remove it when you are done")


def _error(played: Played, wanted: TriesAsked) -> RadchatError:
    """Why none is kept, and where what they did is."""
    said = ", ".join(f"{one.branch} ({one.outcome})" for one in played.tries)
    where = "".join(f"; {played.tries[n - 1].branch} in {p}" for n, p in played.copies.items())
    kept = f". Their copies are kept, remove them when you are done{where}" if where else ""
    if all(one.ended is not None and one.ended.reason == "approval" for one in played.tries):
        return ApprovalNeeded(f"each try needs an approval, and nobody is there: {said}{kept}")
    passed = f"passes {one_line(wanted.check)}" if wanted.check else "was picked"
    return NoneWon(f"none of {len(played.tries)} tries {passed}: {said}{kept}")


def document(played: Played, error: RadchatError | None) -> dict[str, Any]:
    """As of one agent, with ``tries``; its counts are those of all."""
    from radchat.agent.tries import table

    ended = played.won.ended if played.won is not None else None
    return {
        "result": ended.text if ended is not None else "",
        "session": played.first.session,
        "name": played.first.name,
        "message": ended.message if ended is not None else None,
        "branch": played.won.branch if played.won is not None else None,
        "turns": sum(one.ended.turns for one in played.tries if one.ended is not None),
        "ended": ended.reason if ended is not None else "none",
        "usage": table.summed(played, "usage"),
        "cache": table.summed(played, "cache"),
        "permission_denials": [
            denial for one in played.tries if one.ended is not None for denial in one.ended.denials
        ],
        "tries": table.to_json(played),
        "left": list(played.brought.left),
        **({} if error is None else {"error": error.to_json()}),
    }


# -- at a terminal ---------------------------------------------------------------------------------


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _approver(cli: common.Cli) -> Callable[[int], Approver]:
    from radchat.agent.terminal import person
    from radchat.agent.terminal.approval import TerminalApprover

    typing, turn, paints = person.Keyboard(), threading.Lock(), cli.paints(person.stream())
    return lambda number: TerminalApprover(
        person.tell,
        typing,
        person.size,
        in_lines=not cli.shows_screens,
        paints=paints,
        label=f"try {number}: ",
        turn=turn,
    )


@dataclass
class _Picking:
    cli: common.Cli

    def pick(self, tries: Sequence[Try], session: str) -> Try | None:
        """Of those that have come to an end; None: none of them."""
        from radchat.agent.terminal.asking import read_line
        from radchat.agent.tries import table

        whole = {str(one.number): one for one in tries if one.ended is not None}
        for line in table.lines(tries, self.cli.error_columns()):
            self.cli.note(line)
        while whole:
            keys = ", ".join(whole)
            said = read_line(_write, f"keep which? {keys}, c compares them, Enter: none ")
            if not said:
                return None
            if said in whole:
                return whole[said]
            if said == "c":
                self._compare(tries, session)
        return None

    def _compare(self, tries: Sequence[Try], session: str) -> None:
        here = {**self.cli.here(), "session": session}
        try:
            what = beside(
                lambda ref: self.cli.client.call("log", **here, ref=ref),
                [one.branch for one in tries],
            )
        except NotFound as error:
            self.cli.note(error.message)
            return
        for line in compare_view.lines(what, columns=self.cli.error_columns(), side_by_side=True):
            self.cli.note(line)
