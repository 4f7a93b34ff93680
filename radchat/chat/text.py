r"""Text from a model, a file or another program, made safe for a terminal.

Control characters are not dropped but shown (``\x1b``), so nothing a reader should know is hidden
and an unterminated sequence swallows no words. What stays: newline, tab, printable text. No markup
of any kind is read: ``[/INST]`` is ``[/INST]``.
"""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
# C0 but tab and newline, DEL, C1, and the bidirectional overrides that make text lie about itself
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
# what keys send that are no letters: CSI (the marks of a paste among them), SS3, Alt and a letter
KEYS = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\r\n])?")
_HIGH = ("\ud800", "\udbff")


def join_surrogates(text: str) -> str:
    """Paired halves become their character, an unpaired one U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    return _SURROGATE.sub(_join, text)


def _join(match: re.Match[str]) -> str:
    pair = match[0]
    if len(pair) == 1:
        return REPLACEMENT
    return chr(0x10000 + ((ord(pair[0]) - 0xD800) << 10) + (ord(pair[1]) - 0xDC00))


def _show(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0D:
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Cleaner:
    """Cleans a stream of text: any cut into chunks gives the same result.

    What may still turn out differently is held back: a lone CR (the LF may follow) and the first
    half of a surrogate pair.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        text = self._held + text
        held = len(text) > 0 and (text[-1] == "\r" or _HIGH[0] <= text[-1] <= _HIGH[1])
        self._held = text[-1] if held else ""
        return _clean(text[:-1] if held else text)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return _clean(held)


def _clean(text: str) -> str:
    return _CONTROL.sub(_show, join_surrogates(text.replace("\r\n", "\n")))


def clean(text: str) -> str:
    """A whole text, safe to print; keeps its lines."""
    return _clean(text)


def one_line(text: str) -> str:
    """A whole text on one line, safe to print: runs of white space are one space."""
    return _clean(" ".join(text.split()))


def typed(text: str) -> str:
    """What a person typed or pasted: line ends normalised, halves of surrogates repaired."""
    return join_surrogates(text.replace("\r\n", "\n").replace("\r", "\n"))


def unsent(text: str) -> str:
    """What was typed or pasted blindly: its letters and lines, no keys, no control characters."""
    return _CONTROL.sub("", typed(KEYS.sub("", text))).strip("\n")
