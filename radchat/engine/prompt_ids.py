"""The ids of the next prompt: those that stand, and the end of N (``rendered.py``) after them."""

from __future__ import annotations

from typing import Literal

from radchat.engine.conversation import Point, Prompt, Turn
from radchat.engine.cuts import insides
from radchat.engine.rendered import Rendered
from radchat.engine.request import Ids
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import context_overflow

MAX_OVERLAP = 64  # characters of a closing that the model may have written itself


def from_text(
    rendered: Rendered,
    how: Literal["first", "append", "rewrite"],
    reason: str,
    at: int,
    base: Ids,
) -> Prompt:
    """``base``, then the ids of N from character ``at`` on."""
    text = rendered.text[at:]
    least = len(base) + rendered.tokenizer.least_ids(text)
    if rendered.limit is not None and least >= rendered.limit:
        raise context_overflow(least, rendered.limit, at_least=True)
    encoded = rendered.tokenizer.encode(text, base)
    ids = base + encoded.ids
    places = [(at + mark.start, mark.num_ids) for mark in encoded.marks]
    before = rendered.before_opening()
    points = [
        Point(chars, rendered.digests.at(chars), len(base) + num_ids)
        for chars, num_ids in places[::-1]
        if chars <= before
    ][:1]
    points.append(Point(len(rendered.text), rendered.digests.at(len(rendered.text)), len(ids)))
    ends = [
        max((num_ids for chars, num_ids in places if chars <= end), default=0)
        for end in rendered.boundaries(rewrite=how == "rewrite")
    ]
    ends.append(len(encoded.ids))
    rebuilt = ends.pop(0) if how == "rewrite" else 0
    shares = []
    done = rebuilt
    for end in ends:
        shares.append(max(0, end - done))
        done = max(done, end)
    return Prompt(
        ids=ids,
        kept=len(base),
        base=rendered.last if how == "append" else None,
        base_is_prompt=False,
        tail=encoded.ids,
        points=tuple(points),
        settings_hash=rendered.hash,
        how=how,
        reason=reason,
        shares=tuple(shares),
        rebuilt=rebuilt,
        opens_reasoning=rendered.renderer.opens_reasoning(ids),
    )


def append(rendered: Rendered, tail: str) -> Prompt:
    """The path's own ids, then ``tail``, what the template writes after its last answer."""
    turn = rendered.turns[rendered.last]
    assert turn.out is not None
    base = turn.continue_ids()
    tail = tail[_overlap(rendered.tokenizer, turn, tail) :]
    replaced = False
    if turn.stopped:
        names = [tail[start:end] for start, end in rendered.tokenizer.control_spans(tail)[:1]]
        replaced = [rendered.tokenizer.control[name] for name in names] != list(turn.out[-1:])
    reason = "stop token replaced" if replaced else "append"
    return from_text(rendered, "append", reason, len(rendered.text) - len(tail), base)


def _overlap(tokenizer: Tokenizer, turn: Turn, tail: str) -> int:
    """How much of the tail's beginning the answer itself already ends with."""
    assert turn.out is not None
    out = turn.out[:-1] if turn.stopped else turn.out
    own = tokenizer.decode_masked(out[-MAX_OVERLAP:])
    inside_own = insides(tokenizer.control_spans(own))
    inside_tail = insides(tokenizer.control_spans(tail))
    for n in range(min(len(own), len(tail), MAX_OVERLAP), 0, -1):
        cut = n not in inside_tail and len(own) - n not in inside_own
        if cut and own.endswith(tail[:n]):
            return n
    return 0
