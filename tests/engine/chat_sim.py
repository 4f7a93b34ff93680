"""A person, tools and a model that answers in its template's own form, ids cut anywhere."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from radchat.engine.conversation import Prompt, Settings, ToolCall, Turn
from radchat.engine.facts import KEEP_SWITCHES
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.request import Ids
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from tests.engine.text_toys import FAMILIES, plain_settings


def make_tools(word: str = "about") -> tuple[dict[str, object], ...]:
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{word} {name}",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        for name in ("clock", "search", "weather")  # the order we sort them in
    )


TOOLS = make_tools()
EDGES = ("", " ", "\n", "\n\n", "  \n")


def cut_ids(tokenizer: Tokenizer, text: str, after: Ids, dice: random.Random) -> Ids:
    """Ids of an answer, cut at random places: control names in it are control ids."""
    spans = tokenizer.control_spans(text) + tokenizer.mask_spans(text)
    inside = {i for start, end in spans for i in range(start + 1, end)}
    cuts = sorted({0, len(text), *(dice.randrange(len(text) + 1) for _ in range(len(text) // 4))})
    cuts = [cut for cut in cuts if cut not in inside]
    ids: Ids = array("I")
    for start, end in pairwise(cuts):
        ids += tokenizer.encode(text[start:end], after + ids).ids
    return ids


@dataclass
class Chat:
    """Plays one conversation; the same seed with ``harmless`` types no control tokens."""

    template: Template
    seed: int
    harmless: bool = False
    exact: bool = True  # the tokenizer gives back every space
    use_tools: bool = False
    think: bool = False
    settings: Settings = field(default_factory=plain_settings)
    turns: list[Turn] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    check: Callable[[Chat, list[Turn], Prompt], None] = lambda chat, turns, prompt: None
    count: int = 0
    unfinished: set[str] = field(default_factory=set)  # reasoning that was cut off

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.first_settings = self.settings

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
        self.check(self, [*self.turns, *new], prompt)
        for i in prompt.cleared_holds:
            self.turns[i] = replace(self.turns[i], holds=None)
        self.turns += new
        self.prompts.append(prompt)
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
            if unfinished:
                self.unfinished.add(reasoning)
        typed = self.template.tokenizer.mask(text)
        raw += "" if unfinished else typed
        for call in calls:
            raw += f"\n<call>{call.name} {dict(call.arguments)}{form.call_ending or '</call>'}"
        out = self.raw_ids(raw, prompt.ids)
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

    def raw_ids(self, raw: str, after: Ids) -> Ids:
        dice = random.Random(self.seed + len(self.turns))
        return cut_ids(self.template.tokenizer, raw, after, dice)

    def turn(self) -> Prompt:
        """One random round: a user, perhaps a tool round, an answer."""
        dice = self.dice
        thinks = self.think and dice.random() < 0.8
        why = f"because {self.word()}" if thinks else None
        waits = bool(self.turns) and self.turns[-1].role in ("user", "tool")
        prompt = self.say() if waits else self.say(self.user())
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


def prompt_ids(turn: Turn) -> Ids:
    assert turn.prompt is not None
    return turn.prompt.ids


def path_ids(turn: Turn) -> Ids:
    """Ids of an answer's path, without its stop id."""
    assert turn.prompt is not None
    assert turn.out is not None
    return turn.prompt.ids + (turn.out[:-1] if turn.stopped else turn.out)


def last_sampled(turns: Sequence[Turn]) -> Turn | None:
    return next((turn for turn in reversed(turns) if turn.is_sampled), None)


@cache
def compiled_template(source: str) -> CompiledTemplate:
    family = next(family for family in FAMILIES.values() if family.source == source)
    constants = {"bos_token": family.bos, "eos_token": family.eos}
    return CompiledTemplate(source, constants, mutable=True)


def direct(chat: Chat, turns: Sequence[Turn], *, opening: bool = True) -> str:
    """The template's own text of a conversation, rendered without anything of ours but Jinja."""
    facts = chat.template.facts
    compiled = compiled_template(chat.template.source)
    messages: list[dict[str, object]] = []
    for turn in turns:
        message: dict[str, object] = {"role": turn.role, "content": turn.text}
        if turn.reasoning is not None and facts.form.reasoning == "field":
            message |= {"reasoning_content": turn.reasoning, "thinking": turn.reasoning}
        elif turn.reasoning is not None:
            closed = turn.text != "" or turn.tool_calls or turn.reasoning not in chat.unfinished
            end = f"\n{facts.form.close_mark}\n\n{turn.text}" if closed else ""
            message["content"] = f"{facts.form.open_mark}\n{turn.reasoning}{end}"
        if turn.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in turn.tool_calls
            ]
        if turn.role == "tool":
            message |= {"tool_call_id": turn.tool_call_id, "name": turn.name}
        messages.append(message)
    settings = chat.settings
    keep = facts.keep_switch
    more = {keep: KEEP_SWITCHES[keep]} if settings.history == "sampled" and keep else {}
    return compiled.render(
        messages,
        tools=settings.tools or (None if facts.form.no_tools == "null" else ()),
        opening=opening,
        clock=settings.clock,
        switches={**settings.switches, **more},
    )


def control_count(tokenizer: Tokenizer, ids: Ids) -> int:
    return sum(i in tokenizer.control_ids for i in ids)
