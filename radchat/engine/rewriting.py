"""When the ids of old turns cannot stand, and how the prompt is then rebuilt: docs/adr/0007.

The template drops reasoning that the path still contains, or writes old messages in another way
or place. What is kept ends at the newest *point* that still fits.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from radchat.engine.conversation import Prompt
from radchat.engine.cuts import common_ids, insides, trimmed
from radchat.engine.digests import settings_changes
from radchat.engine.facts import moves_case
from radchat.engine.prompt_ids import from_text
from radchat.engine.rendered import Rendered
from radchat.engine.tokenizer import join_surrogates

CUT_CHARS = 30


def gone_reasoning(rendered: Rendered) -> list[int]:
    """Turns whose reasoning the path still contains and the template no longer shows.

    What the path contains is read from its ids: after a fork or a rewrite, what was noted when
    the answer was made may be true of another path.
    """
    tokenizer = rendered.tokenizer
    hidden: dict[int, str] = {}
    for i, turn in enumerate(rendered.turns[: rendered.last + 1]):
        reasoning = join_surrogates(turn.holds or turn.reasoning or "").strip()
        if turn.is_sampled and reasoning and tokenizer.mask(reasoning) not in rendered.text:
            hidden[i] = reasoning
    if not hidden:
        return []
    path = tokenizer.decode(rendered.turns[rendered.last].continue_ids())
    return [i for i, reasoning in hidden.items() if reasoning in path]


def rewrite_reason(rendered: Rendered, gone: list[int]) -> str:
    """Empty if the old turns stand. ``gone``: what ``gone_reasoning`` found."""
    record = rendered.turns[rendered.last].prompt
    assert record is not None
    history = rendered.settings.history
    if gone and history != "sampled":
        return "reasoning dropped"
    changed = settings_changes(record.settings, rendered.hash)
    moved = rendered.facts.moves.get(moves_case(rendered.turns, rendered.settings), "")
    if changed or moved:
        # text that stood after the last message cannot be told from an opening by its place
        point = record.points[-1 if moved.startswith("trailing") else 0]
        stands = point.num_ids and rendered.digests.fits(point)
        if not stands or (changed and not rendered.asked_alike(point)):
            parts = "|".join(changed)
            return f"settings changed: {parts}" if changed else f"content moved: {moved}"
    if history == "template":
        start = rendered.last
        while start > 0 and rendered.turns[start].role != "user":
            start -= 1
        for turn in rendered.turns[start : rendered.last + 1]:
            if turn.prompt is not None and not rendered.digests.fits(turn.prompt.points[-1]):
                return "form changed"
    return ""


def rewrite(rendered: Rendered, why: str, gone: list[int]) -> Prompt:
    """From the newest point that fits; only points before reasoning that must go."""
    limit = rendered.last if rendered.settings.history == "sampled" or not gone else gone[0]
    at, kept = 0, array("I")
    inside = insides(rendered.tokenizer.control_spans(rendered.text))
    for turn in reversed(rendered.turns[: limit + 1]):
        points = turn.prompt.points if turn.prompt is not None else ()
        fitting = [p for p in points if p.chars not in inside and rendered.digests.fits(p)]
        if fitting:
            best = max(fitting, key=lambda p: p.chars)
            assert turn.prompt is not None
            at, kept = best.chars, turn.prompt.ids[: best.num_ids]
            break
    result = from_text(rendered, "rewrite", why, at, kept)
    return _rebased(rendered, result, gone)


def _rebased(rendered: Rendered, result: Prompt, gone: list[int]) -> Prompt:
    """The rewrite told relative to the path that has most in common with it."""
    candidates = [
        (common_ids(turn.continue_ids(), result.ids), i)
        for i, turn in enumerate(rendered.turns[: rendered.last + 1])
        if turn.is_sampled
    ]
    kept, base = max(candidates)
    path = rendered.turns[rendered.last].continue_ids()
    record = rendered.turns[base].prompt
    assert record is not None
    cleared = []
    for i in gone:
        prompt = rendered.turns[i].prompt
        assert prompt is not None
        if kept <= len(prompt.ids):
            cleared.append(i)
    begin = len(result.ids) - len(result.tail)
    tail = result.ids[kept:]
    common = common_ids(path, result.ids)
    return replace(
        result,
        kept=kept,
        base=base if kept else None,
        base_is_prompt=kept <= len(record.ids),
        tail=tail,
        rebuilt=max(0, result.rebuilt - (kept - begin)),
        shares=trimmed(result.shares, len(tail)),
        dropped=len(path) - common,
        cleared_holds=tuple(cleared),
        was=rendered.tokenizer.decode(path[common : common + CUT_CHARS])[:CUT_CHARS],
        now=rendered.tokenizer.decode(result.ids[common : common + CUT_CHARS])[:CUT_CHARS],
    )
