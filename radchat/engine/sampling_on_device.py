"""``sampling.sample`` for logits on a device: the same filters and noise, and the same tokens.

Only ids come back, in one transfer, and log probabilities that are asked for, in another;
thresholds are found there, for all rows at once. No row's result depends on another's: what is
added up is integers, so that the order of adding, which a device chooses by the shape of the batch,
changes nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from radchat.engine.request import TokenLogprob
from radchat.engine.sampling import NOISE_SPAN, Draw, Drawn, not_finite, penalised, token_logprobs
from radchat.errors import ModelBroken
from radchat_kernels.executor import Executor
from radchat_kernels.upload import upload, upload_all

_MOST = 1 << 21  # scores sorted at once: their thresholds take some 40 bytes for each


def sample(logits: Tensor, draws: Sequence[Draw], executor: Executor) -> list[Drawn | ModelBroken]:
    """As ``sampling.sample``."""
    tokens: list[int] = choose(logits, draws, executor).tolist()
    scores = _scores(logits, draws, tokens)
    return [
        not_finite(draw) if token < 0 else Drawn(token, scores.get(place))
        for place, (draw, token) in enumerate(zip(draws, tokens, strict=True))
    ]


def _scores(
    logits: Tensor, draws: Sequence[Draw], tokens: Sequence[int]
) -> dict[int, TokenLogprob]:
    """Of the draws that ask for log probabilities, by their places; all in one transfer."""
    asked = {
        place: draw.params.logprobs
        for place, draw in enumerate(draws)
        if draw.params.logprobs is not None and tokens[place] >= 0
    }
    if not asked:
        return {}
    rows = torch.tensor([draws[place].row for place in asked], device=logits.device)
    ids = [tokens[place] for place in asked]
    found = token_logprobs(logits.index_select(0, rows), ids, max(asked.values()))
    pairs = zip(asked.items(), found, strict=True)
    return {place: replace(each, top=each.top[:count]) for (place, count), each in pairs}


def choose(logits: Tensor, draws: Sequence[Draw], executor: Executor) -> Tensor:
    """The token of each draw, [draws] int64 where the logits are; -1: they are not finite."""
    rows = torch.stack([penalised(logits.select(0, draw.row), draw) for draw in draws])
    _mask(rows, draws)
    best, ids = rows.max(-1)
    params = [draw.params for draw in draws if draw.params.temperature > 0]
    if params:
        best_score, asked = best.double(), _sent(draws, logits)
        keep = asked.keep
        if any(each.top_p < 1 or each.top_k for each in params):
            keep = _thresholds(rows, best_score, asked)
        chosen = executor.draw(rows, best_score, asked.temperature, keep, asked.keys)
        ids = torch.where(keep < torch.inf, chosen, ids)
    return ids.masked_fill_(best.isfinite().logical_not_(), -1)


def _mask(rows: Tensor, draws: Sequence[Draw]) -> None:
    """Minus infinity for what is not allowed, in the rows of draws that have a mask.

    32 ids a word come over, and are unpacked there.
    """
    masks = {place: draw.mask for place, draw in enumerate(draws) if draw.mask is not None}
    if not masks:
        return
    packed = array("i", b"".join(mask.tobytes() for mask in masks.values()))
    words = upload(packed, rows.device).view(len(masks), -1, 1)
    places = upload(array("q", masks), rows.device)
    bits = torch.arange(32, device=rows.device, dtype=torch.int32)
    refused = (words >> bits).bitwise_and_(1).eq(0).view(len(masks), -1).narrow(1, 0, rows.shape[1])
    rows.index_copy_(0, places, rows.index_select(0, places).masked_fill_(refused, -torch.inf))


class _Asked(NamedTuple):
    """What the draws ask for, where the logits are; each [draws], keys [draws, 3]."""

    keep: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor  # 0: off
    keys: Tensor


def _sent(draws: Sequence[Draw], logits: Tensor) -> _Asked:
    """In one transfer. A greedy row is one of which nothing is kept: it draws no noise."""
    keep, temperature, top_p = array("d"), array("d"), array("d")
    top_k: list[int] = []
    keys: list[int] = []
    for draw in draws:
        params = draw.params
        least = max(-NOISE_SPAN, math.log(params.min_p) if params.min_p else -math.inf)
        is_greedy = params.temperature == 0
        keep.append(math.inf if is_greedy else least)
        temperature.append(1 if is_greedy else params.temperature)
        top_p.append(1 if is_greedy else params.top_p)
        top_k.append(params.top_k if params.top_k < logits.shape[1] else 0)
        seed = params.seed - (1 << 64) if params.seed >> 63 else params.seed
        keys.extend((seed, draw.position, draw.choice))
    bits = [array("q", each.tobytes()) for each in (keep, temperature, top_p)]
    *sent, ranks, words = upload_all([*bits, top_k, keys], logits.device)
    reals = [each.view(torch.float64) for each in sent]
    return _Asked(reals[0], reals[1], reals[2], ranks, words.view(-1, 3))


def _thresholds(rows: Tensor, best: Tensor, asked: _Asked) -> Tensor:
    """``keep`` [R], or higher: the least score within top-k and top-p, as ``survivors`` has it."""
    given = rows, best, *asked[:4]
    most = max(1, _MOST // rows.shape[1])
    parts = [(begin, min(most, len(rows) - begin)) for begin in range(0, len(rows), most)]
    return torch.cat([_thresholds_of_few(*(each.narrow(0, *p) for each in given)) for p in parts])


def _thresholds_of_few(
    rows: Tensor, best: Tensor, keep: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor
) -> Tensor:
    scores = rows.sort(descending=True).values.double()
    scores = scores.sub_(best.unsqueeze(1)).div_(temperature.unsqueeze(1))
    at_k = _of_rank(scores, (top_k - 1).clamp_(min=0))
    keep = torch.where(top_k > 0, torch.maximum(keep, at_k), keep)
    # probabilities as integers, exact to 2**-44 of the best one's for 200,000 ids
    unit = 2.0 ** (62 - rows.shape[1].bit_length())
    held = torch.where(scores >= keep.unsqueeze(1), scores.exp().mul_(unit), 0.0).long().cumsum(1)
    inside = (held < (held.select(1, -1) * top_p).unsqueeze(1)).sum(1)
    at_p = _of_rank(scores, inside.clamp_(max=scores.shape[1] - 1))
    return torch.where(top_p < 1, torch.maximum(keep, at_p), keep)


def _of_rank(ordered: Tensor, rank: Tensor) -> Tensor:
    """Of each row the one at its rank, counted from 0."""
    return ordered.gather(1, rank.unsqueeze(1)).squeeze(1)
