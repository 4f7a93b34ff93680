"""What one sample has said so far: ids, words, reasoning, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radchat.engine.request import Ids, TokenLogprob
from radchat_sessions.messages import Part, reasoning_part, text_part

if TYPE_CHECKING:
    from radchat.engine.reasoning import ReasoningSplitter


@dataclass
class Heard:
    """One sample on its way; ``answer`` is the id of the message it becomes."""

    answer: str
    splitter: ReasoningSplitter
    ids: Ids
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    first_at: float | None = None
    last_at: float | None = None

    def hear(self, text: str) -> tuple[str, str]:
        reasoning, content = self.splitter.push(text)
        return self._keep(reasoning, content)

    def end(self, text: str) -> tuple[str, str]:
        reasoning, content = self.splitter.push(text)
        more_reasoning, more_content = self.splitter.flush()
        return self._keep(reasoning + more_reasoning, content + more_content)

    def _keep(self, reasoning: str, content: str) -> tuple[str, str]:
        self.reasoning += reasoning
        self.text += content
        return reasoning, content

    @property
    def parts(self) -> list[Part]:
        thought = [reasoning_part(self.reasoning)] if self.reasoning else []
        return [*thought, text_part(self.text)]

    def timing(self, asked_at: float, now: float, output_tokens: int) -> dict[str, float | None]:
        """Seconds since the command came in, and tokens a second after the first."""
        rate = None
        if self.first_at is not None and self.last_at is not None and output_tokens > 1:
            spent = self.last_at - self.first_at
            rate = (output_tokens - 1) / spent if spent > 0 else None
        return {
            "first_token_s": None if self.first_at is None else self.first_at - asked_at,
            "total_s": now - asked_at,
            "tokens_per_s": rate,
        }
