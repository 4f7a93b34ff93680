"""Regular expressions of schemas, where the dialects of readers differ.

A schema's ``pattern`` is ECMAScript's; llguidance reads Rust's, validators in Python read Python's.
What is enforced must hold for all of them: what they read differently is written so that the fewest
characters fit, or refused.
"""

from __future__ import annotations

import re

_PIECE = re.compile(r"\\.|\[\^?\]?|\]|[*+?}]\+|&&|--|~~|\|\||.", re.DOTALL)
# outside ASCII ECMAScript and Rust see neither digits nor letters, and Python sees both
_WIDE = {"d": r"\d\p{Nd}", "w": r"\w\p{L}\p{N}"}


def portable(pattern: str) -> str:
    """For Rust; what all readers take. ValueError says what they read differently."""
    out: list[str] = []
    is_class = is_negated = False
    for found in _PIECE.finditer(pattern):
        piece = found.group()
        if piece[0] == "\\":
            piece = _escape(piece, is_negated=is_negated)
        elif is_class:
            if piece == "]":
                is_class = is_negated = False
            elif piece[0] == "[" or piece in ("&&", "--", "~~", "||"):
                raise ValueError(f"write {piece[0]!r} as '\\{piece[0]}' inside brackets")
        elif piece[0] == "[":
            is_class, is_negated = True, piece[1:2] == "^"
        elif len(piece) == 2 and piece[0] in "*+?}":
            raise ValueError(f"a '+' after {piece[0]!r} means different things to readers")
        out.append(piece)
    return "".join(out)


def _escape(piece: str, *, is_negated: bool) -> str:
    letter = piece[1:]
    if letter in _WIDE:
        return _WIDE[letter] if is_negated else piece
    if letter in ("D", "W"):
        narrow = letter.lower()
        return f"[^{piece[0]}{narrow}]" if is_negated else f"[^{_WIDE[narrow]}]"
    return piece
