"""A tree of thoughts as rows: what each says, what gives way where there is little room."""

from __future__ import annotations

import random

import pytest

from radchat.chat.search_rows import laid_out
from radchat.chat.search_tree import GROWING, JUDGING, Tree, picked, score_cell
from radchat.chat.width import width
from tests.chat.thoughts import SMALL, Thought, tree, wide


def drawn(root: Thought, columns: int = 80, room: int = 99, **doing: str) -> list[str]:
    known = {name.replace("_", "."): what for name, what in doing.items()}
    shown = Tree(root, 3)
    shown.begin(known)
    return laid_out(picked(shown.places(), room), columns)


def test_a_row_says_name_score_state_and_first_words() -> None:
    assert drawn(tree(*SMALL), s1_1_1="growing") == [
        "name        score  state    thought",
        "s1                 problem  count the ferries",
        "  s1.1        7.5  live     Start with the morning boat",
        "    s1.1.1      8  growing  It carries forty cars",
        "    s1.1.2      -  new      It leaves at six",
        "  s1.2          4  pruned   Ask the captain",
        "  s1.3          0  dead     There are no ferries",
    ]


def test_a_thought_that_can_be_grown_is_of_the_frontier_and_a_leaf_is_not() -> None:
    root = tree("s1.1 5 live a", "s1.1.1 5 live b", "s1.1.1.1 5 live c", "s1.2 5 live d")
    states = [row.state for row in picked(Tree(root, 3).places(), 99)]
    assert states == ["problem", "live", "live", "live", "frontier"]


def test_what_is_being_said_is_seen_where_it_will_stand() -> None:
    shown = Tree(tree(*SMALL), 3)
    shown.begin({"s1.1.1": GROWING, "s1.2": JUDGING})
    shown.hear("s1.1.1", 1, "It is ")
    shown.hear("s1.1.1", 0, "Half of")
    shown.hear("s1.1.1", 1, "full\n")
    shown.hear("s1.2", 0, "7")  # of a judge
    lines = laid_out(picked(shown.places(), 99), 80)
    assert lines[4:6] == [
        "      s1.1.1.+      -  coming   Half of",
        "      s1.1.1.+      -  coming   It is full",
    ]
    assert lines[7] == "  s1.2              4  judging  Ask the captain"
    shown.begin({})
    assert not any("+" in row.name for row in picked(shown.places(), 99))


def test_where_there_is_little_room_the_best_and_the_frontier_stay() -> None:
    root = wide(5)
    rows = drawn(root, room=10)
    assert len(rows) == 11
    assert rows[-1].split()[:2] == ["...", "3"]
    frontier = [line.split()[0] for line in rows if " frontier " in line]
    assert frontier == ["s1.1.3", "s1.1.4", "s1.1.5", "s1.2.3", "s1.2.4", "s1.2.5"]
    folded = [line.split() for line in rows if line.strip().startswith("...")]
    assert folded == [["...", "2", "frontier,", "1", "live"]] * 2 + [["...", "3", "pruned"]]


def test_what_is_best_stays_whatever_the_others_score() -> None:
    root = wide(20)
    best = root.children[1].children[3]
    best.status, best.score = "best", 0.5
    assert any(" best " in line for line in drawn(root, room=6))


@pytest.mark.parametrize("room", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_it_is_never_taller_or_wider_than_asked_and_counts_every_thought(
    room: int, columns: int
) -> None:
    chance = random.Random(f"{room} {columns}")
    for _ in range(20):
        root = wide(chance.randint(1, 9), depth=chance.randint(1, 4), keeps=chance.randint(1, 3))
        for place in Tree(root, 3).places():
            place.thought.text = chance.choice(["你好" * 30, "plain words " * 9, ""])  # type: ignore[misc]
            place.thought.status = chance.choice(["live", "pruned", "dead", "new"])  # type: ignore[misc]
        places = Tree(root, 3).places()
        rows = picked(places, room)
        lines = laid_out(rows, columns)
        assert len(rows) <= max(room, 2)
        assert max(map(width, lines)) <= columns
        folded = [row.text for row in rows if row.name == "..."]
        hidden = sum(int(part.split()[0]) for text in folded for part in text.split(", "))
        assert len(rows) - len(folded) + hidden == len(places)


def test_as_many_as_there_is_room_for_are_shown() -> None:
    for room in range(2, 25):
        rows = picked(Tree(wide(6, depth=2), 2).places(), room)
        assert room - 1 <= len(rows) <= room or len(rows) == 19


def test_a_name_that_is_too_long_keeps_its_end() -> None:
    deep = tree(*(f"s1{'.1' * n} 1 live deep" for n in range(1, 20)))
    assert drawn(deep, columns=60)[-1].startswith("..1.1.1.1")
    assert drawn(deep, columns=60)[-1].endswith("deep")


def test_a_models_text_is_cleaned_and_on_one_line() -> None:
    root = tree("s1.1 1 live x")
    root.children[0].text = "two\nlines \x1b[31mred\x9b [bold]"
    assert drawn(root)[-1].endswith("two lines \\x1b[31mred\\x9b [bold]")


@pytest.mark.parametrize(
    ("score", "cell"), [(None, "-"), (7.5, "7.5"), (20.0, "20"), (1 / 3, "0.333"), (0.001, "0.001")]
)
def test_scores_are_short(score: float | None, cell: str) -> None:
    assert score_cell(score) == cell
