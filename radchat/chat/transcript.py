"""A path of messages as text, and the branches as a list."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from radchat.chat.footer import age, count
from radchat.chat.text import clean, one_line
from radchat.chat.tree_shape import labels_of, short_ids
from radchat.chat.tree_view import Paint, unpainted
from radchat.chat.width import cut, table

CUT_OFF = ("abort", "length", "error")


def transcript(
    messages: Sequence[dict[str, Any]],
    *,
    markdown: bool,
    columns: int | None = None,
    paint: Paint = unpainted,
) -> list[str]:
    """Every message with a heading: Markdown's, or who, id, turn, branches and labels.

    ``columns``: answers are shown as Markdown, in so many.
    """
    names = short_ids(str(m["id"]) for m in messages)
    lines: list[str] = []
    for message in messages:
        who = one_line(str(message["role"]))
        if lines:
            lines.append("")
        if markdown:
            lines += [f"## {who}", ""]
        else:
            turn = f"  #{message['turn']}" if message.get("turn") and who == "user" else ""
            named = [*(message.get("branches") or ()), *labels_of(message)]
            after = "".join(f"  {one_line(str(name))}" for name in named)
            result = message.get("result") or {}
            of = f"  {one_line(str(result.get('name')))}" if result.get("name") else ""
            lines.append(paint(f"{who} {names[str(message['id'])]}{turn}{of}{after}", "bold"))
        renders = columns is not None and message["role"] == "assistant"
        lines += text_lines(message, columns if renders else None, renders=renders)
    return lines


def text_lines(
    message: Mapping[str, Any], columns: int | None = None, *, renders: bool = False
) -> list[str]:
    """What a message says, and how it ended if not by itself. ``columns``: no line is wider;
    ``renders``: an answer is shown as Markdown.
    """
    files = message.get("files") or ()
    lines = [
        f"(file {one_line(str(f['name']))}, {count(len(f['text']))} characters)" for f in files
    ]
    text = clean(str(message.get("text") or "")).strip("\n")
    calls = [_call_line(call) for call in message.get("calls") or ()]
    if calls:
        text = "\n".join([*([text] if text else []), *calls])
    if columns is None:
        lines += text.split("\n")
    elif renders and message["role"] == "assistant":
        from radchat.chat.markdown import rendered

        lines += rendered(text, columns)
    else:
        from radchat.chat.columns import fold

        lines += fold(text, columns)
    if message.get("finish_reason") in CUT_OFF:
        lines.append(f"({message['finish_reason']}: the answer was cut off)")
    return lines


def _call_line(call: Mapping[str, Any]) -> str:
    """All of it, safe to print."""
    arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
    return f"-> {one_line(str(call.get('name')))} {clean(arguments)}"


def branches_listing(branches: Sequence[dict[str, Any]], columns: int | None) -> list[str]:
    """One line a branch; the current one is starred. Those that go by number here have it."""
    if not branches:
        return ["no branches yet"]
    are_numbered = any(b.get("number") for b in branches)
    rows = [
        [
            "*" if b.get("current") else " ",
            *([str(b.get("number") or "")] if are_numbered else []),
            one_line(str(b["name"])),
            str(b.get("message") or "-")[:4],
            "-" if b.get("tokens") is None else count(b["tokens"]),
            "-" if b.get("updated") is None else age(max(0.0, time.time() - b["updated"])),
            cut(one_line(str(b.get("text") or "")), 50),
        ]
        for b in branches
    ]
    titles = ["", *(["#"] if are_numbered else []), "branch", "at", "tokens", "used", "text"]
    lines = table(rows, titles, frozenset((titles.index("tokens"),)))
    return lines if columns is None else [cut(line, columns) for line in lines]
