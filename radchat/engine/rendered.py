"""A conversation as its template writes it today, called N, and the places in that text.

They are found by rendering it once more with something changed: another answer, fewer messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from radchat.engine.conversation import Point, Settings, Turn
from radchat.engine.cuts import common_text
from radchat.engine.digests import Digests
from radchat.engine.facts import Facts
from radchat.engine.rendering import Renderer, View, random_word
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import InvalidInput

# More new messages than this are an import; their shares are then found by their texts.
MAX_BOUNDARY_RENDERINGS = 16


@dataclass(frozen=True, slots=True)
class Rendered:
    """One call of ``Template.prompt``: the conversation, N, and where its past ends."""

    renderer: Renderer
    facts: Facts
    turns: tuple[Turn, ...]  # path and new messages
    settings: Settings
    hash: str
    view: View
    text: str  # N
    digests: Digests
    last: int  # index of the last sampled turn, -1 for none
    limit: int | None  # ids that the context holds

    @property
    def tokenizer(self) -> Tokenizer:
        return self.renderer.tokenizer

    def tail(self) -> str | None:
        """What the template writes after the last sampled answer; None if that cannot be told."""
        turn = self.turns[self.last]
        in_call = bool(turn.tool_calls) and self.facts.form.calls == "shown"
        sentinel = random_word()
        view = self.renderer.with_answer(self.view, self.last, sentinel, in_call=in_call)
        try:
            text = self.renderer.render(view)
        except InvalidInput:
            return None
        if text.count(sentinel) != 1:
            return None
        tail = text[text.index(sentinel) + len(sentinel) :]
        if in_call:
            ending = self.facts.form.call_ending
            if ending and tail.startswith(ending):
                tail = tail[len(ending) :]
            else:
                stops = [
                    start
                    for start, end in self.tokenizer.control_spans(tail)
                    if tail[start:end] in self.facts.stops
                ]
                if not stops:
                    return None
                tail = tail[stops[0] :]
        return tail if self.text.endswith(tail) else None

    def before_opening(self) -> int:
        """Characters of N before what only asks for an answer."""
        return self._before_opening_of(self.view, self.text)

    def asked_alike(self, point: Point) -> bool:
        """Whether the last prompt, made under today's settings, has its opening at ``point`` too.

        N may begin with the old text and yet go on with something new where the answer stood.
        """
        view = replace(self.view, messages=self.view.messages[: self.last])
        try:
            text = self.renderer.render(view)
        except InvalidInput:
            return False
        before = self._before_opening_of(view, text)
        starts = [start for start, _ in self.tokenizer.control_spans(text) if start <= before]
        return starts[-1:] == [point.chars]

    def boundaries(self, *, rewrite: bool) -> list[int]:
        """Characters of N before each message after the last sampled turn but the first of them.

        Of a rewrite, before the closing of that turn too.
        """
        places: list[int] = []
        counts = range(self.last + 2, len(self.turns))
        if rewrite:
            tail = self.tail()
            if tail is None:
                counts = range(self.last + 1, len(self.turns))
            else:
                places.append(len(self.text) - len(tail))
        for count in counts:
            if len(counts) <= MAX_BOUNDARY_RENDERINGS:
                try:
                    part = self.renderer.render(self.view, opening=False, upto=count)
                    places.append(common_text(self.text, part))
                    continue
                except InvalidInput:
                    pass
            found = self.text.find(self.view.texts[count].strip(), places[-1] if places else 0)
            places.append(max(found, 0))
        return places

    def _before_opening_of(self, view: View, text: str) -> int:
        for opening in self.facts.openings.get(view.messages[-1]["role"], ()):
            if opening and text.endswith(opening):
                return len(text) - len(opening)
        result = len(text)
        answer = {"role": "assistant", "content": random_word()}
        for messages in (view.messages, (*view.messages, answer)):
            other = replace(view, messages=messages)
            try:
                result = min(result, common_text(text, self.renderer.render(other, opening=False)))
            except InvalidInput:
                continue
        return result
