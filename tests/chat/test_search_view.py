"""What a search tells, in lines, where nothing is painted."""

from __future__ import annotations

from dataclasses import dataclass

from radchat.chat.search_view import SearchView
from tests.chat.thoughts import SMALL, tree, wide

CACHE = {"device": 930, "host": 0, "disk": 0, "computed": 70}


@dataclass(frozen=True)
class Made:
    depth: int = 3
    budget: int | None = 2000


def test_each_step_is_a_line() -> None:
    said: list[str] = []
    view = SearchView(said.append, lambda: 80)
    root = tree(*SMALL)
    view.began(root, Made(), {})
    view.wave([root], "grow")
    view.delta(root, 0, "Start")
    view.spent(96, {}, {"device": 0, "host": 0, "disk": 0, "computed": 70})
    view.grown(root.children)
    view.wave(root.children, "judge")
    view.spent(141, {}, CACHE)
    view.judged(root.children)
    view.pruned(root.children[1:2], 212)
    view.pruned(root.children[1:], 9)
    view.pruned(root.children[2:], 7)
    view.pruned(root.children[2:], 0)  # it was told that it is dead
    view.pruned([], 0)
    view.note("the same thought twice: s1.3")
    view.finish()
    assert said == [
        "grown s1.1 7.5, s1.2 4, s1.3 dead · 96/2,000 tokens",
        "judged s1.1 7.5, s1.2 4 · 141/2,000 tokens",
        "pruned s1.2 4: 212 tokens of KV released · 141/2,000 tokens",
        "pruned s1.2 4: 9 tokens of KV released · 141/2,000 tokens",
        "pruned s1.3 dead: 7 tokens of KV released · 141/2,000 tokens",
        "the same thought twice: s1.3",
    ]
    assert view.counts().startswith(
        "frontier 1 · 5 thoughts, 1 pruned · 141/2,000 tokens · cached 93% · "
    )


def test_of_many_thoughts_a_line_names_the_first() -> None:
    said: list[str] = []
    view = SearchView(said.append, lambda: 80)
    root = wide(25, depth=1)
    view.began(root, Made(budget=None), {})
    view.grown(root.children)
    assert said == [
        "grown s1.1 1, s1.2 2, s1.3 3, s1.4 4, s1.5 5, s1.6 6 and 19 more · 0 tokens",
    ]
