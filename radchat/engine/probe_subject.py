"""A template being probed, in the form found so far, and made-up turns to render with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from radchat.engine.conversation import Settings, ToolCall, Turn
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.rendering import Form, Renderer, random_word
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import InvalidInput

THINK_SWITCHES = ("enable_thinking", "thinking", "think", "reasoning")
CALL_ID = "a1B2c3D4e"  # nine letters, as some demand
CLOCKS = (datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2019, 11, 12, 13, 14, 15, tzinfo=UTC))


class Subject:
    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        constants: Mapping[str, str],
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.constants = constants
        self.compiled = CompiledTemplate(source, constants)
        self.tool_name = random_word()
        self.tools = (
            {
                "type": "function",
                "function": {
                    "name": self.tool_name,
                    "description": "d",
                    "parameters": {
                        "type": "object",
                        "properties": {"x": {"type": "string", "description": "d"}},
                        "required": ["x"],
                    },
                },
            },
        )
        self.renderer = Renderer(self.compiled, tokenizer, Form())
        # once they are known: control tokens that end an answer, text before one
        self.stops: tuple[str, ...] = ()
        self.before_stop = ""

    @property
    def form(self) -> Form:
        return self.renderer.form

    @property
    def think_switch(self) -> str:
        """The template's own name for its switch of reasoning; empty if it has none."""
        return next((n for n in THINK_SWITCHES if n in self.compiled.variables), "")

    def think_values(self) -> list[dict[str, Any]]:
        """Every setting of that switch, as ``render`` takes it; unset is the first."""
        think = self.think_switch
        return [{}, {think: False}, {think: True}] if think else [{}]

    # -- rendering ----------------------------------------------------------------------------

    def compile(self, *, mutable: bool) -> None:
        """Into which sandbox; takes effect with the next ``use``."""
        self.compiled = CompiledTemplate(self.source, self.constants, mutable=mutable)

    def use(self, **changes: Any) -> None:
        """Fields of the form, from now on."""
        form = dataclasses.replace(self.form, **changes)
        self.renderer = Renderer(self.compiled, self.tokenizer, form)

    def render(
        self,
        turns: Sequence[Turn],
        *,
        opening: bool = False,
        tools: bool = False,
        clock: datetime = CLOCKS[0],
        switches: Mapping[str, Any] | None = None,
    ) -> str | None:
        """None: the template refuses."""
        settings = Settings(clock, self.tools if tools else (), switches or {})
        try:
            view = self.renderer.view(turns, settings)
            return self.renderer.render(view, opening=opening)
        except InvalidInput:
            return None

    def shown(self, turns: Sequence[Turn], word: str, *, tools: bool = False) -> str:
        """What becomes of ``word``: shown, dropped, or the template refuses."""
        text = self.render(turns, opening=True, tools=tools)
        return "refused" if text is None else "shown" if word in text else "dropped"

    def controls(self, text: str) -> list[str]:
        """The control tokens in it, in order."""
        return [text[start:end] for start, end in self.tokenizer.control_spans(text)]

    # -- turns --------------------------------------------------------------------------------

    def user(self, text: str = "") -> Turn:
        return Turn("user", text or random_word())

    def call(self, argument: str, reasoning: str | None = None, call_id: str = CALL_ID) -> Turn:
        return Turn(
            "assistant",
            "",
            reasoning,
            tool_calls=(ToolCall(call_id, self.tool_name, {"x": argument}),),
        )

    def result(self, text: str, call_id: str = CALL_ID) -> Turn:
        return Turn("tool", text, name=self.tool_name, tool_call_id=call_id)
