"""`/rewind`: back to a step, and forth, with the files as they were there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.agent.files.rewind import Past, files_of, rewind_to
from radchat.chat import commands
from radchat.chat.footer import counted
from radchat.chat.text import one_line
from radchat.chat.width import cut
from radchat.errors import NotFound, UsageError

if TYPE_CHECKING:
    from radchat.agent.terminal.agent_chat import AgentChat

Row = Mapping[str, Any]
TEXT = 60  # columns of a step in a line


@dataclass(frozen=True, slots=True)
class StepOfPath:
    """A place one may go back to: after a message of the user's, or after all results of a step."""

    message: str
    text: str
    calls: tuple[str, ...]  # with results, on the path up to here


def steps_of(rows: Sequence[Row]) -> list[StepOfPath]:
    """Of a path; the first is before everything that the agent did in it."""
    found: list[StepOfPath] = []
    calls: list[str] = []
    waiting, title = 0, ""
    for row in rows:
        if row["role"] == "user":
            found.append(StepOfPath(row["id"], f"you: {row['text']}", tuple(calls)))
        elif row["role"] == "tool":
            calls.append(str((row.get("result") or {}).get("call")))
            waiting -= 1
            if waiting == 0:
                found.append(StepOfPath(row["id"], title, tuple(calls)))
        elif row["role"] == "assistant":
            made = row.get("calls") or ()
            waiting = len(made)
            title = str(row.get("line") or "").removeprefix("-> ")
            if not made:
                found.append(StepOfPath(row["id"], str(row["text"]), tuple(calls)))
    return found


def rewind(chat: AgentChat, rest: str) -> None:
    rows = chat.call("log")["messages"]
    steps = steps_of(rows)
    if not steps:
        raise NotFound("nothing has been done here yet")
    if not rest:
        _list(chat, steps)
        return
    if rest.isdigit():
        number = int(rest)
        if not 1 <= number <= len(steps):
            raise UsageError(f"/rewind {number}: there are steps 1 to {len(steps)}")
        goal = steps[number - 1]
        ref, calls = goal.message, goal.calls
    else:
        ref = commands.ref(rest)
        path = chat.call("log", ref=ref)["messages"]
        calls = tuple(
            str(row["result"]["call"])
            for row in path
            if row["role"] == "tool" and row.get("result")
        )
    _go(chat, ref, calls)


def _list(chat: AgentChat, steps: Sequence[StepOfPath]) -> None:
    kept = chat.agent().kept
    assert kept is not None
    all_calls = steps[-1].calls
    columns = chat.host.columns or 80
    for number, step in enumerate(steps, 1):
        after = [call for call in all_calls if call not in step.calls]
        files = files_of(kept.entries, after)
        back = f"  ({counted(len(files), 'file')} back)" if files else ""
        room = max(columns - len(back) - 6, 20)
        chat.host.out(f"{number:>3}  {cut(one_line(step.text), min(room, TEXT * 2))}{back}")
    chat.host.note("/rewind N goes to a step, with the files as they were there; /rewind REF too")


def _go(chat: AgentChat, ref: str, calls: Sequence[str]) -> None:
    kept = chat.agent().kept
    assert kept is not None
    done = rewind_to(chat.place.workspace.root, kept.entries, calls)
    chat.moved(chat.call("switch", ref=ref))
    chat.host.note(f"{counted(len(done.restored), 'file')} restored")
    for line in done.left:
        chat.host.note(f"left as it is: {one_line(line)}")


def tell_difference(chat: AgentChat) -> None:
    """After a move that left the files where they were."""
    kept = chat.kept
    if kept is None or chat.is_over:
        return
    past = Past.read(kept.entries)
    if not past.done:
        return
    path = chat.call("log")["messages"]
    here = {str((row.get("result") or {}).get("call")) for row in path if row["role"] == "tool"}
    files = files_of(kept.entries, [call for call in past.done if call not in here])
    if files and files != chat.told_files:
        chat.host.note(
            f"as the agent left them elsewhere: {counted(len(files), 'file')}; "
            f"/rewind {str(path[-1]['id'])[:4] if path else ''} brings them here"
        )
    chat.told_files = files
