"""What of a result the model reads: text of a bounded size, cut in the middle."""

from __future__ import annotations

LEAST = 200  # bytes; less tells nothing
LOOKED_AT = 8192  # bytes, for a NUL: a text has none


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:LOOKED_AT]


def as_text(data: bytes) -> str:
    """Bytes as text: of a binary only how large it is; what is no UTF-8 is U+FFFD."""
    if is_binary(data):
        return f"[binary: {len(data):,} bytes]"
    return data.decode("utf-8", "replace")


def sound(text: str) -> str:
    """What UTF-8 can hold: a file's name may be no text."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_long(text: str, most: int) -> bool:
    return len(text) > most or len(text.encode()) > most


def cut(text: str, most: int, key: str) -> str:
    """At most about ``most`` bytes of it, from its beginning and its end, with a line between them
    that says how much is left out and that ``read_output`` reads it.
    """
    most = max(most, LEAST)
    if not is_long(text, most):
        return text
    head = _within(text, most // 2)
    tail = _within(text[len(head) :][::-1], most // 2)[::-1]
    end = len(text) - len(tail)
    line = (
        f"[... {end - len(head):,} of {len(text):,} characters are left out: "
        f'read_output id="{key}" offset={len(head)} reads on ...]'
    )
    return f"{head}\n{line}\n{tail}"


def _within(text: str, most: int) -> str:
    """As much of its beginning as ``most`` bytes hold, to the end of a line where one is near."""
    part = text[:most].encode()[:most].decode("utf-8", "ignore")
    at = part.rfind("\n")
    return part[: at + 1] if at > len(part) * 3 // 4 else part
