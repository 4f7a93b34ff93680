"""What is checked: requests before they reach the loop, the engine's state after a step."""

from __future__ import annotations

import os
from collections.abc import Sequence

from radchat.engine.choice import Choice
from radchat.engine.kv_pool import KVPool
from radchat.engine.prefix_cache import Lease, PrefixCache
from radchat.engine.request import FILLS, MAX_CHOICES, Request
from radchat.errors import ContextOverflow, InvalidInput, context_overflow


def check_request(
    request: Request, *, vocab_size: int, context_length: int, cache: PrefixCache
) -> None:
    """Raises InvalidInput or ContextOverflow; a request that passes can always be finished."""
    request.params.validate(vocab_size)
    if not (isinstance(request.n, int) and 1 <= request.n <= MAX_CHOICES):
        raise InvalidInput(f"n: want 1 to {MAX_CHOICES} (got {request.n!r})", field="n")
    if not 0 <= request.first_choice < 2**31:
        raise InvalidInput(f"first_choice: got {request.first_choice!r}", field="first_choice")
    if request.fill not in FILLS:
        raise InvalidInput(f"fill: want {', '.join(FILLS)} (got {request.fill!r})", field="fill")
    if request.fill != "answer" and request.n > 1:
        raise InvalidInput(f"fill {request.fill}: wants n = 1", field="fill")
    if request.fill in ("load", "warm") and request.params.prompt_logprobs:
        raise InvalidInput(f"fill {request.fill}: wants no prompt_logprobs", field="fill")
    if request.grammar is not None:
        if request.fill != "answer":
            raise InvalidInput(f"fill {request.fill}: wants no grammar", field="fill")
        if request.grammar.base.vocab_size != vocab_size:
            raise InvalidInput("grammar: it was compiled for another model", field="grammar")
    num = len(request.ids)
    if not 0 <= request.score_from <= (num if request.scores else 0):
        raise InvalidInput(
            f"score_from: want 0 to {num}, with fill score or prompt_logprobs"
            f" (got {request.score_from})",
            field="score_from",
        )
    if not 0 <= request.said <= num:
        raise InvalidInput(f"said: want 0 to {num} (got {request.said})", field="said")
    if not num:
        raise InvalidInput("the prompt is empty", field="ids")
    if request.ids.typecode != "I":
        raise InvalidInput("ids: want an array of typecode 'I'", field="ids")
    if max(request.ids) >= vocab_size:
        raise InvalidInput(
            f"ids: {max(request.ids)} is not in the vocabulary (0 to {vocab_size - 1})", field="ids"
        )
    if num >= context_length:
        raise context_overflow(num, context_length)
    if not cache.fits(num):
        pool = cache.total * cache.page_size
        raise ContextOverflow(
            f"the prompt has {num:,} tokens and the KV pool holds {pool:,}: shorten it, or raise "
            "kv_device (RADCHAT_KV_DEVICE)",
            prompt_tokens=num,
            limit=pool,
        )


def check_answers(choices: Sequence[Choice]) -> None:
    """Of what is alive: prompt and output are all its ids, and its grammar has seen just those
    that are the answer's.
    """
    for choice in choices:
        request = choice.request
        if request.fill == "answer":
            assert len(choice.ids) == len(request.ids) + choice.num_out, "ids uncounted"
        assert 0 <= choice.num_forced <= choice.num_out, "more forced than put out"
        if choice.matcher is not None:
            assert choice.matcher.count == request.said + choice.num_out, "ids the grammar missed"


def check_idle(cache: PrefixCache) -> None:
    """With no request alive nothing is locked; every page is free, evictable or pinned."""
    cache.check([])
    assert cache.locked == 0, "pages locked with no request"
    assert cache.free + cache.evictable + cache.pinned == cache.total, "pages lost"


def wants_checks() -> bool:
    """The default of every ``check``: RADCHAT_CHECK=1 in the environment."""
    return os.environ.get("RADCHAT_CHECK") == "1"


class Poison:
    """Fills pages with NaN as they become free, so that reading one shows."""

    def __init__(self, pool: KVPool, cache: PrefixCache) -> None:
        self._pool = pool
        self._cache = cache
        self._free: set[int] = set()

    def spread(self, leases: Sequence[Lease]) -> None:
        used = {page for lease in leases for page in lease.table}
        used.update(page for node in self._cache.nodes() for page in node.pages)
        free = set(range(1, self._cache.num_pages)) - used
        if fresh := sorted(free - self._free):
            self._pool.poison(fresh)
        self._free = free
