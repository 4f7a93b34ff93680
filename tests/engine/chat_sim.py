"""A person, tools and a model that answers in its template's own form, ids cut anywhere."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from radchat.engine.conversation import Prompt, Settings, ToolCall, Turn
from radchat.engine.request import Ids
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from tests.engine.text_toys import plain_settings

TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"about {name}",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "search", "clock")
)
EDGES = ("", " ", "\n", "\n\n", "  \n")


def cut_ids(tokenizer: Tokenizer, text: str, dice: random.Random) -> Ids:
    """Ids of an answer, cut at random places: control names in it are control ids."""
    spans = tokenizer.control_spans(text) + tokenizer.mask_spans(text)
    inside = {i for start, end in spans for i in range(start + 1, end)}
    cuts = sorted({0, len(text), *(dice.randrange(len(text) + 1) for _ in range(len(text) // 4))})
    cuts = [cut for cut in cuts if cut not in inside]
    ids: Ids = array("I")
    for start, end in zip(cuts, cuts[1:], strict=False):
        ids += tokenizer.encode(text[start:end], at_start=False).ids
    return ids


@dataclass
class Chat:
    """Plays one conversation; the same seed with ``harmless`` types no control tokens."""

    template: Template
    seed: int
    harmless: bool = False
    use_tools: bool = False
    think: bool = False
    settings: Settings = field(default_factory=plain_settings)
    turns: list[Turn] = field(default_factory=list)
    prompts: list[tuple[int, Prompt]] = field(default_factory=list)  # (turns then, prompt)
    count: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def word(self) -> str:
        """A word that occurs nowhere else."""
        self.count += 1
        return f"w{self.seed}x{self.count}q"

    def words(self, *, typed: bool = True) -> str:
        """Some text around a word of its own; perhaps with a control token's name in it."""
        control = sorted(self.template.tokenizer.control)
        name = self.dice.choice(control)
        middle = " plain " if self.harmless or not typed else name
        middle = middle if self.dice.random() < 0.4 else " "
        left, right = self.dice.choice(EDGES), self.dice.choice(EDGES)
        return f"{left}{self.word()}{middle}a < b | c{right}"

    def say(self, *new: Turn) -> Prompt:
        """Ask for an answer to the path and ``new``; append what was asked."""
        prompt = self.template.prompt(self.turns, new, self.settings)
        for i in prompt.cleared_holds:
            self.turns[i] = replace(self.turns[i], holds=None)
        self.turns += new
        self.prompts.append((len(self.turns), prompt))
        return prompt

    def user(self) -> Turn:
        return Turn("user", self.words())

    def answer(
        self,
        prompt: Prompt,
        text: str,
        reasoning: str | None = None,
        *,
        stop: bool = True,
        calls: tuple[ToolCall, ...] = (),
        unfinished: bool = False,
    ) -> Turn:
        """The model's answer; ``unfinished``: cut off while still thinking."""
        form = self.template.facts.form
        raw = ""
        if reasoning is not None:
            raw = ("" if prompt.opens_reasoning else f"{form.open_mark}\n") + reasoning
            raw += "" if unfinished else f"\n{form.close_mark}\n\n"
        typed = self.template.tokenizer.mask(text)
        raw += "" if unfinished else typed
        for call in calls:
            raw += f"\n<call>{call.name} {dict(call.arguments)}{form.call_ending or '</call>'}"
        out = self.unmasked_ids(raw)
        stopped = stop and not unfinished
        if stopped:
            out.append(min(self.template.stop_ids()))
        turn = Turn(
            "assistant",
            "" if unfinished else text,
            reasoning,
            calls,
            prompt=prompt.record,
            out=out,
            stopped=stopped,
            holds=reasoning,
        )
        self.turns.append(turn)
        return turn

    def unmasked_ids(self, raw: str) -> Ids:
        return cut_ids(self.template.tokenizer, raw, random.Random(self.seed + len(self.turns)))

    def turn(self) -> Prompt:
        """One random round: a user, perhaps a tool round, an answer."""
        dice = self.dice
        thinks = self.think and dice.random() < 0.8
        why = f"because {self.word()}" if thinks else None
        prompt = self.say(self.user())
        calls_shown = self.template.facts.form.calls == "shown"
        if self.use_tools and calls_shown and dice.random() < 0.6:
            call_id = f"abcdef{len(self.turns):03d}"
            call = ToolCall(call_id, "weather", {"city": self.word()})
            self.answer(prompt, "", why, calls=(call,))
            prompt = self.say(Turn("tool", self.words(), tool_call_id=call_id, name="weather"))
            why = f"so {self.word()}" if thinks else None
        kind = dice.random()
        if kind < 0.1 and why is not None:
            self.answer(prompt, "", why, unfinished=True)
        elif kind < 0.2:
            self.answer(prompt, "", why)
        else:
            self.answer(prompt, self.words(), why, stop=dice.random() < 0.8)
        return prompt


def path_ids(turn: Turn) -> Ids:
    """Ids of an answer's path, without its stop id."""
    assert turn.prompt is not None
    assert turn.out is not None
    return turn.prompt.ids + (turn.out[:-1] if turn.stopped else turn.out)


def last_sampled(turns: Sequence[Turn]) -> Turn | None:
    return next((turn for turn in reversed(turns) if turn.is_sampled), None)


def control_count(tokenizer: Tokenizer, ids: Ids) -> int:
    return sum(i in tokenizer.control_ids for i in ids)
