"""Ids become a choice's own: one that was drawn, and then all that its grammar forces.

The rule of jump-forward is here (docs/adr/0025): after the prompt's last row has run, and after
each id that is taken, the ids that must come next are taken at once. They need no row of the model;
the next step runs them with the last one drawn, as one extend. Text, stop strings, stop ids and
length see each id by itself, drawn or forced, so that jumping ends no answer elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from radchat.engine.choice import Choice
from radchat.engine.matcher import Matcher
from radchat.engine.meters import Meters
from radchat.engine.request import Event, FinishReason, Request, Tokens
from radchat.engine.sampling import Drawn
from radchat.errors import InvalidInput, RadchatError

# what a tokenizer's decoder may raise at some id; it ends the answer, never the engine
TEXT_FAULTS = (RadchatError, ValueError, LookupError)


class Ending(NamedTuple):
    reason: FinishReason
    error: str | None = None
    stopped: bool = False  # by a stop id


def matcher_of(request: Request) -> Matcher | None:
    """At the end of what is said already. Raises InvalidInput: the grammar does not allow that."""
    if request.grammar is None:
        return None
    matcher = request.grammar.matcher()
    if not matcher.take(request.ids[len(request.ids) - request.said :]):
        raise InvalidInput(
            f"grammar: the {request.said} tokens that the answer has already are not of it"
            + (f" ({matcher.trouble})" if matcher.trouble else ""),
            field="grammar",
        )
    return matcher


def take(
    choice: Choice, token: Drawn | RadchatError, events: list[Event], meters: Meters
) -> Ending | None:
    """What was drawn, and what is forced after it; how the choice ends with it, if it does."""
    if isinstance(token, RadchatError):
        return Ending(FinishReason.ERROR, str(token))
    matcher, ids = choice.matcher, (token.id,)
    if matcher is not None and not choice.ends_with(token.id) and not matcher.take(ids):
        return dead_end(matcher)
    num, text, ending = _say(choice, ids)
    if num:
        meters.output_tokens += 1
        logprobs = () if token.logprob is None else (token.logprob,)
        events.append(Tokens(choice.request.id, choice.index, ids, text, logprobs))
    return ending or run_on(choice, events, meters)


def run_on(choice: Choice, events: list[Event], meters: Meters) -> Ending | None:
    """Take what is forced; it is also said by the siblings that the choice carries unborn."""
    matcher, ids, text = choice.matcher, list[int](), ""
    if matcher is None:
        return None
    ending: Ending | None = None
    while ending is None and choice.jumps and (run := matcher.forced()):
        if not choice.ends_with(run[0]) and not matcher.take(run):
            break  # what troubles it shows in its mask
        num, more, ending = _say(choice, run)
        ids += run[:num]
        text += more
    if ids:
        choice.num_forced += len(ids)
        for index in (choice.index, *choice.unborn):
            meters.output_tokens += len(ids)
            meters.forced_tokens += len(ids)
            events.append(Tokens(choice.request.id, index, tuple(ids), text, forced=True))
    if ending is None and matcher.end_id is None and matcher.is_finished:
        return Ending(FinishReason.STOP)  # a model without an id for it
    return ending


def dead_end(matcher: Matcher) -> Ending:
    return Ending(FinishReason.DEAD_END, matcher.trouble or "the grammar allows no way on")


def _say(choice: Choice, ids: Sequence[int]) -> tuple[int, str, Ending | None]:
    """How many of them the choice has said when it ended, their text, and how it ended."""
    text = ""
    for num, token in enumerate(ids):
        is_stop = choice.ends_with(token)
        try:
            if is_stop:
                choice.words.skip()
            else:
                text += choice.words.push(token)
        except TEXT_FAULTS as error:  # nobody has been told of it
            return num, text, Ending(FinishReason.ERROR, f"id {token} has no text: {error}")
        choice.ids.append(token)
        choice.num_out += 1
        choice.seen.add(token)
        if is_stop or choice.words.matched:
            return num + 1, text, Ending(FinishReason.STOP, stopped=is_stop)
        if choice.remaining == 0:
            return num + 1, text, _at_length(choice, is_last=num + 1 == len(ids))
    return len(ids), text, None


def _at_length(choice: Choice, *, is_last: bool) -> Ending:
    """No id is left to say: what is whole under its grammar, but for the end, is not cut off."""
    is_whole = is_last and choice.matcher is not None and choice.matcher.is_finished
    return Ending(FinishReason.STOP if is_whole else FinishReason.LENGTH)
