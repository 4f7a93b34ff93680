"""`/compare` and `/diff`: as on the command line, seen from where the chat stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from radchat.chat import commands, compare_view, diff_view
from radchat.chat.paths import Beside, beside
from radchat.errors import UsageError

if TYPE_CHECKING:
    from radchat.chat.repl import Chat


def compare(chat: Chat, rest: str) -> None:
    refs, said = _words(rest, ("columns", "no-columns"))
    if len(refs) < 2:
        raise UsageError("/compare wants two REFs or more: /branches lists the branches")
    what = _beside(chat, refs)
    host = chat.host
    for line in compare_view.lines(
        what,
        columns=host.columns,
        side_by_side="no-columns" not in said,
        renders=chat.renders,
        paint=host.paint,
    ):
        host.out(line)


def diff(chat: Chat, rest: str) -> None:
    refs, said = _words(rest, ("words", "stat"))
    if not refs or len(refs) > 2:
        raise UsageError("/diff wants one REF or two: /branches lists the branches")
    what = _beside(chat, [*refs, "HEAD"][:2])
    told = (
        diff_view.stat(what)
        if "stat" in said
        else diff_view.lines(
            what, words="words" in said, columns=chat.host.columns, paint=chat.host.paint
        )
    )
    for line in told:
        chat.host.out(line)


def _words(rest: str, options: Sequence[str]) -> tuple[list[str], set[str]]:
    """REFs, and which of the options were given; their dashes may be left out at the end."""
    words = rest.split()
    said = set()
    while len(words) > 1 and words[-1].lstrip("-") in options:
        said.add(words.pop().lstrip("-"))
    for word in [word for word in words if word.startswith("--")]:
        if word[2:] not in options:
            raise UsageError(f"{word}: want {', '.join(f'--{each}' for each in options)}")
        said.add(word[2:])
        words.remove(word)
    return words, said


def _beside(chat: Chat, refs: Sequence[str]) -> Beside:
    what = beside(lambda ref: chat.call("log", ref=commands.ref(ref), pick=True), refs)
    if turns := what.turns():
        chat.host.note(turns)
    return what
