"""`cache why` as lines: what of a prompt was reused, where that ended, and why no more was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radchat.chat.footer import count, share
from radchat.chat.text import clean, one_line
from radchat.chat.width import cut, hang

TEXT_COLUMNS = 48
REASONS = 22  # the column where they begin
ENDED = "  reuse ended at token"
GAP = "  the first gap is at token"  # more was reused after it
AROUND = 24  # columns of text before the token where reuse ended, of it, and after it
NAMES = {
    "new": "new",
    "edited": "edited",
    "evicted": "evicted",
    "model": "other model",
    "template": "template",
    "system": "system prompt",
    "last": "last token",
}


def why(result: Mapping[str, Any], columns: int | None) -> list[str]:
    """A block for each answer, an empty line between."""
    lines: list[str] = []
    for answer in result["answers"]:
        lines += ["", *_answer(answer)] if lines else _answer(answer)
    return lines if columns is None else [piece for line in lines for piece in _fit(line, columns)]


def _fit(line: str, columns: int) -> list[str]:
    """A reason whole, on more lines than one; the words around the token cut."""
    is_quote = line.startswith((ENDED, GAP))
    return [cut(line, columns)] if is_quote else hang(line, columns, REASONS)


def _answer(answer: Mapping[str, Any]) -> list[str]:
    model = one_line(" ".join(str(answer[key]) for key in ("model", "dtype") if answer.get(key)))
    text = cut(one_line(str(answer.get("text") or "")), TEXT_COLUMNS)
    num = answer["input_tokens"]
    lines = [f"{answer['message'][:4]} asst {text}   {model}", _row("prompt", num, "tokens")]
    cache = answer.get("cache") or {}
    if "remote" in cache:
        told = cache["remote"]
        there = "its engine does not tell" if told is None else _reused(told, num)
        lines.append(_row("remote", "-" if told is None else told, there))
    elif answer.get("parts") is None:
        lines.append("  it ended before its prompt was admitted, or is older than this record")
        if cache:
            lines.append(_row("device", cache["device"]))
            lines.append(_row("computed", cache["computed"]))
    else:
        lines += _made_up(answer, num)
    now = answer.get("now")
    if now is None:
        lines.append(_row("now", "-", one_line(str(answer.get("now_why_not") or ""))))
    else:
        cached = now["device"] + now["host"] + now["disk"]
        disk = f", {count(now['disk'])} of them from disk" if now["disk"] else ""
        lines.append(_row("now", cached, f"would be reused ({share(cached, num)}){disk}"))
    return lines


def _made_up(answer: Mapping[str, Any], num: int) -> list[str]:
    lines = [
        _row("device", answer["matched"], _reused(answer["matched"], num)),
        _row("disk", answer["restored"], _restored(answer, num)),
        _row("computed", answer["computed"]),
    ]
    for part in answer["parts"]:
        size = part["end"] - part["start"]
        cause = NAMES.get(str(part["cause"]), one_line(str(part["cause"])))
        lines.append(_row("", size, f"{cause}: {one_line(str(part['why']))}"))
    ended = answer.get("ended")
    if ended:
        reused = answer["matched"] + answer["restored"]
        word = ENDED if reused <= ended["position"] else GAP
        lines.append(f"{word} {count(ended['position'])}:  {_context(ended)}")
    return lines


def _reused(number: int, num: int) -> str:
    return f"reused ({share(number, num)})" if number else ""


def _restored(answer: Mapping[str, Any], num: int) -> str:
    """`restored (94.4%): 80-1,980`, and which tokens those were."""
    if not answer["restored"]:
        return ""
    spans = answer.get("from_disk") or ()
    which = ", ".join(f"{count(start)}-{count(end)}" for start, end in spans)
    return f"restored ({share(answer['restored'], num)}){f': {which}' if which else ''}"


def _context(ended: Mapping[str, Any]) -> str:
    """`...the report >>of<< last spring...`: text of any sort on one line, in a line's room."""
    token, after = (_bare(str(ended[key])) for key in ("token", "after"))
    return f"{_end(str(ended['before']))}>>{cut(token, AROUND)}<<{cut(after, AROUND)}"


def _end(text: str) -> str:
    """The end of what stands before, of whole characters: what one is shown as is not halved."""
    bare = _bare(text)
    if len(bare) <= AROUND:
        return bare
    shown = ""
    for char in reversed(text):
        if len(_bare(char) + shown) > AROUND - 3:
            break
        shown = _bare(char) + shown
    return f"...{shown}"


def _bare(text: str) -> str:
    """On one line; white space stays, for a token often begins with it."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def _row(name: str, number: Any, text: str = "") -> str:
    shown = count(number) if isinstance(number, int) else str(number)
    return f"  {name:<9}{shown:>9}  {text}".rstrip()
