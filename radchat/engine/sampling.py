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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radchat.engine import philox
from radchat.engine.matcher import Mask
from radchat.engine.request import Ids, SamplingParams, TokenLogprob
from radchat.errors import ModelBroken
from radchat_kernels.executor import Executor

# −log(−log u) of a 32-bit u lies within −3.131 … 22.874: a token whose logit/T is further than
# their distance below the best one can not win, so it need not be drawn for
NOISE_SPAN = 26.01
_BINS = 2048  # of the scores within NOISE_SPAN, to find a big nucleus without sorting it
_SORTABLE = 2048  # this many scores are sorted as they are
_REACHES = (3.0, 6.0)  # below the best score: where a nucleus mostly ends

Scores: TypeAlias = "NDArray[np.float64]"


class Tally:
    """Different ids with their number of occurrences, in arrays that grow: no step counts anew."""

    __slots__ = ("_ids", "_place", "_times")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        counts = Counter(ids)
        self._place = {token: place for place, token in enumerate(counts)}
        self._ids = np.array(list(counts), dtype=np.int64)
        self._times = np.array(list(counts.values()), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._place)

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            more = np.zeros(max(64, place), dtype=np.int64)
            self._ids = np.concatenate([self._ids, more])
            self._times = np.concatenate([self._times, more])
        self._ids[place] = token
        self._times[place] += 1

    def copy(self) -> Tally:
        other = Tally()
        other._place = dict(self._place)
        other._ids, other._times = self._ids.copy(), self._times.copy()
        return other

    @property
    def ids(self) -> NDArray[np.int64]:
        """In order of first occurrence, [n]."""
        return self._ids[: len(self)]

    @property
    def times(self) -> NDArray[np.int64]:
        return self._times[: len(self)]


class Seen:
    """What penalties look at: the prompt's ids, and how often each id has been put out.

    The prompt is read once, when a penalty first asks for it.
    """

    __slots__ = ("_all", "_prompt", "output")

    def __init__(self, prompt: Ids | None = None, output: Iterable[int] = ()) -> None:
        self._prompt: Ids = array("I") if prompt is None else prompt
        self._all: Tally | None = None
        self.output = Tally(output)

    def add(self, token: int) -> None:
        self.output.add(token)
        if self._all is not None:
            self._all.add(token)

    def copy(self) -> Seen:
        other = Seen(self._prompt)
        other.output = self.output.copy()
        other._all = self._all and self._all.copy()
        return other

    @property
    def all(self) -> Tally:
        """Prompt and output together."""
        if self._all is None:
            self._all = Tally(self._prompt)
            for token in self.output.ids.tolist():
                self._all.add(token)
        return self._all


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from row ``row`` of the logits, to stand at ``position``."""

    row: int
    params: SamplingParams
    position: int
    choice: int
    seen: Seen
    mask: Mask | None = None  # of a grammar: the ids that are allowed, at least one


@dataclass(frozen=True, slots=True)
class Drawn:
    id: int
    logprob: TokenLogprob | None = None


def sample(
    logits: Tensor,
    draws: Sequence[Draw],
    executor: Executor | None = None,
) -> list[Drawn | ModelBroken]:
    """A token for each draw. logits [rows, vocab] float32.

    A draw whose logits are not finite gives an error in its place and harms no other. Logits stay
    where they are with an executor that has kernels, and on a device with any.
    """
    if not draws:
        return []
    if executor is not None and (executor.name, logits.device.type) != ("torch", "cpu"):
        from radchat.engine import sampling_on_device  # made of this module's parts

        return sampling_on_device.sample(logits, draws, executor)
    if all(draw.mask is None and _is_plain(draw.params) for draw in draws):
        return _argmax(logits, draws)
    rows = [_masked(penalised(logits[draw.row], draw), draw.mask) for draw in draws]
    results: list[Drawn | ModelBroken | None] = [None] * len(draws)
    for index, (draw, row) in enumerate(zip(draws, rows, strict=True)):
        best = float(row.max())  # NaN anywhere makes this NaN
        if not math.isfinite(best):
            results[index] = not_finite(draw)
        elif draw.params.temperature == 0:
            results[index] = drawn(logits, draw, int(row.argmax()))
        else:
            scores = survivors(row.cpu().numpy(), best, draw.params)
            results[index] = drawn(logits, draw, _winner(scores, draw))
    return [result for result in results if result is not None]


def survivors(row: NDArray[np.float32], best: float, params: SamplingParams) -> Scores:
    """(logit − best) / T of each id that may be drawn, −inf for the others; [vocab].

    Each filter is a threshold, so ties at its edge stay in, as in transformers. Tokens beyond the
    noise's reach are left out first: all together they hold less than 1e-6.
    """
    scores = row.astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny T makes all but the best, at 0, minus infinity
        scores -= best
        scores /= params.temperature
    keep = -NOISE_SPAN
    if 0 < params.top_k < len(scores):
        keep = max(keep, float(np.partition(scores, -params.top_k)[-params.top_k]))
    if params.min_p > 0:
        keep = max(keep, math.log(params.min_p))
    if params.top_p < 1:
        keep = max(keep, _nucleus(scores[scores >= keep], params.top_p))
    scores[scores < keep] = -np.inf
    return scores


def token_logprobs(logits: Tensor, ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log probability of ids[i] under row i, and of its num_top best. logits [rows, vocab]."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(ids, device=logits.device)[:, None])
    if not num_top:
        values = chosen[:, 0].tolist()
        return [TokenLogprob(i, lp) for i, lp in zip(ids, values, strict=True)]
    top = logprobs.topk(min(num_top, logits.shape[1]))
    # in one transfer: float64 holds ids and float32 exactly
    sent = torch.cat([chosen.double(), top.values.double(), top.indices.double()], 1).tolist()
    count = top.values.shape[1]
    return [
        TokenLogprob(i, row[0], tuple(zip(map(int, row[count + 1 :]), row[1:], strict=False)))
        for i, row in zip(ids, sent, strict=True)
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
    return [Drawn(tokens[draw.row]) if finite[draw.row] else not_finite(draw) for draw in draws]


def not_finite(draw: Draw) -> ModelBroken:
    return ModelBroken(f"the model's output is not a number at position {draw.position - 1}")


def drawn(logits: Tensor, draw: Draw, token: int) -> Drawn:
    if draw.params.logprobs is None:
        return Drawn(token)
    row = logits[draw.row : draw.row + 1]
    return Drawn(token, token_logprobs(row, [token], draw.params.logprobs)[0])


def _masked(row: Tensor, mask: Mask | None) -> Tensor:
    """Minus infinity for what is not allowed; only a row with a mask is copied for it."""
    if mask is None:
        return row
    refused = np.unpackbits(~mask.view(np.uint8), count=len(row), bitorder="little")
    return row.masked_fill(torch.from_numpy(refused.view(np.bool_)).to(row.device), -math.inf)


def penalised(row: Tensor, draw: Draw) -> Tensor:
    """The row after penalties and bias, [vocab]; the row itself when there are none."""
    params, seen = draw.params, draw.seen
    if not _changes_logits(params):
        return row
    row = row.clone()
    if params.repetition_penalty != 1:
        ids = _on(row, seen.all.ids)
        values = row.index_select(0, ids)
        scale = params.repetition_penalty
        row.index_copy_(0, ids, torch.where(values < 0, values * scale, values / scale))
    if len(seen.output) and (params.presence_penalty or params.frequency_penalty):
        times = _on(row, seen.output.times)
        minus = params.presence_penalty + params.frequency_penalty * times
        row.index_add_(0, _on(row, seen.output.ids), minus.to(row.dtype), alpha=-1)
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
        row.index_add_(0, ids, bias)
    return row


def _on(row: Tensor, numbers: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(numbers).to(row.device)


def _nucleus(scores: Scores, top_p: float) -> float:
    """The lowest score of the smallest set of best tokens that holds top_p of the probability.

    Only those are sorted among which the set ends: mostly a few best ones hold it, else they are
    found by the probability in each of _BINS equal steps of score.
    """
    held, wanted = 0.0, top_p * float(np.exp(scores).sum())
    for reach in _REACHES:
        near = scores[scores >= -reach]
        if float(np.exp(near).sum()) >= wanted:
            scores = near
            break
    if len(scores) > _SORTABLE:
        steps = (scores * (-_BINS / NOISE_SPAN)).astype(np.int64)
        sums = np.bincount(steps, np.exp(scores)).cumsum()
        last = min(int((sums < wanted).sum()), len(sums) - 1)
        held = float(sums[last - 1]) if last else 0.0
        scores = scores[steps == last]
    ordered = np.sort(scores)[::-1]
    inside = int((np.exp(ordered).cumsum() + held < wanted).sum())
    return float(ordered[min(inside, len(ordered) - 1)])  # rounding may leave all below


def _winner(scores: Scores, draw: Draw) -> int:
    """The id with the highest score + noise, of those that have a score."""
    place = draw.params.seed, draw.position, draw.choice
    ids = np.flatnonzero(scores > -np.inf)
    if len(ids) * 4 > len(scores):
        u = philox.uniforms_of_all(*place, len(scores))
        return int((scores - np.log(-np.log(u))).argmax())
    noise = -np.log(-np.log(philox.uniforms(*place, ids)))
    return int(ids[(scores[ids] + noise).argmax()])
