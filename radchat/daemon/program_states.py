"""A state of a program: messages, and the very ids that the model sees of them.

A value that never changes: whatever goes on from it is another one, so a fork is the same value
twice, and where something fails the state is as it was. Ids that stand are never made again from
their text: what is said after sampled ids is tokenized alone and goes after them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radchat.engine.conversation import Prompt, Settings, Turn
from radchat.engine.cuts import common_ids
from radchat.engine.request import FinishReason, Ids
from radchat.errors import InvalidInput, context_overflow

if TYPE_CHECKING:
    from radchat.engine.template import Template
    from radchat.engine.tokenizer import Tokenizer

Role: TypeAlias = Literal["system", "user", "assistant", "raw"]
WORDS = ("a", "7", "\nZ")  # begin in ways of their own: what goes before all of them stands


@dataclass(frozen=True, slots=True)
class Said:
    """A message that is whole; of an answer also what it was asked with and how it ended."""

    turn: Turn
    how: Prompt | None = None
    reason: FinishReason = FinishReason.STOP
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The assistant's turn that is open."""

    how: Prompt
    out: Ids = field(default_factory=lambda: array("I"))
    text: str = ""
    reasoning: str = ""
    stopped: bool = False  # the last id of ``out`` is a stop id
    reason: FinishReason = FinishReason.STOP
    seed: int | None = None

    def whole(self) -> Said:
        turn = Turn(
            "assistant",
            self.text,
            reasoning=self.reasoning or None,
            prompt=self.how.record,
            out=self.out,
            stopped=self.stopped,
            holds=self.reasoning or None,
        )
        return Said(turn, self.how, self.reason, self.seed)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a generation adds to a state."""

    ids: Ids
    raw: str  # all of their words, reasoning and its marks included
    text: str
    reasoning: str = ""
    stopped: bool = False
    reason: FinishReason = FinishReason.STOP
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What all states of a program share."""

    template: Template
    tokenizer: Tokenizer
    settings: Settings
    limit: int  # ids, an answer included


@dataclass(frozen=True, slots=True)
class State:
    frame: Frame
    said: tuple[Said, ...] = ()
    answer: Answer | None = None
    asks: Prompt | None = None  # what an answer to the last user's message will be asked with
    raw: Answer | None = None  # plain text, without a template

    # -- what there is ---------------------------------------------------------------------------

    @property
    def open(self) -> Answer | None:
        """What text and generations go on."""
        return self.raw or self.answer

    @property
    def ids(self) -> Ids:
        """As far as they are known: a message that nobody answers yet may have none."""
        if self.open is not None:
            return self.open.how.ids + self.open.out
        if self.asks is not None:
            return self.asks.ids
        answers = (said.turn for said in reversed(self.said) if said.turn.is_sampled)
        last = next(answers, None)
        if last is None or last.prompt is None or last.out is None:
            return array("I")
        return last.prompt.ids + last.out

    def messages(self) -> Iterator[Turn]:
        yield from (said.turn for said in self.said)
        if self.open is not None:
            yield Turn("raw" if self.raw else "assistant", self.open.text)

    def shown(self) -> dict[str, Any]:
        ids = self.ids
        rows = [{"role": turn.role, "text": turn.text} for turn in self.messages()]
        return {"messages": rows, "ids": list(ids), "tokens": len(ids)}

    def next_ids(self) -> Ids:
        """What every way to go on has in common: worth having cached before a fork."""
        if self.open is not None or self.asks is not None or not self.said:
            return self.ids
        turns = [said.turn for said in self.said]
        try:
            first, *others = (self._prompt((*turns, Turn("user", word))).ids for word in WORDS)
        except InvalidInput:  # the template wants something else here
            return self.ids
        return first[: min(common_ids(first, other) for other in others)]

    # -- going on --------------------------------------------------------------------------------

    def say(self, role: Role, text: str, *, ends: bool = False) -> State:
        """On the desk. InvalidInput where the template refuses it; ContextOverflow."""
        if role == "raw":
            return self.opened(raw=True).adding(text)
        if role == "assistant":
            after = self.opened().adding(text)
            return after.closed() if ends else after
        self._is_of_roles()
        whole = self.closed()
        said = (*whole.said, Said(Turn(role, text)))
        asks = self._prompt([each.turn for each in said]) if role == "user" else None
        return replace(whole, said=said, asks=asks)

    def opened(self, *, raw: bool = False) -> State:
        """With an assistant's turn that is open, or as raw text. On the desk."""
        if raw or self.raw is not None:
            if self.said or self.answer is not None:
                raise InvalidInput(
                    "raw text has no place among messages: say it in assistant(...), or begin a "
                    "state with it",
                    field="role",
                )
            nothing = Prompt(array("I"), 0, None, False, array("I"), (), "", "first", "raw", ())
            return self if self.raw is not None else replace(self, raw=Answer(nothing))
        if self.answer is not None:
            return self
        if not self.said:
            raise InvalidInput(
                "an answer needs a message before it: say user(...) first, or use raw text",
                field="role",
            )
        asks = self.asks or self._prompt([each.turn for each in self.said])
        return replace(self, answer=Answer(asks), asks=None)

    def closed(self) -> State:
        """The open turn is a message now; one in which nothing was said has never been."""
        if self.answer is None:
            return self
        if not self.answer.out:
            last = self.said[-1].turn.role == "user"
            return replace(self, answer=None, asks=self.answer.how if last else None)
        return replace(self, said=(*self.said, self.answer.whole()), answer=None)

    def going_on(self) -> State:
        """Ready for more in the same turn: its stop id is dropped."""
        at = self.open
        if at is None or not at.stopped:
            return self
        return self._with(replace(at, out=at.out[:-1], stopped=False))

    def taken(self, new: Taken) -> State:
        """With what the model said after ``going_on()``. On the desk."""
        at = self.open
        assert at is not None
        out = at.out + new.ids
        if not new.stopped and new.reason == FinishReason.STOP:
            out = at.out + self._shown(new, at.how.ids + at.out)
        return self._with(
            replace(
                at,
                out=out,
                text=at.text + new.text,
                reasoning=at.reasoning + new.reasoning,
                stopped=new.stopped,
                reason=new.reason,
                seed=new.seed if at.seed is None else at.seed,
            )
        )

    def _shown(self, new: Taken, before: Ids) -> Ids:
        """A stop string may begin in the midst of a token: those wholly before it stand, and what
        shows of that one is said in ids of its own.
        """
        tokenizer = self.frame.tokenizer
        for num in range(len(new.ids), -1, -1):
            stream = tokenizer.detokenizer(before)
            text = "".join(map(stream.push, new.ids[:num])) + stream.flush()
            if new.raw.startswith(text):
                ids = new.ids[:num]
                return ids + tokenizer.encode_text(new.raw[len(text) :], before + ids)
        return new.ids

    def written(self, ids: Ids, text: str) -> State:
        """With text whose ids are known, after ``going_on()``."""
        at = self.open
        assert at is not None
        return self._with(
            replace(at, out=at.out + ids, text=at.text + text, reason=FinishReason.STOP)
        )

    def encode(self, text: str) -> Ids:
        """The ids of text that goes on from here. On the desk."""
        return self.frame.tokenizer.encode_text(text, self.ids)

    def adding(self, text: str) -> State:
        """With text after the ids that stand, tokenized alone."""
        if not text:
            return self
        self.check(self.frame.tokenizer.least_ids(text), at_least=True)
        here = self.going_on()
        return here.written(here.encode(text), text).check()

    def check(self, more: int = 0, *, at_least: bool = False) -> State:
        num = len(self.ids) + more
        if num >= self.frame.limit:
            raise context_overflow(num, self.frame.limit, at_least=at_least)
        return self

    def _is_of_roles(self) -> None:
        if self.raw is not None:
            raise InvalidInput(
                "messages have no place after raw text: begin a state with them", field="role"
            )

    def _prompt(self, turns: list[Turn] | tuple[Turn, ...]) -> Prompt:
        frame = self.frame
        found = frame.template.prompt(turns, [], frame.settings, limit=frame.limit)
        if len(found.ids) >= frame.limit:
            raise context_overflow(len(found.ids), frame.limit)
        return found

    def _with(self, at: Answer) -> State:
        return replace(self, raw=at) if self.raw is not None else replace(self, answer=at)
