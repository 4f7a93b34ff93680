"""Next thoughts: the paper's G(p, s, k), by samples of one prompt or by proposals of one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from radchat.programs.search.asks import Output
from radchat.programs.search.settings import Generate
from radchat.programs.search.tree import Thought

if TYPE_CHECKING:
    from radchat.programs.search.thinker import Thinker


def sample(thinker: Thinker, parents: Sequence[Thought]) -> list[Thought]:
    """Each thought is an answer of its own: k of one prompt."""
    asks = [thinker.prompting.samples(parent) for parent in parents]
    return _grown(thinker, parents, thinker.ask(parents, asks))


def propose(thinker: Thinker, parents: Sequence[Thought]) -> list[Thought]:
    """One answer lists k thoughts; each is then said as if it had been sampled."""
    asks = [thinker.prompting.proposals(parent) for parent in parents]
    texts: dict[Thought, list[str]] = {}
    for parent, outputs in zip(parents, thinker.ask(parents, asks), strict=True):
        if outputs is None:
            continue
        parent.side_tokens += outputs[0].tokens
        found = thinker.task.read_proposals(outputs[0].text, thinker.search.branch)
        different: dict[str, str] = {}
        for text in found:
            different.setdefault(_key(thinker, parent, text), text)
        thinker.num_doubles += len(found) - len(different)
        if found:
            texts[parent] = list(different.values())
        else:
            thinker.listener.note(f"nothing was proposed after {parent.name}")
    says = [thinker.prompting.proposed(parent, each) for parent, each in texts.items()]
    return _grown(thinker, list(texts), thinker.ask(list(texts), says))


def _grown(
    thinker: Thinker, parents: Sequence[Thought], answers: Sequence[Sequence[Output] | None]
) -> list[Thought]:
    """Their children. What says the same as one before it is none."""
    for parent, outputs in zip(parents, answers, strict=True):
        known: dict[str, Thought] = {}
        for number, output in enumerate(outputs or (), start=1):
            text = thinker.task.read_thought(output.text)
            tokens = output.tokens if thinker.search.generate == "sample" else 0
            key = _key(thinker, parent, text)
            if key in known:
                known[key].doubles.append(output.message)
                parent.side_tokens += tokens
                thinker.num_doubles += 1
                continue
            known[key] = thought = Thought(f"{parent.name}.{number}", text, output.message, parent)
            thought.tokens, thought.logprob = tokens, output.logprob
            parent.children.append(thought)
    return [child for parent in parents for child in parent.children]


def _key(thinker: Thinker, parent: Thought, text: str) -> str:
    return thinker.task.key_of(thinker.prompting.problem, [*parent.texts, text])


GROWERS: Mapping[Generate, Callable[[Thinker, Sequence[Thought]], list[Thought]]] = {
    "sample": sample,
    "propose": propose,
}
