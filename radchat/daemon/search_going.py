"""An ask of a search on its way: what the engine is asked, and what has been answered so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radchat.daemon import options
from radchat.daemon.asked import Asked
from radchat.daemon.heard import Heard
from radchat.daemon.options import Counts
from radchat.daemon.search_saving import logprob_of
from radchat.daemon.whole import READ, sums
from radchat.engine.request import Finished, FinishReason, Ids, Request, Span, Usage
from radchat.errors import Interrupted, RadchatError
from radchat_sessions.messages import BegunAnswer

if TYPE_CHECKING:
    from radchat.daemon.search_asks import Ask

NOBODY = BegunAnswer("", None)  # an answer that is not in the store yet
NOTHING = options.usage_json(Usage(0, 0, 0))
GIVEN_UP = "cancelled: nothing of this is kept"


@dataclass(eq=False)
class Going:
    """An ask on its way. ``requests``: one, or, where nothing may be shared, one an answer; none
    where the answers were given.
    """

    number: int
    ask: Ask
    asked: Asked  # with the first request
    requests: Sequence[Request]
    choices: list[Heard]
    left: int  # choices that have not ended
    spans: Sequence[Span] = ()  # where the prompt's KV came from

    @property
    def trouble(self) -> RadchatError | None:
        """Why it has not all its answers."""
        reasons = [choice.reason for choice in self.choices]
        if FinishReason.ERROR in reasons:
            why = self.choices[reasons.index(FinishReason.ERROR)].error
            return RadchatError(why or "the engine could not go on with this")
        return Interrupted(GIVEN_UP) if FinishReason.ABORT in reasons else None

    def counts(self) -> tuple[Counts, Counts]:
        """Usage and tiers: a prompt counts once for all that is drawn from it."""
        each = [counts for choice in self.choices if (counts := choice.counts)[0] is not None]
        step = len(self.choices) // max(1, len(self.requests))
        read = [each[index] for index in range(0, len(each), step)] if self.requests else []
        usage = sums([NOTHING[0], *(counts for counts, _ in each if counts)])
        once = sums([{name: counts[name] for name in READ} for counts, _ in read if counts])
        tiers = sums([NOTHING[1], *(tiers for _, tiers in read if tiers)])
        return {**usage, **once}, tiers

    def body(self, user: str) -> dict[str, Any]:
        """Of ``answer``; ``user``: the message that is answered."""
        usage, cache = self.counts()
        return {
            "ask": self.number,
            "user": user,
            "outputs": [_output(choice, self.asked) for choice in self.choices],
            "usage": usage,
            "cache": cache,
            "seed": self.asked.request.params.seed if self.requests else None,
        }


def give(choice: Heard, text: str, ids: Ids) -> None:
    """An answer that was given as text: the model drew nothing of it."""
    choice.ids.extend(ids)
    choice.text = text
    usage = Usage(0, 0, 0)
    choice.finished = Finished("", choice.index, FinishReason.STOP, "", len(ids), False, usage)
    choice.ended_at = time.monotonic()


def _output(choice: Heard, asked: Asked) -> dict[str, Any]:
    assert choice.finished is not None
    usage = choice.finished.usage
    return {
        "message": choice.id,
        "text": choice.text,
        "reasoning": choice.reasoning or None,
        "finish_reason": choice.reason.value,
        "tokens": usage.output_tokens,
        "forced_tokens": usage.forced_tokens,
        **logprob_of(choice, asked),
        **choice.judged,
    }
