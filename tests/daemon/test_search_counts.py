"""What benchmarks/search.py holds a search against: the places of its tree, by the ids stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.search_counts import Tree, tree_of
from tests.daemon.searching import search
from tests.daemon.services import house, run

HOT: Any = {"temperature": 2, "seed": 5}


def test_a_search_computes_the_places_of_its_tree_that_nobody_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home, search(home) as s:
            before = s.computed()
            thoughts = (await s.ask("one two", n=3, options=HOT))["messages"]
            answers = thoughts
            for thought in thoughts[:2]:
                body = await s.ask("three", thought, n=2, options=HOT)
                answers = answers + body["messages"]
            found = await s.on_desk(lambda store: tree_of(store, s.session))
            paths = [tuple(await s.ids(each)) for each in answers]
            differ = {path[:end] for path in paths for end in range(1, len(path) + 1)}
            assert (found.tokens, found.answers) == (len(differ), 7)

            out = {each: (await s.message(each)).out_len or 0 for each in answers}
            said = {
                path[:end]
                for each, path in zip(answers, paths, strict=True)
                for end in range(len(path) - out[each] + 1, len(path) + 1)
            }
            assert found == Tree(len(differ), len(differ - said), 7)
            ran = s.computed() - before - sum(number - 1 for number in out.values())
            assert found.asked <= ran <= found.asked + 3, "and a token a request"

    run(main())
