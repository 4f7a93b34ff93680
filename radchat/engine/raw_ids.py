"""Token ids as ``bytes``, four an id, compared in bulk, at an offset, without a copy."""

from __future__ import annotations

ID_BYTES = 4


def common_len(tokens: bytes, raw: bytes, at: int, stop: int) -> int:
    """How many ids ``tokens`` and ``raw[at:stop]`` have in common at the start."""
    same, differ = 0, min(len(tokens), stop - at)
    while differ - same > 128:  # halve with memcmp, then find the place in one subtraction
        middle = (same + differ) // 2
        if raw.startswith(tokens[same:middle], at + same):
            same = middle
        else:
            differ = middle
    difference = int.from_bytes(tokens[same:differ], "little") ^ int.from_bytes(
        raw[at + same : at + differ], "little"
    )
    if not difference:
        return differ // ID_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return (same + lowest_bit // 8) // ID_BYTES
