"""A program's calls as a tree on a terminal. Imports rich: only when a tree is asked for."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from radchat.chat.footer import SEPARATOR, count, seconds
from radchat.chat.text import one_line
from radchat.programs.trace import Call

MOST_TEXT = 40  # characters of what was said


def tree(call: Call) -> Tree:
    top = Tree(_line(call))
    stack = [(top, call)]
    while stack:
        branch, of = stack.pop()
        stack += [(branch.add(_line(each)), each) for each in of.calls]
    return top


def _line(call: Call) -> Text:
    """`gen answer  cached 1,180/1,211 · said 40 (forced 12) · 0.4 s  "the words"`"""
    line = Text(one_line(f"{call.kind} {call.name}".strip()), "bold")
    told: list[str] = []
    if call.kind not in ("say", "join"):
        usage = call.total("usage")
        cached, read = usage["cached_input_tokens"], usage["input_tokens"]
        if read:
            there = "" if cached is None else f"cached {count(cached)}/"
            told.append(f"{there or 'read '}{count(read)}")
        if said := usage["output_tokens"]:
            forced = usage["forced_tokens"]
            some = f" (forced {count(forced)})" if forced else ""
            told.append(f"said {count(said)}{some}")
    took = call.took()
    if took is not None and call.kind != "say":
        told.append(seconds(took))
    if call.finish_reason not in (None, "stop"):
        told.append(str(call.finish_reason))
    if told:
        line.append("  " + SEPARATOR.join(told), "not bold")
    if call.text:
        text = one_line(call.text)
        shown = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
        line.append(f'  "{shown}"', "not bold dim")
    if call.error:
        line.append(f"  failed: {one_line(call.error)}", "not bold red")
    return line
