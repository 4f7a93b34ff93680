"""From a path of messages to the ids of the next request, turn after turn.

The template always sees the whole conversation with its real texts; ids are made only for its end.
Ids the model has seen never change: a sampled answer's own ids stand for it, and what the template
writes after it (closing, new messages, opening: the *tail*) is found by rendering once more with a
sentinel in its place. Two things override that: the template drops reasoning, or moves content;
then the prompt is rebuilt from the last *point* that still fits, and says so. docs/adr/0007.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from radchat.engine.conversation import Point, Prompt, PromptRecord, Settings, Turn
from radchat.engine.cuts import common_ids, common_len, insides, shows, trimmed
from radchat.engine.digests import Digests, settings_changes, settings_hash
from radchat.engine.facts import KEEP_SWITCHES, Facts, facts_key, moves_case, special_tokens
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.probes import probe
from radchat.engine.reasoning import ReasoningSplitter
from radchat.engine.rendering import Renderer, View, random_word
from radchat.engine.request import Ids
from radchat.engine.thinking import thinking
from radchat.engine.tokenizer import Tokenizer, join_surrogates
from radchat.errors import InvalidInput, ModelBroken, context_overflow

# More new messages than this are an import; their shares are then found by their texts.
MAX_BOUNDARY_RENDERINGS = 16
MAX_OVERLAP = 64  # characters of a closing that the model may have written itself
CUT_CHARS = 30


@dataclass(frozen=True, slots=True)
class _Case:
    """One call of ``prompt``: the conversation, its rendering N, and where its past ends."""

    turns: tuple[Turn, ...]  # path and new messages
    settings: Settings
    hash: str
    view: View
    text: str  # N
    digests: Digests
    last: int  # index of the last sampled turn, -1 for none
    limit: int | None  # ids that the context holds


class Template:
    """A compiled chat template with its tokenizer, probed. Holds no state of conversations.

    ``facts``: what ``probe`` found before for the same ``key``, to save the probing.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        constants: Mapping[str, str] | None = None,
        eos_ids: Iterable[int] = (),
        facts: Facts | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self._constants = dict(constants or {})
        self._eos_ids = frozenset(eos_ids)
        names = [name for name, i in tokenizer.control.items() if i in self._eos_ids]
        self.facts = facts or probe(source, tokenizer, self._constants, names)
        compiled = CompiledTemplate(source, self._constants, mutable=self.facts.mutable)
        self._renderer = Renderer(compiled, tokenizer, self.facts.form)
        self.key = facts_key(source, tokenizer, self._constants)

    @classmethod
    def load(
        cls, folder: Path, tokenizer: Tokenizer, facts: Mapping[str, Facts] | None = None
    ) -> Template:
        """From a model folder; ModelBroken if it has no chat template (a model without chat)."""
        path = folder / "chat_template.jinja"
        if not path.is_file():
            raise ModelBroken(f"{folder.name} has no chat template: it can complete, not chat")
        source = path.read_text(encoding="utf-8")
        constants, eos_ids = special_tokens(folder, tokenizer)
        known = (facts or {}).get(facts_key(source, tokenizer, constants))
        return cls(source, tokenizer, constants=constants, eos_ids=eos_ids, facts=known)

    # -- the prompt ----------------------------------------------------------------------------

    def prompt(
        self,
        turns: Sequence[Turn],
        new: Sequence[Turn],
        settings: Settings,
        *,
        prefill: str = "",
        limit: int | None = None,
    ) -> Prompt:
        """The next request's prompt for a path and the messages added to it.

        ``prefill``: the answer begins with this text. InvalidInput if the template refuses the
        conversation or does not show a new message. ``limit``: ids that the context holds;
        ContextOverflow, before anything long is tokenized, if the prompt cannot leave one for the
        answer. A shorter prompt may still turn out too long: whoever runs it counts.
        """
        case = self._case((*turns, *new), settings, limit)
        if case.last < 0:
            result = self._from_text(case, "first", "first", 0, array("I"))
        else:
            result = self._next(case)
        if prefill:
            more = self.tokenizer.encode_text(prefill, result.ids)
            shares = (*result.shares[:-1], sum(result.shares[-1:]) + len(more))
            result = replace(result, ids=result.ids + more, tail=result.tail + more, shares=shares)
        return result

    def continue_ids(self, turn: Turn) -> Ids:
        """The ids to go on from in a cut answer: no closing, no new opening."""
        if turn.prompt is None or turn.out is None:
            raise InvalidInput("only an answer of the model can be continued")
        return turn.prompt.ids + (turn.out[:-1] if turn.stopped else turn.out)

    def stop_ids(self, eos_ids: Iterable[int] = ()) -> frozenset[int]:
        """The generation config's, and the first control token of each closing."""
        control = self.tokenizer.control
        return self._eos_ids | frozenset(eos_ids) | {control[name] for name in self.facts.stops}

    def splitter(self, *, opened: bool) -> ReasoningSplitter:
        """For one answer; ``opened`` = ``Prompt.opens_reasoning``."""
        form = self.facts.form
        return ReasoningSplitter(
            form.open_mark, form.close_mark, said_mark=form.said_mark, opened=opened
        )

    def thinking(self, level: str) -> tuple[dict[str, Any], str | None]:
        """``Settings.switches`` for off, on, low, medium or high; a line where it is not that."""
        return thinking(self.facts, level)

    def describe(self) -> dict[str, Any]:
        """What the probes found, as JSON values."""
        return self.facts.to_json()

    # -- steps ---------------------------------------------------------------------------------

    def _case(self, turns: tuple[Turn, ...], settings: Settings, limit: int | None) -> _Case:
        keep = self.facts.keep_switch
        if settings.history == "sampled" and keep:
            settings = replace(settings, switches={**settings.switches, keep: KEEP_SWITCHES[keep]})
        view = self._renderer.view(turns, settings)
        text = self._renderer.render(view)
        last = max((i for i, turn in enumerate(turns) if turn.is_sampled), default=-1)
        self._check_shown(turns, view, text, last + 1)
        return _Case(
            turns=turns,
            settings=settings,
            hash=settings_hash(self.source, self.tokenizer, view, turns),
            view=view,
            text=text,
            digests=Digests(text, self.tokenizer),
            last=last,
            limit=limit,
        )

    def _check_shown(self, turns: Sequence[Turn], view: View, text: str, start: int) -> None:
        roles = self.facts.roles
        for i in range(start, len(turns)):
            role = turns[i].role
            dropped = role == "system" and i > 0 and roles.get("system later") == "dropped"
            if dropped or not shows(view.texts[i], text):
                raise InvalidInput(
                    f"this model's chat template drops the {role} message at index {i}", index=i
                )

    def _next(self, case: _Case) -> Prompt:
        path = case.turns[case.last]
        assert path.prompt is not None
        gone = self._gone(case)
        why = self._rewrite_reason(case, path.prompt, gone)
        if not why:
            tail = self._tail(case)
            if tail is not None:
                return self._append(case, tail)
            why = "tail not at the end"
        return self._rewrite(case, why, gone)

    def _gone(self, case: _Case) -> list[int]:
        """Turns whose reasoning the path still contains and the template no longer shows.

        What the path contains is read from its ids: after a fork or a rewrite, what was noted when
        the answer was made may be true of another path.
        """
        hidden: dict[int, str] = {}
        for i, turn in enumerate(case.turns[: case.last + 1]):
            reasoning = join_surrogates(turn.holds or turn.reasoning or "").strip()
            if turn.is_sampled and reasoning and self.tokenizer.mask(reasoning) not in case.text:
                hidden[i] = reasoning
        if not hidden:
            return []
        path = self.tokenizer.decode(self.continue_ids(case.turns[case.last]))
        return [i for i, reasoning in hidden.items() if reasoning in path]

    def _rewrite_reason(self, case: _Case, record: PromptRecord, gone: list[int]) -> str:
        """Empty if the old turns stand."""
        history = case.settings.history
        if gone and history != "sampled":
            return "reasoning dropped"
        changed = settings_changes(record.settings, case.hash)
        moved = self.facts.moves.get(moves_case(case.turns, case.settings), "")
        if changed or moved:
            # text that stood after the last message cannot be told from an opening by its place
            point = record.points[-1 if moved.startswith("trailing") else 0]
            stands = point.num_ids and case.digests.fits(point)
            if not stands or (changed and not self._asked_alike(case, point)):
                parts = "|".join(changed)
                return f"settings changed: {parts}" if changed else f"content moved: {moved}"
        if history == "template":
            start = case.last
            while start > 0 and case.turns[start].role != "user":
                start -= 1
            for turn in case.turns[start : case.last + 1]:
                if turn.prompt is not None and not case.digests.fits(turn.prompt.points[-1]):
                    return "form changed"
        return ""

    def _tail(self, case: _Case) -> str | None:
        """What the template writes after the last sampled answer; None if that cannot be told."""
        turn = case.turns[case.last]
        in_call = bool(turn.tool_calls) and self.facts.form.calls == "shown"
        sentinel = random_word()
        view = self._renderer.with_answer(case.view, case.last, sentinel, in_call=in_call)
        try:
            text = self._renderer.render(view)
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
        return tail if case.text.endswith(tail) else None

    def _append(self, case: _Case, tail: str) -> Prompt:
        turn = case.turns[case.last]
        assert turn.out is not None
        base = self.continue_ids(turn)
        tail = tail[self._overlap(turn, tail) :]
        replaced = False
        if turn.stopped:
            names = [tail[start:end] for start, end in self.tokenizer.control_spans(tail)[:1]]
            replaced = [self.tokenizer.control[name] for name in names] != list(turn.out[-1:])
        reason = "stop token replaced" if replaced else "append"
        return self._from_text(case, "append", reason, len(case.text) - len(tail), base)

    def _overlap(self, turn: Turn, tail: str) -> int:
        """How much of the tail's beginning the answer itself already ends with."""
        assert turn.out is not None
        out = turn.out[:-1] if turn.stopped else turn.out
        own = self.tokenizer.decode_masked(out[-MAX_OVERLAP:])
        inside_own = insides(self.tokenizer.control_spans(own))
        inside_tail = insides(self.tokenizer.control_spans(tail))
        for n in range(min(len(own), len(tail), MAX_OVERLAP), 0, -1):
            cut = n not in inside_tail and len(own) - n not in inside_own
            if cut and own.endswith(tail[:n]):
                return n
        return 0

    def _rewrite(self, case: _Case, why: str, gone: list[int]) -> Prompt:
        """From the newest point that fits; only points before reasoning that must go."""
        limit = case.last if case.settings.history == "sampled" or not gone else gone[0]
        at, kept = 0, array("I")
        inside = insides(self.tokenizer.control_spans(case.text))
        for turn in reversed(case.turns[: limit + 1]):
            points = turn.prompt.points if turn.prompt is not None else ()
            fitting = [p for p in points if p.chars not in inside and case.digests.fits(p)]
            if fitting:
                best = max(fitting, key=lambda p: p.chars)
                assert turn.prompt is not None
                at, kept = best.chars, turn.prompt.ids[: best.num_ids]
                break
        result = self._from_text(case, "rewrite", why, at, kept)
        return self._rebased(case, result, gone)

    def _rebased(self, case: _Case, result: Prompt, gone: list[int]) -> Prompt:
        """The rewrite told relative to the path that has most in common with it."""
        candidates = [
            (common_ids(self.continue_ids(turn), result.ids), i)
            for i, turn in enumerate(case.turns[: case.last + 1])
            if turn.is_sampled
        ]
        kept, base = max(candidates)
        path = self.continue_ids(case.turns[case.last])
        record = case.turns[base].prompt
        assert record is not None
        cleared = []
        for i in gone:
            prompt = case.turns[i].prompt
            assert prompt is not None
            if kept <= len(prompt.ids):
                cleared.append(i)
        begin = len(result.ids) - len(result.tail)
        tail = result.ids[kept:]
        common = common_ids(path, result.ids)
        return replace(
            result,
            kept=kept,
            base=base if kept else None,
            base_is_prompt=kept <= len(record.ids),
            tail=tail,
            rebuilt=max(0, result.rebuilt - (kept - begin)),
            shares=trimmed(result.shares, len(tail)),
            dropped=len(path) - common,
            cleared_holds=tuple(cleared),
            was=self.tokenizer.decode(path[common : common + CUT_CHARS])[:CUT_CHARS],
            now=self.tokenizer.decode(result.ids[common : common + CUT_CHARS])[:CUT_CHARS],
        )

    def _from_text(
        self,
        case: _Case,
        how: Literal["first", "append", "rewrite"],
        reason: str,
        at: int,
        base: Ids,
    ) -> Prompt:
        """``base``, then the ids of N from character ``at`` on."""
        text = case.text[at:]
        self._check_fits(len(base) + self.tokenizer.least_ids(text), case.limit)
        encoded = self.tokenizer.encode(text, base)
        ids = base + encoded.ids
        places = [(at + mark.start, mark.num_ids) for mark in encoded.marks]
        before = self._before_opening(case.view, case.text)
        points = [
            Point(chars, case.digests.at(chars), len(base) + num_ids)
            for chars, num_ids in places[::-1]
            if chars <= before
        ][:1]
        points.append(Point(len(case.text), case.digests.at(len(case.text)), len(ids)))
        ends = [
            max((num_ids for chars, num_ids in places if chars <= end), default=0)
            for end in self._boundaries(case, rewrite=how == "rewrite")
        ]
        ends.append(len(encoded.ids))
        rebuilt = ends.pop(0) if how == "rewrite" else 0
        shares = []
        done = rebuilt
        for end in ends:
            shares.append(max(0, end - done))
            done = max(done, end)
        return Prompt(
            ids=ids,
            kept=len(base),
            base=case.last if how == "append" else None,
            base_is_prompt=False,
            tail=encoded.ids,
            points=tuple(points),
            settings_hash=case.hash,
            how=how,
            reason=reason,
            shares=tuple(shares),
            rebuilt=rebuilt,
            opens_reasoning=self._renderer.opens_reasoning(ids),
        )

    def _check_fits(self, least: int, limit: int | None) -> None:
        if limit is not None and least >= limit:
            raise context_overflow(least, limit, at_least=True)

    # -- places in N ---------------------------------------------------------------------------

    def _before_opening(self, view: View, text: str) -> int:
        """Characters of ``text``, a view's rendering, before what only asks for an answer."""
        for opening in self.facts.openings.get(view.messages[-1]["role"], ()):
            if opening and text.endswith(opening):
                return len(text) - len(opening)
        result = len(text)
        answer = {"role": "assistant", "content": random_word()}
        for messages in (view.messages, (*view.messages, answer)):
            other = replace(view, messages=messages)
            try:
                result = min(result, common_len(text, self._renderer.render(other, opening=False)))
            except InvalidInput:
                continue
        return result

    def _asked_alike(self, case: _Case, point: Point) -> bool:
        """Whether the last prompt, made under today's settings, has its opening at ``point`` too.

        N may begin with the old text and yet go on with something new where the answer stood.
        """
        view = replace(case.view, messages=case.view.messages[: case.last])
        try:
            text = self._renderer.render(view)
        except InvalidInput:
            return False
        before = self._before_opening(view, text)
        starts = [start for start, _ in self.tokenizer.control_spans(text) if start <= before]
        return starts[-1:] == [point.chars]

    def _boundaries(self, case: _Case, *, rewrite: bool) -> list[int]:
        """Characters of N before each message after the last sampled turn but the first of them.

        Of a rewrite, before the closing of that turn too.
        """
        places: list[int] = []
        counts = range(case.last + 2, len(case.turns))
        if rewrite:
            tail = self._tail(case)
            if tail is None:
                counts = range(case.last + 1, len(case.turns))
            else:
                places.append(len(case.text) - len(tail))
        for count in counts:
            if len(counts) <= MAX_BOUNDARY_RENDERINGS:
                try:
                    part = self._renderer.render(case.view, opening=False, upto=count)
                    places.append(common_len(case.text, part))
                    continue
                except InvalidInput:
                    pass
            found = case.text.find(case.view.texts[count].strip(), places[-1] if places else 0)
            places.append(max(found, 0))
        return places
