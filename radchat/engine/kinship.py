"""What a waiting request has in common with those that run, found once for each pair.

Ids of a queued or admitted request do not change, but the queue is looked at each step: with 200
waiting and 64 running a comparison, however short, of each pair would cost more than the rest of
a step. So a pair is compared when the later of the two comes, and only what may still matter is
kept: what is shared with a prompt that is being computed, and which answers the request repeats.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from radchat.engine.raw_ids import ID_BYTES, common_len

if TYPE_CHECKING:
    from radchat.engine.choice import Choice


class Kinship:
    """Of one waiting choice; a new one each time it is queued."""

    __slots__ = ("_last", "_leaders", "_raw", "_repeated")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._last = 0  # the newest admission looked at
        # (−ids shared, admission, who), most shared first; one who was put back has another number
        self._leaders: list[tuple[int, int, Choice]] = []
        self._repeated: list[tuple[int, Choice]] = []

    @property
    def may_follow(self) -> bool:
        return bool(self._leaders)

    def look(self, choice: Choice, running: Sequence[Choice]) -> None:
        """Compare ``choice`` with those of ``running`` (in order of admission) that are new."""
        num_new = 0
        while num_new < len(running) and running[-1 - num_new].admitted > self._last:
            num_new += 1
        for other in running[len(running) - num_new :]:
            self._last = other.admitted
            if other.request.namespace != choice.request.namespace:
                continue
            length = len(other.raw)
            shared = common_len(other.raw, self._raw, 0, len(self._raw))
            if shared and other.pending > 1:
                insort(self._leaders, (-shared, other.admitted, other))
            if shared * ID_BYTES == length < len(self._raw):
                self._repeated.append((other.admitted, other))

    def leader(self, choice: Choice, matched: int, page_size: int) -> Choice | None:
        """Who is computing tokens that ``choice`` needs next, of which ``matched`` are there.

        Worth waiting for: a page of tokens, or half of what would have to be run.
        """
        last = len(choice.ids) - 1
        most = choice.scored if choice.is_scoring else last  # those behind it run, found or not
        best, leader = 0, None
        ended: list[tuple[int, int, Choice]] = []
        for entry in self._leaders:
            shared, other = min(-entry[0], most), entry[2]
            if shared - matched <= best:
                break  # nor has anyone behind it more to give
            if other.admitted != entry[1] or other.lease is None or other.pending <= 1:
                ended.append(entry)
                continue
            gain = shared - max(matched, other.lease.computed_len)
            if gain > best and (gain >= page_size or 2 * gain >= last - matched):
                best, leader = gain, other
        for entry in ended:
            self._leaders.remove(entry)
        return leader

    def repeated(self, choice: Choice, found: int) -> Iterator[Choice]:
        """Running requests whose answer so far ``choice`` repeats beyond ``found`` ids."""
        for entry in list(self._repeated):
            admitted, other = entry
            lease, length = other.lease, len(other.raw) // ID_BYTES
            if other.admitted != admitted or lease is None:
                self._repeated.remove(entry)
            elif lease.computed_len <= max(found, other.group.prompt_len):
                continue  # prompts are shown as they are computed
            elif len(other.ids) > length and other.ids[length] != choice.ids[length]:
                self._repeated.remove(entry)  # another answer
            elif common_len(self._raw, lease.ids.tobytes(), 0, len(self._raw)) > found:
                yield other
