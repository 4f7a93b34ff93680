from dataclasses import replace
from functools import cache

import pytest

from radchat.engine.conversation import Turn
from radchat.engine.reasoning import ReasoningSplitter
from radchat.engine.template import Template
from radchat.engine.thinking import LEVELS
from radchat.errors import InvalidInput
from tests.engine.text_toys import FAMILIES, plain_settings, toy_template, toy_tokenizer


@cache
def own_switches(source: str) -> Template:
    """ChatML with a line of the template's own before the opening."""
    opening = "{% if add_generation_prompt %}"
    assert opening in FAMILIES["chatml"].source
    text = FAMILIES["chatml"].source.replace(opening, source + opening)
    return Template(text, toy_tokenizer("chatml"))


@pytest.mark.parametrize("name", ["qwen3", "glm"])
def test_a_template_with_a_switch_is_told_by_its_own_name(name: str) -> None:
    template = toy_template(name)
    on, off = template.thinking("on"), template.thinking("off")
    assert on == ({template.facts.think_switch: True}, None)
    assert off == ({template.facts.think_switch: False}, None)
    texts = [
        template.tokenizer.decode(
            template.prompt([], [Turn("user", "hi")], plain_settings(switches=switches)).ids
        )
        for switches, _ in (on, off)
    ]
    assert texts[0] != texts[1]


def test_another_name_of_the_switch_is_used_as_it_is() -> None:
    template = own_switches("{% if thinking is defined and thinking %}[deep]{% endif %}")
    assert template.thinking("on") == ({"thinking": True}, None)
    switches, notice = template.thinking("medium")
    assert switches == {"thinking": True}
    assert notice == "this model's reasoning is on or off: medium means on"


def test_levels_go_to_a_template_that_has_an_effort_switch() -> None:
    template = toy_template("gpt_oss")
    for level in ("low", "medium", "high"):
        assert template.thinking(level) == ({"reasoning_effort": level}, None)
    assert template.thinking("on") == ({}, None)
    switches, notice = template.thinking("off")
    assert switches == {"reasoning_effort": "low"}
    assert notice is not None
    assert "can't be switched off" in notice


def test_a_template_with_both_switches_is_switched_on_with_the_level() -> None:
    template = own_switches("{% if thinking %}[{{ effort }}]{% else %}[-]{% endif %}{{ effort }}")
    assert template.thinking("high") == ({"thinking": True, "effort": "high"}, None)
    assert template.thinking("off") == ({"thinking": False}, None)


def test_a_model_without_reasoning_says_so_and_is_given_no_switch() -> None:
    template = toy_template("chatml")
    for level in LEVELS[1:]:
        assert template.thinking(level) == ({}, "this model has no reasoning to switch")
    assert template.thinking("off") == ({}, None)  # nothing was asked that is not so


def test_a_model_that_always_reasons_says_that_it_has_no_switch() -> None:
    for level in ("off", "high"):
        switches, notice = toy_template("deepseek_r1").thinking(level)
        assert switches == {}
        assert notice == "this model has no switch for its reasoning"


def test_a_switch_that_changes_nothing_is_no_switch() -> None:
    template = own_switches("{% set unused = thinking %}")
    assert template.facts.think_switch == "thinking"
    assert template.thinking("on") == ({}, "this model has no reasoning to switch")


def test_another_word_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="think: want off, on, low, medium, high") as caught:
        toy_template("qwen3").thinking("hard")
    assert caught.value.data["field"] == "think"


def test_facts_from_a_file_switch_alike() -> None:
    template = toy_template("qwen3")
    facts = type(template.facts).from_json(template.facts.to_json())
    again = Template(template.source, template.tokenizer, facts=replace(facts))
    assert again.thinking("off") == template.thinking("off")


SAID = "<|channel|>final<|message|>"
WHY = "<|channel|>analysis<|message|>why<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "split"),
    [
        (f"{SAID}answer", ("", "answer")),  # it did not think
        (f"{WHY}{SAID}answer", ("why", "answer")),
        ("answer", ("", "answer")),
        (f"answer {SAID}", ("", f"answer {SAID}")),  # only at the beginning
        (SAID[:9], ("", SAID[:9])),
        (SAID, ("", "")),
    ],
)
def test_the_mark_before_the_words_for_the_user_is_no_word(
    text: str, split: tuple[str, str]
) -> None:
    """gpt-oss writes its channel first, also where it does not think; however the text is cut."""
    for size in (1, 2, 5, len(text)):
        splitter = toy_template("gpt_oss").splitter(opened=False)
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        parts = [*(splitter.push(piece) for piece in pieces), splitter.flush()]
        assert tuple(map("".join, zip(*parts, strict=True))) == split


def test_a_mark_after_the_reasoning_belongs_to_neither() -> None:
    for size in (1, 3, 40):
        text = "<r>why</r>\n<say>\nhello"
        splitter = ReasoningSplitter("<r>", "</r>", said_mark="<say>")
        parts = [splitter.push(text[i : i + size]) for i in range(0, len(text), size)]
        parts.append(splitter.flush())
        assert tuple(map("".join, zip(*parts, strict=True))) == ("why", "\nhello")
