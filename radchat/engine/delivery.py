"""What happens with a step's logits: tokens to their choices, siblings born, endings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from radchat.engine import sampling
from radchat.engine.ahead import Ahead
from radchat.engine.batch import Work
from radchat.engine.choice import Choice, Group, first_scored
from radchat.engine.meters import Meters
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import (
    Event,
    Finished,
    FinishReason,
    Ids,
    Progress,
    Started,
)
from radchat.engine.runner import wanted_rows
from radchat.engine.scheduler import Scheduler
from radchat.engine.taking import TEXT_FAULTS, Ending, dead_end, matcher_of, run_on, take
from radchat.engine.unless_full import or_on_cpu
from radchat.engine.words import TextFactory, Words
from radchat.errors import RadchatError


class Delivery:
    """``on_end`` hears of each request whose last choice has ended."""

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        meters: Meters,
        text: TextFactory,
        on_end: Callable[[Group], None],
        ahead: Ahead | None = None,
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._meters = meters
        self._text = text
        self._on_end = on_end
        self._ahead = ahead

    def choice(self, group: Group, ids: Ids) -> Choice:
        words = Words(*self._text(group.request))
        request = group.request
        said = request.ids[len(request.ids) - request.said :]
        seen = sampling.Seen(request.ids, said)
        matcher = matcher_of(request)
        return Choice(group, 0, ids, words, seen, matcher, scored=first_scored(request))

    def start(self, choice: Choice, events: list[Event]) -> None:
        group, meters = choice.group, self._meters
        assert choice.lease is not None
        group.found(choice.lease.cached_len)
        if group.started:
            return
        group.started = True
        if group.request.fill != "load":  # which asks for no token to be computed
            meters.requests += 1
            meters.input_tokens += group.prompt_len
            meters.cached_tokens += group.covered
        disk = choice.restore.predicted if choice.restore else 0
        events.append(Started(group.request.id, group.prompt_len, group.covered, disk))

    def restored(self, choice: Choice, end: int, events: list[Event]) -> None:
        """A prompt's KV has come from disk up to ``end``; it counts once a row attends to it."""
        group = choice.group
        end = min(end, group.prompt_len)
        if end > max(group.covered, group.restored):
            group.restored = end
            events.append(Progress(group.request.id, end, group.prompt_len, "restore"))

    def advance(
        self, work: list[Work], logits: Tensor, events: list[Event]
    ) -> tuple[list[sampling.Draw], list[tuple[Choice, int]]]:
        """Count what has been computed, show it, and say which tokens to draw for whom."""
        draws: list[sampling.Draw] = []
        owners: list[tuple[Choice, int]] = []
        row = 0
        for each in work:
            choice, group, lease = each.choice, each.choice.group, each.choice.lease
            assert lease is not None
            rows = wanted_rows(each)
            if choice.is_scoring and rows:  # else they all are before the first that is scored
                self._score(choice, logits[row : row + len(rows)], rows)
            lease.computed_len = max(lease.computed_len, each.end)
            if each.start < group.prompt_len:
                used = group.ran(each.end)
                self._meters.cached_tokens += used
                if self._ahead and not group.request.namespace:
                    for span in self._ahead.claim(choice.ids[: group.prompt_len].tobytes()):
                        used += group.was_ahead(*span)
                self._meters.restored_tokens += used
                done = min(each.end, group.prompt_len)
                events.append(Progress(group.request.id, done, group.prompt_len))
            if each.end - each.start > 1 or (each.draws and choice.num_out == 0):
                self._cache.show(lease)
            row += len(rows)
            if each.draws:
                self._draw(choice, row - 1, draws, owners, events)
            elif each.end == len(choice.ids):
                self.end(choice, FinishReason.STOP, events)  # it was to be warm, or scored
        return draws, owners

    def _draw(
        self,
        choice: Choice,
        row: int,
        draws: list[sampling.Draw],
        owners: list[tuple[Choice, int]],
        events: list[Event],
    ) -> None:
        """From this row, for it and for each that it carries unborn; nothing where the grammar
        has the first ids, or no way on.
        """
        matcher, position, mask = choice.matcher, len(choice.ids), None
        if matcher is not None:
            if choice.num_out == 0:  # later ones are taken with what was drawn before them
                ending = run_on(choice, events, self._meters)
                if not self._goes_on(choice, ending, events) or choice.num_out:
                    return
            mask = matcher.mask()
            if not mask.any():
                self._goes_on(choice, dead_end(matcher), events)
                return
        request = choice.request
        for index in (choice.index, *choice.unborn):
            number = request.first_choice + index
            draws.append(sampling.Draw(row, request.params, position, number, choice.seen, mask))
            owners.append((choice, index))

    def _score(self, choice: Choice, logits: Tensor, rows: range) -> None:
        """Log probabilities of the prompt's tokens behind the rows that have just run."""
        group = choice.group
        assert group.prompt_logprobs is not None
        following = list(group.request.ids[rows.start + 1 : rows.stop + 1])
        if following:
            num_top = group.request.params.logprobs or 0
            scores = or_on_cpu(
                lambda there: sampling.token_logprobs(there, following, num_top),
                logits[: len(following)],
            )
            group.prompt_logprobs.extend(scores)
        choice.scored = rows.stop

    def deliver(
        self,
        owners: list[tuple[Choice, int]],
        drawn: Sequence[sampling.Drawn | RadchatError],
        events: list[Event],
    ) -> None:
        """Each drawn token to its choice. Siblings are born before their parent may end."""
        parents: list[tuple[Choice, sampling.Drawn | RadchatError]] = []
        for (choice, index), token in zip(owners, drawn, strict=True):
            if index == choice.index:
                parents.append((choice, token))
            else:
                self._bear(choice, index, token, events)
        for choice, token in parents:
            choice.unborn = ()
            self._goes_on(choice, take(choice, token, events, self._meters), events)

    def _bear(
        self, parent: Choice, index: int, token: sampling.Drawn | RadchatError, events: list[Event]
    ) -> None:
        """A sibling: if its first token does not end it, it forks here, or waits for room."""
        assert parent.lease is not None
        child = parent.sibling(index)
        if not self._goes_on(child, take(child, token, events, self._meters), events):
            return
        if self._scheduler.has_place(len(child.ids) - len(parent.ids)):
            child.lease = self._cache.fork(parent.lease, child.ids)
        if child.lease is None:
            self._scheduler.add(child)
        else:
            child.raw = parent.raw
            self._scheduler.adopt(child)

    def _goes_on(self, choice: Choice, ending: Ending | None, events: list[Event]) -> bool:
        if ending is None:
            return True
        self.end(choice, ending.reason, events, ending.error, stopped=ending.stopped)
        return False

    # -- endings ------------------------------------------------------------------------------

    def end_load(self, choice: Choice, events: list[Event]) -> None:
        """Nothing more of it is on disk. What is cached of it is told to the last token."""
        choice.group.settle()
        choice.group.found(self._cache.match_len(choice.request.ids, choice.request.namespace))
        self.end(choice, FinishReason.STOP, events)

    def end_full(self, choice: Choice, events: list[Event]) -> None:
        pool = self._cache.total * self._cache.page_size
        message = f"the KV pool is full: it holds {pool} tokens (kv_device)"
        self.end(choice, FinishReason.LENGTH, events, message)

    def end(
        self,
        choice: Choice,
        reason: FinishReason,
        events: list[Event],
        error: str | None = None,
        *,
        stopped: bool = False,
    ) -> None:
        """One Finished for the choice and for each sibling that it carries unborn."""
        group, ending = choice.group, Ending(reason, error, stopped)
        ending, text, kept = _last(choice.words, choice.num_out, ending)
        self._scheduler.forget(choice)
        if choice.lease is not None:
            # of a failed request only what it has shown stays; ids behind a stop string go
            n = 0 if ending.reason is FinishReason.ERROR else group.prompt_len + kept
            self._cache.finish(choice.lease, min(n, choice.lease.computed_len))
            choice.lease = None
        for index in (choice.index, *choice.unborn):
            self._tell(choice, index, ending, text, kept, events)
        if group.live == 0:
            self._on_end(group)

    def end_unborn(self, choice: Choice, index: int, events: list[Event]) -> None:
        """One of several that still are one row ends before anything was drawn: it is never born,
        and the first of the others carries the rest.
        """
        choice.index, *rest = (each for each in (choice.index, *choice.unborn) if each != index)
        choice.unborn = tuple(rest)
        ending, text, kept = _last(choice.words.copy(), choice.num_out, Ending(FinishReason.ABORT))
        self._tell(choice, index, ending, text, kept, events)

    def _tell(
        self, choice: Choice, index: int, ending: Ending, text: str, kept: int, events: list[Event]
    ) -> None:
        group = choice.group
        group.live -= 1
        events.append(
            Finished(
                request_id=group.request.id,
                choice=index,
                reason=ending.reason,
                text=text,
                kept=kept,
                stopped=ending.stopped,
                usage=group.usage(choice.num_out, choice.num_forced),
                error=ending.error,
                last=group.live == 0,
                prompt_logprobs=group.scores,
                spans=tuple(group.spans),
            )
        )


def _last(words: Words, num_out: int, ending: Ending) -> tuple[Ending, str, int]:
    """The last of an answer's text, and how many of its ids it keeps."""
    if ending.reason is not FinishReason.ERROR:
        try:
            return ending, words.end(), words.kept()
        except TEXT_FAULTS as fault:
            ending = Ending(FinishReason.ERROR, f"the answer's end has no text: {fault}")
    return ending, "", num_out
