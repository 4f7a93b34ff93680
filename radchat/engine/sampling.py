"""From a row of logits to one token.

Filters first (grammar mask, penalties, bias, temperature, top-k, min-p, top-p), then the token is
the argmax over the survivors of logit/T − log(−log u), with u a function of (seed, position,
choice, token id) alone: the same seed gives the same token whatever else is in the batch. T 0 is
the exact argmax. Every reduction that decides something runs on one row, never across the batch.

Log probabilities are the model's own: of the logits before any filter.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from radchat.engine import philox
from radchat.engine.request import Ids, SamplingParams, TokenLogprob
from radchat.errors import ModelBroken

# −log(−log u) of a 32-bit u lies within −3.131 … 22.874: a token whose logit/T is further than
# their distance below the best one can not win, so it need not be drawn for
NOISE_SPAN = 26.01
_HEAD = 64  # best tokens that are drawn for first where many survive
_NUCLEUS_GUESS = 512  # top-p rarely keeps more; if it does, the whole row is sorted


@dataclass(slots=True)
class Seen:
    """What penalties look at: the prompt's ids, and how often each id has been put out."""

    prompt: Ids = field(default_factory=lambda: array("I"))
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        self.counts[token] = self.counts.get(token, 0) + 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from row ``row`` of the logits, to stand at ``position``."""

    row: int
    params: SamplingParams
    position: int
    choice: int
    seen: Seen


@dataclass(frozen=True, slots=True)
class Drawn:
    id: int
    logprob: TokenLogprob | None = None


def sample(
    logits: Tensor, draws: Sequence[Draw], mask: Tensor | None = None
) -> list[Drawn | ModelBroken]:
    """A token for each draw. logits [rows, vocab] float32; mask [draws, vocab], True = allowed.

    A draw whose logits are not finite gives an error in its place and harms no other.
    """
    if not draws:
        return []
    if mask is None and all(_is_plain(draw.params) for draw in draws):
        return _argmax(logits, draws)
    rows = [_penalised(logits[draw.row], draw) for draw in draws]
    if mask is not None:
        rows = [
            row.masked_fill(~allowed, -math.inf) for row, allowed in zip(rows, mask, strict=True)
        ]
    results: list[Drawn | ModelBroken | None] = [None] * len(draws)
    noisy: list[tuple[int, Tensor, Tensor]] = []  # draw, survivors' ids, their logit/T
    for index, (draw, row) in enumerate(zip(draws, rows, strict=True)):
        best = float(row.max())  # NaN anywhere makes this NaN
        if not math.isfinite(best):
            results[index] = _not_finite(draw)
        elif draw.params.temperature == 0:
            results[index] = _drawn(logits, draw, int(row.argmax()))
        else:
            noisy.append((index, *survivors(row, best, draw.params)))
    wanted = [(draws[index], ids, scores) for index, ids, scores in noisy]
    for (index, _, _), token in zip(noisy, _winners(wanted, logits.shape[1]), strict=True):
        results[index] = _drawn(logits, draws[index], token)
    return [result for result in results if result is not None]


def survivors(row: Tensor, best: float, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids that may be drawn and their (logit − best) / T, float64.

    Each filter is a threshold, so ties at its edge stay in, as in transformers. Tokens beyond the
    noise's reach are left out from the start: all together they hold less than 1e-6.
    """
    near = (row >= best - 1.01 * NOISE_SPAN * params.temperature).nonzero().flatten()
    scaled = (row[near].double() - best) / params.temperature  # the best is at 0: no overflow
    keep = -NOISE_SPAN
    if 0 < params.top_k < len(scaled):
        keep = max(keep, float(scaled.topk(params.top_k).values[-1]))
    if params.min_p > 0:
        keep = max(keep, math.log(params.min_p))
    if params.top_p < 1:
        keep = max(keep, _nucleus(scaled[scaled >= keep], params.top_p))
    kept = scaled >= keep
    return near[kept], scaled[kept]


def token_logprobs(logits: Tensor, ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log probability of ids[i] under row i, and of its num_top best. logits [rows, vocab]."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    if not num_top:
        return [TokenLogprob(i, lp) for i, lp in zip(ids, chosen, strict=True)]
    top = logprobs.topk(min(num_top, logits.shape[1]))
    tops = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        TokenLogprob(i, lp, tuple(zip(top_ids, top_lps, strict=True)))
        for i, lp, (top_ids, top_lps) in zip(ids, chosen, tops, strict=True)
    ]


def _is_plain(params: SamplingParams) -> bool:
    return params.temperature == 0 and params.logprobs is None and not _changes_logits(params)


def _changes_logits(params: SamplingParams) -> bool:
    return bool(
        params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
    )


def _argmax(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn | ModelBroken]:
    best, ids = logits.max(-1)
    finite = best.isfinite().tolist()
    tokens = ids.tolist()
    return [Drawn(tokens[draw.row]) if finite[draw.row] else _not_finite(draw) for draw in draws]


def _not_finite(draw: Draw) -> ModelBroken:
    return ModelBroken(f"the model's output is not a number at position {draw.position - 1}")


def _drawn(logits: Tensor, draw: Draw, token: int) -> Drawn:
    if draw.params.logprobs is None:
        return Drawn(token)
    row = logits[draw.row : draw.row + 1]
    return Drawn(token, token_logprobs(row, [token], draw.params.logprobs)[0])


def _penalised(row: Tensor, draw: Draw) -> Tensor:
    """The row after penalties and bias, [vocab]; the row itself when there are none."""
    params, seen = draw.params, draw.seen
    if not _changes_logits(params):
        return row
    row = row.clone()
    if params.repetition_penalty != 1:
        ids = torch.tensor(sorted({*seen.prompt, *seen.counts}), device=row.device)
        values = row[ids]
        scale = params.repetition_penalty
        row[ids] = torch.where(values < 0, values * scale, values / scale)
    if seen.counts and (params.presence_penalty or params.frequency_penalty):
        ids = torch.tensor(list(seen.counts), device=row.device)
        times = torch.tensor(list(seen.counts.values()), device=row.device)
        row[ids] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(params.logit_bias.values()), device=row.device)
    return row


def _nucleus(scaled: Tensor, top_p: float) -> float:
    """The lowest score of the smallest set of best tokens that holds top_p of the probability."""
    total = torch.logsumexp(scaled, 0)
    for size in (min(_NUCLEUS_GUESS, len(scaled)), len(scaled)):
        ordered = scaled.topk(size).values
        held = (ordered - total).exp().cumsum(0)
        inside = int((held < top_p).sum())
        if inside < size:
            return float(ordered[inside])
    return -math.inf  # rounding kept the sum of all below top_p


def _winners(wanted: Sequence[tuple[Draw, Tensor, Tensor]], vocab_size: int) -> list[int]:
    """Per draw the argmax of score + noise over its ids; rows of few survivors share a call."""
    winners: list[int] = [0] * len(wanted)
    few: list[int] = []
    for index, (draw, ids, scores) in enumerate(wanted):
        if len(ids) * 4 > vocab_size:
            winners[index] = _winner_of_many(draw, ids, scores, vocab_size)
        else:
            few.append(index)
    noise = _gumbels([wanted[index][:2] for index in few])
    for index, part in zip(few, noise, strict=True):
        _, ids, scores = wanted[index]
        winners[index] = int(ids[(scores + part).argmax()])
    return winners


def _winner_of_many(draw: Draw, ids: Tensor, scores: Tensor, vocab_size: int) -> int:
    """The same argmax. The best tokens set a mark that the others pass only with rare noise, so
    two logarithms are taken of a few ids and not of the whole vocabulary.
    """
    head = scores.topk(min(_HEAD, len(scores)))
    (noise,) = _gumbels([(draw, ids[head.indices])])
    mark = float((head.values + noise).max()) - float(head.values[-1])  # noise the rest needs
    seed, position, choice = draw.params.seed, draw.position, draw.choice
    u = philox.uniforms_of_all(seed, position, choice, vocab_size, str(ids.device))[ids]
    rare = u >= math.exp(-math.exp(-mark)) * (1 - 1e-12)
    rare[head.indices] = True
    passed = scores[rare] + _gumbel(u[rare])
    return int(ids[rare][passed.argmax()])


def _gumbels(wanted: Sequence[tuple[Draw, Tensor]]) -> list[Tensor]:
    """Noise for the ids of each draw, in one call."""
    if not wanted:
        return []
    lengths = [len(ids) for _, ids in wanted]
    place = torch.tensor(
        [[philox.signed(draw.params.seed), draw.position, draw.choice] for draw, _ in wanted]
    ).repeat_interleave(torch.tensor(lengths), dim=0)
    ids = torch.cat([ids for _, ids in wanted])
    seeds, positions, choices = place.to(ids.device).unbind(1)
    return list(torch.split(_gumbel(philox.uniforms(seeds, positions, choices, ids)), lengths))


def _gumbel(u: Tensor) -> Tensor:
    return -(-u.log()).log()
