"""Tasks of a search: what is said, and that whatever is answered can be read."""

from __future__ import annotations

import json
import random
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radchat.engine.grammar import Grammar
from radchat.engine.grammars import Grammars
from radchat.errors import RadchatError, UsageError
from radchat.programs.search.grammars import choices, line, regex, sentence
from radchat.programs.search.task import Task
from radchat.programs.search.task_file import BUILT_IN, find_task
from radchat.programs.search.tasks.free import FREE
from radchat.programs.search.tasks.game24 import GAME24
from tests.engine.test_grammar import walk
from tests.engine.text_toys import toy_tokenizer

LADDER = Path(__file__).parents[2] / "examples" / "word_ladder.py"
TOKENIZER = toy_tokenizer("chatml", "gpt2")
END = TOKENIZER.control["<|im_end|>"]
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, frozenset({END}))


def task_in(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(f"from radchat.programs.search.task import Task\n{text}\n", encoding="utf-8")
    return path


# -- prompts ---------------------------------------------------------------------------------------


def test_what_stands_first_in_a_branch_says_the_problem_and_what_follows_does_not() -> None:
    task = Task("t", opening="Solve {problem}!", step="Step {step} of {depth}.", depth=4)
    assert task.first_text("x {y}") == "Solve x {y}!\n\nStep 1 of 4."
    assert task.step_text("x {y}", ["a", "b"]) == "Step 3 of 4."
    for prompt in (task.propose_text("p", [], 3), task.vote_text("p", [], ["a", "b"])):
        assert prompt.startswith("Solve p!\n\n")
    assert "p!" not in task.propose_text("p", ["a"], 3)
    own = Task("t", step="{problem}: {thoughts} after {last}")
    assert own.step_text("p", []) == "p:  after "
    assert own.step_text("p", ["a", "b"]) == "p: 1. a\n2. b after b"
    assert Task("t", vote="{count}:\n{candidates}").vote_text("p", ["a"], ["b", "c"]) == (
        "2:\n1. b\n2. c"
    )
    assert Task("t", first="Begin.", step="Go on.").first_text("p") == "p\n\nBegin."
    assert Task("t", first="Begin.", step="Go on.").step_text("p", ["a"]) == "Go on."
    assert FREE.first_text("p") != "p\n\n" + FREE.step_text("p", ["a"])
    assert Task("t", value="{step} {last}").value_text("p", ["a", "b"]) == "2 b"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("{probelm}", "step: {probelm} is nothing that is filled in: did you mean {problem}?"),
        ("{candidates}", "it knows problem, thoughts, last, step, depth"),
        ("{", "a brace that is meant is written twice"),
    ],
)
def test_a_prompt_that_names_what_is_not_there_is_refused_where_it_is_written(
    prompt: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Task("t", step=prompt)
    path = task_in(tmp_path, f"\ntask = Task('t', step={prompt!r})")
    with pytest.raises(RadchatError, match=re.escape(f"{path}:3: ValueError: step")):
        find_task(str(path))


def test_only_what_a_task_wishes_for_is_a_setting() -> None:
    assert FREE.defaults() == {"depth": 3}
    assert GAME24.defaults() == {"depth": 3, "branch": 5, "beam": 5, "thought_tokens": 64}


# -- whatever is said is read ----------------------------------------------------------------------


def written(asked: object, dice: random.Random) -> str:
    """A text that the grammar lets through, drawn token by token by the real matcher."""
    assert isinstance(asked, dict)
    matcher = GRAMMARS.compile(Grammar(asked["kind"], asked["source"])).matcher()
    ids = walk(matcher, dice, most=dice.choice((3, 10, 700)))
    return TOKENIZER.decode([each for each in ids if each != END])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("task", "problem", "thoughts"),
    [
        (FREE, "Why is the sky blue?", ["Light is scattered."]),
        (GAME24, "4 6 8 12", ["4 + 8 = 12 (left: 6 12 12)"]),
        (find_task(str(LADDER)), "cold to warm", ["cord"]),
    ],
    ids=["free", "game24", "ladder"],
)
def test_a_text_that_a_grammar_lets_through_is_read_whole_or_cut_off(
    task: Task, problem: str, thoughts: list[str], seed: int
) -> None:
    dice = random.Random(seed)
    for before in ([], thoughts):
        thought = task.read_thought(written(task.thought_grammar(problem, before), dice))
        assert thought
        assert len(thought.splitlines()) == 1
        assert task.state_of(problem, [*before, thought]) in ("open", "dead", "solved")
        assert task.key_of(problem, [*before, thought])
        proposed = written(task.proposals_grammar(problem, before, 3), dice)
        read = task.read_proposals(proposed, 3)
        assert len(read) == len([each for each in proposed.splitlines() if each[3:].strip()])
        assert all(proposed.count(each) for each in read)
    value = written(task.value_grammar(), dice)
    assert task.read_value(value) in task.values.values()
    vote = written(task.vote_grammar(12), dice)
    assert task.read_vote(vote, 12) == int(vote)


def lets_through(asked: object, text: str) -> bool:
    """Whether the real matcher takes the text, as a whole answer."""
    assert isinstance(asked, dict)
    matcher = GRAMMARS.compile(Grammar(asked["kind"], asked["source"])).matcher()
    return matcher.take(TOKENIZER.encode_text(text)) and matcher.is_accepting


@pytest.mark.parametrize("text", ["a", "Ein Satz. Und 2 + 2 = 4?", "日本 — 👍", "a\n", "a\n\n"])
def test_a_thought_may_be_a_line(text: str) -> None:
    assert lets_through(FREE.thought_grammar("p", []), text)
    assert FREE.read_thought(text) == text.strip()


@pytest.mark.parametrize(
    "text",
    [*("", " ", "\n", " a", "\ta", "a\nb", "a\n\n\n", "a\tb", "a\rb"), "a" * 401]
    + [f"a{hidden}b" for hidden in "\0\x1b\x7f\x85\u2028\u2029\u202e\u2066"],
)
def test_a_thought_may_be_nothing_else(text: str) -> None:
    assert not lets_through(FREE.thought_grammar("p", []), text)


@pytest.mark.parametrize(
    "text", ["Begin early.", "Wait 3.5 hours!", "Warum nicht?", "明日、泳ぐ。", "Say: “no.”!"]
)
def test_a_proposal_may_be_a_sentence(text: str) -> None:
    assert lets_through(FREE.proposals_grammar("p", [], 2), f"1. {text}\n2. {text}")


@pytest.mark.parametrize(
    "text", ["2. Wait.", "2: wait.", "- wait.", "* wait.", "Wait. 2. Go.", "Wait", ".", " Wait."]
)
def test_a_proposal_is_no_list_of_its_own(text: str) -> None:
    assert not lets_through(FREE.proposals_grammar("p", [], 1), f"1. {text}")


def test_the_examples_of_the_prompts_are_of_the_grammars() -> None:
    steps = ["2 * 4 = 8 (left: 6 8 10)", "6 + 10 = 16 (left: 8 16)", "8 + 16 = 24 (left: 24)"]
    for number, step in enumerate(steps):
        assert step in GAME24.opening
        assert lets_through(GAME24.thought_grammar("2 4 6 10", steps[:number]), step)
    assert not lets_through(GAME24.thought_grammar("2 4 6 10", []), steps[1])
    listed = f"1. {steps[0]}\n2. 10 - 4 = 6 (left: 2 6 6)"
    assert lets_through(GAME24.proposals_grammar("2 4 6 10", [], 2), listed)
    words = re.findall(r"\(left: .*\) (\w+)", GAME24.value)
    assert set(words) == set(GAME24.values)
    assert all(lets_through(GAME24.value_grammar(), word) for word in words)


def test_a_whole_list_of_proposals_has_as_many_as_were_asked_for() -> None:
    for task, problem in ((FREE, "p"), (GAME24, "4 6 8 12")):
        matcher = GRAMMARS.compile(
            Grammar(**dict(task.proposals_grammar(problem, [], 4)))
        ).matcher()
        ids = walk(matcher, random.Random(1), most=5000)
        assert ids[-1] == END
        assert len(task.read_proposals(TOKENIZER.decode(ids[:-1]), 4)) == 4


@settings(deadline=None)
@given(st.from_regex(re.compile(line(40)), fullmatch=True))
def test_a_line_is_one_thought(text: str) -> None:
    thought = FREE.read_thought(text + "\n\n")
    assert thought
    assert thought == text.rstrip()
    assert thought.splitlines() == [thought]
    assert FREE.read_proposals(f"1. {text}\n2. {text}", 2) == [thought] * 2


def test_a_task_with_its_own_prompt_has_lines_proposed() -> None:
    haiku = Task("haiku", propose="List {count} lines.")
    assert lets_through(haiku.proposals_grammar("p", [], 2), "1. old pond\n2. 5 frogs leap. Splash")


@settings(deadline=None)
@given(st.from_regex(re.compile(sentence(40)), fullmatch=True))
def test_a_sentence_is_one_proposal(text: str) -> None:
    assert FREE.read_proposals(f"1. {text}\n2. {text}", 2) == [text] * 2


@given(st.text(), st.integers(1, 30))
@example("", 1)
@example("99999999999999999999", 3)
@settings(max_examples=300, deadline=None)
def test_reading_never_fails(text: str, count: int) -> None:
    for task in BUILT_IN.values():
        assert isinstance(task.read_thought(text), str)
        assert len(task.read_proposals(text, count)) <= count
        assert task.read_value(text) in task.values.values()
        assert 1 <= task.read_vote(text, count) <= count
        assert task.state_of("4 6 8 12", [text]) in ("open", "dead")


def test_of_a_rating_that_was_cut_off_it_is_what_it_may_have_been() -> None:
    assert GAME24.read_value("sure") == 20
    assert GAME24.read_value("impo") == 0.001
    assert GAME24.read_value("It is likely.") == 1
    assert GAME24.read_value("no idea") == 0.001
    assert FREE.read_value("I say 9 of 9") == 9
    assert FREE.read_value("1") == 1


def test_the_most_tokens_of_an_answer_are_enough_for_any_tokenizer() -> None:
    assert FREE.value_tokens == 2
    assert GAME24.value_tokens == len("impossible") + 1
    assert FREE.vote_tokens(9) == 2
    assert FREE.vote_tokens(10) == 3


# -- which task ------------------------------------------------------------------------------------


def test_a_task_is_one_of_ours_or_a_file(tmp_path: Path) -> None:
    assert find_task("game24") is GAME24
    assert find_task("game24").ref == "game24"
    path = task_in(tmp_path, "task = Task('mine', depth=2)")
    found = find_task(str(path))
    assert (found.name, found.depth, found.ref) == ("mine", 2, str(path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("game42", "no task 'game42': did you mean game24? There are free, game24; or a"),
        ("sudoku", "no task 'sudoku': there are free, game24; or a Python file"),
        ("./mine.py", "no file ./mine.py here: --task is a Python file, or one of free, game24"),
        ("/", "--task / is a folder"),
    ],
)
def test_a_task_that_is_not_there_names_those_that_are(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        find_task(name)


def test_a_file_without_a_task_says_what_it_calls_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no task = Task\(\.\.\.\)$"):
        find_task(str(task_in(tmp_path, "x = 1")))
    with pytest.raises(UsageError, match="it calls it mine"):
        find_task(str(task_in(tmp_path, "mine = Task('t')")))


def test_what_fails_in_a_task_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = task_in(
        tmp_path,
        "def check(problem, thoughts):\n"
        "    return ['open'][int(problem)]\n"
        "task = Task('t', check=check, final=lambda p, t: 1 / 0)",
    )
    task = find_task(str(path))
    assert task.state_of("0", ["a"]) == "open"
    with pytest.raises(RadchatError, match=re.escape(f"{path}:3: IndexError")):
        task.state_of("1", ["a"])
    with pytest.raises(RadchatError, match=re.escape(f"{path}:4: ZeroDivisionError")):
        task.answer_grammar("0", ["a"])
    for text in ("task = Task(", "import sys; sys.exit(3)", "raise KeyError('x')"):
        path = task_in(tmp_path, text)
        with pytest.raises(RadchatError, match=re.escape(f"{path}:2: ")):
            find_task(str(path))


def test_what_a_checker_may_say_is_one_of_three(tmp_path: Path) -> None:
    path = task_in(tmp_path, "task = Task('t', check=lambda p, t: True)")
    with pytest.raises(RadchatError, match=r"check gave True: want open, dead or solved"):
        find_task(str(path)).state_of("p", ["a"])


def test_the_manual_has_every_part_of_a_task_and_its_example_is_one(tmp_path: Path) -> None:
    page = (LADDER.parents[1] / "docs" / "search.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Tasks") : page.index("\n## The budget")]
    rows = " ".join(re.findall(r"^\| (`.+?) \|", section, re.MULTILINE))
    named = {each.name for each in fields(Task)} - {"name", "source"}
    assert named == set(re.findall(r"`(\w+)`", rows))
    (code,) = re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    path = tmp_path / "haiku.py"
    path.write_text(code, encoding="utf-8")
    task = find_task(str(path))
    assert task.first_text("the sea") == "Write line 1 of a haiku about the sea."


# -- the example -----------------------------------------------------------------------------------


def test_the_example_finds_its_ladders() -> None:
    task = find_task(str(LADDER))
    ladder = ["cord", "card", "ward", "warm"]
    for length in range(1, 4):
        assert task.state_of("cold to warm", ladder[:length]) == "open"
        assert ladder[length] in json.loads(
            str(task.thought_grammar("cold to warm", ladder[:length])["source"])
        )
    assert task.state_of("cold to warm", ladder) == "solved"
    assert task.state_of("cold to warm", ["core", "cold"]) == "dead"
    assert task.answer_grammar("cold to warm", ladder) == choices(
        ["cold - cord - card - ward - warm"]
    )
    assert task.answer_grammar("cold to warm", ladder[:2]) is None
    with pytest.raises(UsageError, match='word ladder: want two words that it knows, as "cold'):
        task.check_problem("cold to zebra")
    task.check_problem("cold to warm")


def test_a_grammar_of_its_own_is_numbered_too() -> None:
    task = Task("t", thought=regex("[a-c]{2}"))
    assert task.proposals_grammar("p", [], 2) == regex(r"1\. (?:[a-c]{2})\n2\. (?:[a-c]{2})")
    lark = {"kind": "lark", "source": 'start: "a"'}
    assert "lark" not in str(Task("t", thought=lark).proposals_grammar("p", [], 2))
