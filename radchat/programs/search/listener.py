"""What a search tells while it runs: the one protocol of every view of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from radchat.programs.search.settings import Search
from radchat.programs.search.tree import Thought


class Listener(Protocol):
    """All calls come on the search's own thread, and are waited for."""

    def began(self, root: Thought, search: Search, opened: Mapping[str, Any]) -> None:
        """``root`` is the tree itself: it grows while the search runs. ``opened``: ``init`` of
        ``search.open``.
        """

    def wave(self, thoughts: Sequence[Thought], what: Literal["grow", "judge"]) -> None:
        """The next thoughts after these are being made, or these are being judged."""

    def delta(self, thought: Thought, choice: int, text: str) -> None:
        """Of the wave: what is being said after this thought, or of it by its judge."""

    def grown(self, thoughts: Sequence[Thought]) -> None:
        """New thoughts, in the tree; their texts, tokens, and what a checker says of them."""

    def judged(self, thoughts: Sequence[Thought]) -> None:
        """They have scores, or are dead."""

    def pruned(self, thoughts: Sequence[Thought], freed_tokens: int) -> None:
        """Their KV has left the device."""

    def spent(self, tokens: int, usage: Mapping[str, int], cache: Mapping[str, int]) -> None:
        """Of the budget so far; usage and cache of what was asked of the model in this run."""

    def note(self, text: str) -> None:
        """One line that the user must see."""


class Silent:
    """Nobody listens."""

    def began(self, root: Thought, search: Search, opened: Mapping[str, Any]) -> None: ...
    def wave(self, thoughts: Sequence[Thought], what: Literal["grow", "judge"]) -> None: ...
    def delta(self, thought: Thought, choice: int, text: str) -> None: ...
    def grown(self, thoughts: Sequence[Thought]) -> None: ...
    def judged(self, thoughts: Sequence[Thought]) -> None: ...
    def pruned(self, thoughts: Sequence[Thought], freed_tokens: int) -> None: ...
    def spent(self, tokens: int, usage: Mapping[str, int], cache: Mapping[str, int]) -> None: ...
    def note(self, text: str) -> None: ...
