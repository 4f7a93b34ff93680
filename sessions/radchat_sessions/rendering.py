"""An exported document as text: JSON, JSON lines, Markdown to read, OpenAI messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from radchat_sessions.content import Json, text_of
from radchat_sessions.names import shortest

Format = Literal["md", "json", "jsonl", "openai"]
Record = Mapping[str, Any]
CUT_OFF: Final = ("abort", "length", "error")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_TICKS = re.compile(r"`{3,}")


def render(document: Mapping[str, Json], form: Format, *, every: bool = False) -> str:
    """The text of a file, a newline at its end. ``every``: all branches, not the path to HEAD."""
    if form == "json":
        return json.dumps(document) + "\n"
    if form == "jsonl":
        header = {key: value for key, value in document.items() if key != "messages"}
        return "".join(json.dumps(each) + "\n" for each in (header, *document["messages"]))
    if form == "openai":
        if not every:
            return json.dumps(_openai(document, _path(document, _head(document)))) + "\n"
        paths = [_path(document, end) for _, end in _ends(document)]
        return "".join(json.dumps(_openai(document, path)) + "\n" for path in paths)
    return "\n".join(_markdown(document, every=every)).rstrip("\n") + "\n"


def _head(document: Mapping[str, Json]) -> str | None:
    head = document["head"]
    end = head["message"] if head["branch"] is None else document["branches"][head["branch"]]
    return None if end is None else str(end)


def _ends(document: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Branches and where they end, HEAD's first."""
    head = document["head"]["branch"]
    named = [(name, end) for name, end in document["branches"].items() if end is not None]
    return sorted(named, key=lambda each: (each[0] != head, each[0]))


def _path(document: Mapping[str, Json], end: str | None) -> list[Record]:
    records = {record["id"]: record for record in document["messages"]}
    path: list[Record] = []
    while end is not None:
        path.append(records[end])
        end = records[end]["parent"]
    return path[::-1]


# -- OpenAI ----------------------------------------------------------------------------------------


def _openai(document: Mapping[str, Json], path: Sequence[Record]) -> dict[str, Json]:
    """The messages as a request has them: their words and files, calls and what they answer."""
    models = [record["model"] for record in path if record.get("model")]
    messages = [
        {"role": record["role"], "content": spoken(record["parts"]), **_calls(record["parts"])}
        for record in path
    ]
    model = models[-1] if models else document["session"]["model"]
    return {**({"model": model} if model else {}), "messages": messages}


def _calls(parts: Sequence[Record]) -> dict[str, Json]:
    calls = [part["call"] for part in parts if part.get("type") == "tool_call"]
    answered = [part["call"] for part in parts if part.get("type") == "text" and "call" in part]
    told = [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {
                "name": call.get("name"),
                "arguments": json.dumps(call.get("arguments"), ensure_ascii=False),
            },
        }
        for call in calls
    ]
    return ({"tool_calls": told} if told else {}) | (
        {"tool_call_id": answered[0]} if answered else {}
    )


def spoken(parts: Sequence[Record]) -> str:
    """What the model reads of a message: facts, files, each under its name, then the text."""
    facts = [str(part["text"]) for part in parts if part.get("type") == "facts"]
    files = [
        f"{part.get('name', 'file')}:\n\n{str(part.get('text', '')).rstrip()}"
        for part in parts
        if part.get("type") == "file"
    ]
    text = text_of(parts)
    before = [*facts, *files]
    return "\n\n".join([*before, *([text] if text or not before else [])])


# -- Markdown --------------------------------------------------------------------------------------


def _markdown(document: Mapping[str, Json], *, every: bool) -> Iterator[str]:
    session = document["session"]
    day = datetime.fromtimestamp(session["created"]).astimezone().date().isoformat()
    num = len(document["messages"])
    about = [day, session["model"], f"{num} message{'' if num == 1 else 's'}"]
    yield from (f"# {session['name']}", "", " · ".join(word for word in about if word), "")
    if not every:
        for record in _path(document, _head(document)):
            yield from _message(record)
        return
    short = shortest([record["id"] for record in document["messages"]])
    told: set[str] = set()
    for name, end in _ends(document):
        path = _path(document, end)
        new = [record for record in path if record["id"] not in told]
        yield from (f"# branch {name}", "")
        if len(new) < len(path):
            yield from (f"(goes on from {short[path[len(path) - len(new) - 1]['id']]})", "")
        for record in new:
            yield from _message(record, short[record["id"]])
        told.update(record["id"] for record in new)


def _message(record: Record, short: str | None = None) -> Iterator[str]:
    yield from (f"## {record['role']}" + (f" {short}" if short else ""), "")
    for part in record["parts"]:
        text = str(part.get("text", "")).strip("\n")
        if part.get("type") == "file":
            yield from (f"{part.get('name', 'file')}:", "", *_fenced(text), "")
        elif part.get("type") == "reasoning":
            yield from (*(f"> {line}".rstrip() for line in text.split("\n")), "")
        elif part.get("type") == "text":
            yield from (*closed(text).split("\n"), "")
        else:
            yield from (*_fenced(json.dumps(part, indent=2), "json"), "")
    if record.get("finish_reason") in CUT_OFF:
        yield from (f"({record['finish_reason']}: the answer was cut off)", "")


def _fenced(text: str, language: str = "") -> list[str]:
    """A block that nothing in it ends."""
    longest = max((len(run) for run in _TICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return [fence + language, *text.split("\n"), fence]


def closed(text: str) -> str:
    """``text`` with its last code block ended, so that what follows is not inside it."""
    open_fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        fence, rest = found[1], found[2]
        if not open_fence:
            if fence[0] == "~" or "`" not in rest:
                open_fence = fence
        elif fence[0] == open_fence[0] and len(fence) >= len(open_fence) and not rest.strip():
            open_fence = ""
    return f"{text}\n{open_fence}" if open_fence else text
