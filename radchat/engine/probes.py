"""What a chat template does, found by rendering made-up conversations once, at load.

Every text in them is a *sentinel* (a random word), so what the template shows, drops, moves or adds
can be read off. The template decides, not a list of model names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from radchat.engine.conversation import Settings, ToolCall, Turn
from radchat.engine.cuts import common_len
from radchat.engine.facts import KEEP_SWITCHES, Facts
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.rendering import Form, Renderer, random_word
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import InvalidInput, ModelBroken

MAX_DRIFT = 64  # characters; the largest drift seen is 36, the smallest moved text 768
THINK_SWITCHES = ("enable_thinking", "thinking", "think", "reasoning")
MARKS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
)
CALL_ID = "a1B2c3D4e"  # nine letters, as some demand
CLOCKS = (datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2019, 11, 12, 13, 14, 15, tzinfo=UTC))


def probe(
    source: str,
    tokenizer: Tokenizer,
    constants: Mapping[str, str] | None = None,
    eos_names: Sequence[str] = (),
) -> Facts:
    """ModelBroken if the template cannot render the simplest conversation: no chat then."""
    return _Prober(source, tokenizer, constants or {}, tuple(eos_names)).run()


class _Prober:
    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        constants: Mapping[str, str],
        eos_names: tuple[str, ...],
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.constants = constants
        self.eos_names = eos_names
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

    # -- small conversations -------------------------------------------------------------------

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

    def use(self, **changes: Any) -> None:
        form = dataclasses.replace(self.renderer.form, **changes)
        self.renderer = Renderer(self.compiled, self.tokenizer, form)

    # -- the probes, in an order in which each may use what the earlier ones found -------------

    def run(self) -> Facts:
        if self.render([self.user()], opening=True) is None:
            self.use(no_tools="empty")
            if self.render([self.user()], opening=True) is None:
                raise ModelBroken("the chat template cannot render a single user message")
        mutable = self._call_form()
        self._reasoning_form()
        self._said_mark()
        think = next((n for n in THINK_SWITCHES if n in self.compiled.variables), "")
        keep = next((n for n in KEEP_SWITCHES if n in self.compiled.variables), "")
        closings, stops = self._closings()
        return Facts(
            form=self.renderer.form,
            mutable=mutable,
            roles=self._roles(),
            trims=self._trims(),
            clock=self._clock(),
            tools=self._shown([self.user()], self.tool_name, tools=True),
            results=self._results(),
            two_calls=self._two_calls(),
            think_switch=think,
            keep_switch=keep,
            switches=self._switches(think),
            openings=self._openings(think),
            closings=closings,
            stops=stops,
            moves=self._moves(think),
            drops=self._drops(think),
        )

    def _call_form(self) -> bool:
        """Whether and how calls are shown; True if that needs the mutable sandbox."""
        for mutable in (False, True):
            self.compiled = CompiledTemplate(self.source, self.constants, mutable=mutable)
            for arguments in ("dict", "string"):
                for call_id, ids in (("functions.f:0", "any"), (CALL_ID, "nine")):
                    self.use(calls="shown", arguments=arguments, call_ids=ids)
                    mark = random_word()
                    turns = [self.user(), self.call(mark, call_id=call_id)]
                    text = self.render([*turns, self.result("r", call_id)], tools=True)
                    if text is None:  # no results, perhaps
                        text = self.render(turns, tools=True)
                    # written twice into JSON, the quotes around it would be escaped
                    if text and mark in text and f'\\"{mark}' not in text:
                        return mutable
        self.compiled = CompiledTemplate(self.source, self.constants)
        self.use(calls="raw", arguments="dict", call_ids="any")
        return False

    def _reasoning_form(self) -> None:
        why, said, user = random_word(), random_word(), self.user()
        known = [pair for pair in MARKS if pair[1] in self.source]
        self.use(reasoning="field")
        rounds: list[list[Turn]] = [
            [user, Turn("assistant", said, why)],
            [user, self.call(said, why), self.result("r")],
        ]
        for turns in rounds:
            for tools in (False, True):
                text = self.render(turns, tools=tools)
                if text and why in text and said in text:
                    before, rest = text.split(why, 1)
                    between = rest.split(said, 1)[0]
                    fits = [
                        pair for pair in MARKS if pair[0].strip() in before and pair[1] in between
                    ]
                    pair = (known or fits or [self._learned_marks(before, between, user)])[0]
                    self.use(open_mark=pair[0], close_mark=pair[1])
                    return
        opened = self.render([user], opening=True) or ""
        known = known or [pair for pair in MARKS if opened.rstrip().endswith(pair[0])]
        if known:
            self.use(reasoning="raw", open_mark=known[0][0], close_mark=known[0][1])
        else:
            self.use(reasoning="none")

    def _said_mark(self) -> None:
        """The control tokens that the model itself writes before its words for the user."""
        user, said = self.user(), random_word()
        opened = self.render([user], opening=True)
        whole = self.render([user, Turn("assistant", said)])
        if opened is None or whole is None or said not in whole or not whole.startswith(opened):
            return
        mark = whole[len(opened) :].split(said)[0].strip()
        form = self.renderer.form
        if self._controls(mark) and not (form.open_mark and form.open_mark in mark):
            self.use(said_mark=mark)

    def _learned_marks(self, before: str, between: str, user: Turn) -> tuple[str, str]:
        head = self.render([user], opening=True) or ""
        mark = before[common_len(before, head) :].strip() or before.strip().rsplit("\n", 1)[-1]
        return mark, between.strip()

    def _roles(self) -> dict[str, str]:
        first, later, word = self.user(), self.user(), random_word()
        answer = Turn("assistant", random_word())
        cases: dict[str, list[Turn]] = {
            "system": [Turn("system", word), first],
            "system later": [first, answer, Turn("system", word), later],
            "developer": [Turn("developer", word), first],
            "two users": [first, self.user(word)],
            "assistant first": [Turn("assistant", word), first],
            "tool": [first, self.call("c"), self.result(word)],
        }
        return {name: self._shown(turns, word) for name, turns in cases.items()}

    def _shown(self, turns: Sequence[Turn], word: str, *, tools: bool = False) -> str:
        text = self.render(turns, opening=True, tools=tools)
        return "refused" if text is None else "shown" if word in text else "dropped"

    def _trims(self) -> tuple[str, ...]:
        found = []
        for role in ("system", "user", "assistant"):
            word = random_word()
            turn = Turn(role, f" {word} \n")
            turns = {
                "system": [turn, self.user()],
                "user": [turn],
                "assistant": [self.user(), turn, self.user()],
            }[role]
            text = self.render(turns, opening=True)
            if text and word in text and turn.text not in text:
                found.append(role)
        return tuple(found)

    def _clock(self) -> str:
        def varies(turns: Sequence[Turn]) -> bool:
            return self.render(turns, clock=CLOCKS[0]) != self.render(turns, clock=CLOCKS[1])

        user = self.user()
        if varies([Turn("system", "s"), user]):
            return "always"
        return "default system prompt" if varies([user]) else "never"

    def _results(self) -> str:
        word = random_word()
        return self._shown([self.user(), self.call("c"), self.result(word)], word, tools=True)

    def _two_calls(self) -> str:
        if self.renderer.form.calls == "raw":
            return "raw"
        words = random_word(), random_word()
        calls = tuple(
            ToolCall(f"a1B2c3D4{n}", self.tool_name, {"x": word}) for n, word in enumerate(words)
        )
        text = self.render([self.user(), Turn("assistant", "", tool_calls=calls)], tools=True)
        if text is None:
            return "refused"
        return "shown" if all(word in text for word in words) else "dropped"

    def _think_values(self, think: str) -> list[dict[str, Any]]:
        return [{}, {think: False}, {think: True}] if think else [{}]

    def _openings(self, think: str) -> dict[str, tuple[str, ...]]:
        user, word = self.user(), random_word()
        ends: dict[str, list[Turn]] = {
            "user": [user],
            "tool": [user, self.call("c"), self.result(random_word())],
        }
        result: dict[str, tuple[str, ...]] = {}
        for role, turns in ends.items():
            found: set[str] = set()
            for switches in self._think_values(think):
                for tools in (False, True):
                    whole = self.render(turns, opening=True, tools=tools, switches=switches)
                    closed = self.render(turns, tools=tools, switches=switches)
                    answer = Turn("assistant", word)
                    answered = self.render([*turns, answer], tools=tools, switches=switches)
                    if whole is not None and closed is not None and answered is not None:
                        start = min(common_len(whole, closed), common_len(whole, answered))
                        found.add(whole[start:])
            result[role] = tuple(sorted(found, key=len, reverse=True))
        return result

    def _closings(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Texts after an answer and after a call, and the control tokens that end answers."""
        user, word, other = self.user(), random_word(), random_word()
        stops: list[str] = []
        closings: dict[str, str] = {}
        for turns in (
            [user, Turn("assistant", word)],
            [user, Turn("assistant", word), self.user()],
        ):
            text = self.render(turns)
            if text and word in text:
                rest = text.rsplit(word, 1)[1]
                closings.setdefault("answer", rest)
                stops += self._controls(rest)[:1]
        if self.renderer.form.calls == "shown":
            call = self.call(word)
            for turns in ([user, call], [user, call, self.result(other)]):
                text = self.render(turns, tools=True)
                if not text or word not in text:
                    continue
                rest = text.rsplit(word, 1)[1].split(other)[0]
                closing = closings.get("answer", "")
                before = closing.split(stops[0])[0] if stops else ""
                ending = self._call_ending(rest, stops, before)
                # one that contains the call's id is looked for by the closing token instead
                shown = "" if CALL_ID in ending else ending
                self.use(call_ending=self.renderer.form.call_ending or shown)
                closings.setdefault("call", rest[len(ending) :])
                stops += self._controls(rest[len(ending) :])[:1]
        return closings, tuple(dict.fromkeys(stops))

    def _call_ending(self, rest: str, stops: Sequence[str], before_stop: str) -> str:
        """What the model itself writes after a call's last argument."""
        controls = self._controls(rest)
        known = [name for name in controls if name in self.eos_names or name in stops]
        # else the first that is not the end of a bracket around the call
        stop = next(iter(known or [name for name in controls if not name.startswith("</")]), "")
        ending = rest[: rest.index(stop)] if stop else rest
        # text that closes every answer, before the token, is not the call's
        return ending.removesuffix(before_stop)

    def _controls(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self.tokenizer.control_spans(text)]

    def _switches(self, think: str) -> dict[str, str]:
        """What changing a switch later costs: nothing before the opening, or the conversation."""
        pairs: dict[str, tuple[Any, Any]] = {think: (False, True)} if think else {}
        pairs |= {
            name: ("low", "high")
            for name in ("reasoning_effort", "effort")
            if name in self.compiled.variables
        }
        turns = [self.user(), Turn("assistant", random_word()), self.user()]
        result: dict[str, str] = {}
        for name, (one, two) in pairs.items():
            texts = [
                self.render(turns, opening=True, switches={name: value}) for value in (one, two)
            ]
            closed = self.render(turns, switches={name: one})
            if texts[0] is None or texts[1] is None or closed is None:
                result[name] = "refused"
            elif texts[0] == texts[1]:
                result[name] = "nothing"
            else:
                before = common_len(texts[0], closed)
                same = common_len(texts[0], texts[1])
                result[name] = "opening" if same >= before else "conversation"
        return result

    def _moves(self, think: str) -> dict[str, str]:
        result: dict[str, str] = {}
        for case in ("plain", "system", "plain+tools", "system+tools"):
            for switches in self._think_values(think):
                for turns in self._rounds(case):
                    moved = self._moved(turns, tools="tools" in case, switches=switches)
                    if moved:
                        result.setdefault(case, moved)
        return result

    def _rounds(self, case: str) -> Iterator[list[Turn]]:
        """Conversations of three rounds; every beginning that asks for an answer is a prompt."""
        head = [Turn("system", random_word())] if case.startswith("system") else []
        plain: list[Turn] = []
        for _ in range(3):
            plain += [self.user(), Turn("assistant", random_word())]
        yield [*head, *plain]
        if "tools" in case and self.renderer.form.calls == "shown":
            called: list[Turn] = []
            for n in range(3):
                call_id = f"a1B2c3D4{n}"
                called += [
                    self.user(),
                    self.call(random_word(), call_id=call_id),
                    self.result(random_word(), call_id),
                    Turn("assistant", random_word()),
                ]
            yield [*head, *called]

    def _moved(self, turns: Sequence[Turn], *, tools: bool, switches: Mapping[str, Any]) -> str:
        prompts = [
            self.render(turns[:n], opening=True, tools=tools, switches=switches)
            for n in range(1, len(turns) + 1)
            if turns[n - 1].role in ("user", "tool")
        ]
        words = {turn.text: turn.role for turn in turns if turn.text}
        words |= {str(c.arguments["x"]): "call" for turn in turns for c in turn.tool_calls}
        words[self.tool_name] = "tools"
        for old, new in pairwise(prompts):
            if old is None or new is None:
                continue
            orders = [self._order(text, words) for text in (old, new)]
            if orders[1][: len(orders[0])] != orders[0]:
                for kinds in (("system",), ("tools",), ("system", "tools")):
                    less = [[w for w in order if words[w] not in kinds] for order in orders]
                    if less[1][: len(less[0])] == less[0]:
                        return " and ".join(kinds)
                return "messages"
            if len(old) - common_len(old, new) > MAX_DRIFT:
                return "trailing instructions"
        return ""

    def _order(self, text: str, words: Mapping[str, str]) -> list[str]:
        found = []
        for word in words:
            at = text.find(word)
            while at >= 0:
                found.append((at, word))
                at = text.find(word, at + 1)
        return [word for _, word in sorted(found)]

    def _drops(self, think: str) -> tuple[str, ...]:
        if self.renderer.form.reasoning == "none":
            return ()
        first, second = random_word(), random_word()
        switches = {think: True} if think else {}
        plain = [
            *(self.user(), Turn("assistant", random_word(), first), self.user()),
            *(Turn("assistant", random_word(), second), self.user()),
        ]
        called = [self.user(), self.call("c", first), self.result(random_word())]
        cases = (
            ("tool result", called, True),
            ("next user", plain[:3], False),
            ("a round later", plain, False),
        )
        gone = []
        for name, turns, tools in cases:
            text = self.render(turns, opening=True, tools=tools, switches=switches)
            if text is not None and first not in text:
                gone.append(name)
        return tuple(gone)
