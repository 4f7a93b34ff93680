"""From a path of messages to the ids of the next request, turn after turn.

The template always sees the whole conversation with its real texts; ids are made only for its end.
Ids the model has seen never change: a sampled answer's own ids stand for it, and what the template
writes after it (closing, new messages, opening: the *tail*) is found by rendering once more with a
sentinel in its place. Two things override that: the template drops reasoning, or moves content;
then the prompt is rebuilt from the last *point* that still fits, and says so. docs/adr/0007.

Places in what was rendered: ``rendered.py``; ids: ``prompt_ids.py``; rebuilding: ``rewriting.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from radchat.engine.conversation import Prompt, Settings, Turn
from radchat.engine.cuts import shows
from radchat.engine.digests import Digests, settings_hash
from radchat.engine.facts import KEEP_SWITCHES, Facts, facts_key, special_tokens
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.probes import probe
from radchat.engine.prompt_ids import append, from_text
from radchat.engine.reasoning import ReasoningSplitter
from radchat.engine.rendered import Rendered
from radchat.engine.rendering import Renderer, View
from radchat.engine.rewriting import gone_reasoning, rewrite, rewrite_reason
from radchat.engine.thinking import thinking
from radchat.engine.tokenizer import Tokenizer
from radchat.engine.tool_block import with_block
from radchat.engine.tool_form import ToolForm
from radchat.errors import InvalidInput, ModelBroken


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
        shown = self._renderer.tools_in_order(settings.tools)
        said, settings = self._as_known((*turns, *new), settings)
        rendered = self._rendered(said, settings, limit, shown)
        if rendered.last < 0:
            result = from_text(rendered, "first", "first", 0, array("I"))
        else:
            result = _next(rendered)
        if prefill:
            more = self.tokenizer.encode_text(prefill, result.ids)
            shares = (*result.shares[:-1], sum(result.shares[-1:]) + len(more))
            result = replace(result, ids=result.ids + more, tail=result.tail + more, shares=shares)
        return result

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

    @property
    def tool_form(self) -> ToolForm:
        """How its model writes calls."""
        return self.facts.tool_form

    def _as_known(
        self, turns: tuple[Turn, ...], settings: Settings
    ) -> tuple[tuple[Turn, ...], Settings]:
        """Without tools, where a block of ours shows them."""
        if settings.tools_in == "template":
            return turns, settings
        return with_block(turns, settings, self.tool_form, self._renderer.tools_in_order)

    def _rendered(
        self,
        turns: tuple[Turn, ...],
        settings: Settings,
        limit: int | None,
        shown: Sequence[Mapping[str, Any]],
    ) -> Rendered:
        keep = self.facts.keep_switch
        if settings.history == "sampled" and keep:
            settings = replace(settings, switches={**settings.switches, keep: KEEP_SWITCHES[keep]})
        view = self._renderer.view(turns, settings)
        text = self._renderer.render(view)
        last = max((i for i, turn in enumerate(turns) if turn.is_sampled), default=-1)
        self._check_shown(turns, view, text, last + 1)
        return Rendered(
            renderer=self._renderer,
            facts=self.facts,
            turns=turns,
            settings=settings,
            hash=settings_hash(self.source, self.tokenizer, view, turns, shown),
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


def _next(rendered: Rendered) -> Prompt:
    """The prompt after a sampled answer."""
    gone = gone_reasoning(rendered)
    why = rewrite_reason(rendered, gone)
    if not why:
        tail = rendered.tail()
        if tail is not None:
            return append(rendered, tail)
        why = "tail not at the end"
    return rewrite(rendered, why, gone)
