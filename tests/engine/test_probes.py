import json
from typing import Any

import pytest

from radchat.engine.cuts import common_text
from radchat.engine.facts import Facts
from radchat.engine.jinja_env import CompiledTemplate
from radchat.engine.probes import probe
from radchat.engine.template import Template
from radchat.engine.tokenizer import Tokenizer
from radchat.errors import InvalidInput, ModelBroken
from tests.engine.text_toys import CLOCK, FAMILIES, tokenizer_json, toy_template, toy_tokenizer


def facts(name: str) -> Facts:
    return toy_template(name).facts


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_what_is_known_of_a_template_survives_a_json_file(name: Any) -> None:
    template = toy_template(name)
    again = Facts.from_json(json.loads(json.dumps(template.describe())))
    assert again == template.facts
    family = FAMILIES[name]
    constants = {"bos_token": family.bos, "eos_token": family.eos}
    other = Template(family.source, template.tokenizer, constants=constants, facts=again)
    assert other.key == template.key


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("nemo", {"system": "system", "plain+tools": "tools", "system+tools": "system and tools"}),
        ("command_r", dict.fromkeys(
            ("plain", "system", "plain+tools", "system+tools"), "trailing instructions")),
        *((name, {}) for name in sorted(set(FAMILIES) - {"nemo", "command_r"})),
    ],
)  # fmt: skip
def test_moving_content_is_told_from_drift(name: Any, moves: Any) -> None:
    assert facts(name).moves == moves


@pytest.mark.parametrize(
    ("name", "form", "marks", "drops"),
    [
        ("chatml", "none", ("", ""), ()),
        ("qwen3", "field", ("<think>", "</think>"), ("next user", "a round later")),
        ("deepseek_r1", "raw", ("<think>", "</think>"),
         ("tool result", "next user", "a round later")),
        ("lfm", "raw", ("<think>", "</think>"), ("a round later",)),
        ("seed_oss", "field", ("<seed:think>", "</seed:think>"), ()),
        ("glm", "field", ("<think>", "</think>"), ("next user", "a round later")),
        ("gpt_oss", "field", ("<|channel|>analysis<|message|>",
         "<|end|><|start|>assistant<|channel|>final<|message|>"), ("next user", "a round later")),
    ],
)  # fmt: skip
def test_reasoning_its_marks_and_when_it_is_dropped(
    name: Any, form: Any, marks: Any, drops: Any
) -> None:
    found = facts(name)
    assert found.form.reasoning == form
    assert (found.form.open_mark, found.form.close_mark) == marks
    assert found.drops == drops


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("chatml", {"<|im_end|>"}),
        ("gpt_oss", {"<|return|>", "<|end|>", "<|call|>"}),
        ("glm", {"<|user|>", "<|observation|>"}),
        ("gemma", {"<end_of_turn>"}),
        ("solar", {"<|end|>"}),
    ],
)
def test_stop_ids_are_the_first_control_token_of_each_closing(name: Any, names: Any) -> None:
    assert set(facts(name).stops) == names
    template = toy_template(name)
    control = template.tokenizer.control
    assert template.stop_ids() >= {control[token] for token in names}


@pytest.mark.parametrize(
    ("name", "field", "want"),
    [
        ("llama3", "clock", "always"),
        ("gpt_oss", "clock", "always"),
        ("qwen3", "clock", "never"),
        ("llama3", "trims", ("system", "user", "assistant")),
        ("seed_oss", "trims", ("assistant",)),
        ("chatml", "tools", "dropped"),
        ("qwen3", "tools", "shown"),
        ("deepseek_r1", "tools", "dropped"),
        ("llama3", "two_calls", "refused"),
        ("gpt_oss", "two_calls", "dropped"),
        ("chatml", "two_calls", "raw"),
        ("solar", "mutable", True),
        ("qwen3", "mutable", False),
        ("glm", "keep_switch", "clear_thinking"),
        ("lfm", "keep_switch", "keep_past_thinking"),
        ("qwen3", "think_switch", "enable_thinking"),
        ("qwen3", "switches", {"enable_thinking": "opening"}),
        ("gpt_oss", "switches", {"reasoning_effort": "conversation"}),
    ],
)
def test_a_template_is_found_out(name: Any, field: Any, want: Any) -> None:
    assert getattr(facts(name), field) == want


@pytest.mark.parametrize(
    ("name", "field", "want"),
    [
        ("nemo", "call_ids", "nine"),
        ("qwen3", "call_ids", "any"),
        ("command_r", "no_tools", "empty"),
        ("chatml", "calls", "raw"),
        ("qwen3", "call_ending", '"}}\n</tool_call>'),
        ("solar", "call_ending", '"}</call>'),
        ("glm", "call_ending", "</arg_value></tool_call>"),
        ("nemo", "call_ending", ""),
    ],
)
def test_the_form_a_template_wants(name: Any, field: Any, want: Any) -> None:
    assert getattr(facts(name).form, field) == want


def test_arguments_are_given_as_a_string_where_a_template_wants_one() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.arguments }}{% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found = probe(source, toy_tokenizer("chatml"))
    assert (found.form.calls, found.form.arguments) == ("shown", "string")


def test_a_date_in_the_default_system_prompt_only_is_told_apart() -> None:
    source = (
        "{% if messages[0].role != 'system' %}It is {{ strftime_now('%Y') }}.{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert probe(source, toy_tokenizer("chatml")).clock == "default system prompt"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{{ unknown.name }}", "{% for %}", "{{ 1 + 'a' }}"]
)
def test_a_template_that_cannot_render_one_message_is_a_model_without_chat(source: Any) -> None:
    with pytest.raises(ModelBroken, match="template"):
        probe(source, toy_tokenizer("chatml"))


def test_unknown_marks_of_a_reasoning_field_are_learned() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.reasoning_content %}((muse\n{{ m.reasoning_content }}\nmuse)){% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    form = probe(source, toy_tokenizer("chatml")).form
    assert (form.reasoning, form.open_mark, form.close_mark) == ("field", "((muse", "muse))")


# -- the environment ---------------------------------------------------------------------------


def rendered(source: str, **options: Any) -> str:
    values = {"tools": None, "opening": True, "clock": CLOCK, **options}
    return CompiledTemplate(source).render([{"role": "user", "content": "é<b>"}], **values)


def test_json_is_plain_white_space_is_trimmed_and_loops_can_break() -> None:
    assert rendered("{{ messages[0] | tojson }}") == '{"role": "user", "content": "é<b>"}'
    assert rendered("{% for i in [1, 2, 3] %}\n  {% if i == 2 %}{% break %}{% endif %}\n{{ i }}"
                    "{% endfor %}") == "1"  # fmt: skip
    assert rendered("{% generation %}a{{ 1 }}{% endgeneration %}") == "a1"
    assert rendered("{{ strftime_now('%H:%M') }}") == "07:08"


def test_a_template_reaches_nothing_of_ours() -> None:
    for source in (
        "{{ messages.__class__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ strftime_now.__self__.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
    ):
        with pytest.raises(InvalidInput, match="chat template"):
            rendered(source)
    mine = [{"role": "user", "content": "a"}]
    CompiledTemplate("{% set _ = messages.append(1) %}", mutable=True).render(
        mine, tools=None, opening=True, clock=CLOCK
    )
    assert mine == [{"role": "user", "content": "a"}]


def test_our_environment_renders_what_the_model_makers_library_renders() -> None:
    from transformers.utils import chat_template_utils

    messages: list[dict[str, Any]] = [
        {"role": "user", "content": " a\n"},
        {"role": "assistant", "content": "b é <c>", "tool_calls": []},
        {"role": "user", "content": "d"},
    ]
    for name, family in FAMILIES.items():
        if "strftime_now" in family.source:
            continue
        constants = {"bos_token": family.bos, "eos_token": family.eos}
        theirs: Any = chat_template_utils.render_jinja_template
        want = theirs(
            [messages],
            chat_template=family.source,
            add_generation_prompt=True,
            tools=[],
            **constants,
        )[0]
        ours = CompiledTemplate(family.source, constants, mutable=True)
        got = ours.render(messages, tools=[], opening=True, clock=CLOCK)
        assert [got] == want, name


def test_the_common_beginning_is_found_by_halving() -> None:
    for a, b, want in (("", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("ab", "abc", 2),
                       ("x", "y", 0), ("a" * 999 + "b", "a" * 999 + "c", 999)):  # fmt: skip
        assert common_text(a, b) == common_text(b, a) == want


def test_probing_with_any_layout_of_tokenizer_finds_the_same() -> None:
    family = FAMILIES["qwen3"]
    want = facts("qwen3")
    for layout in ("llama3", "metaspace-first", "rstrip"):
        tokenizer = Tokenizer.from_json(
            tokenizer_json(layout, family.control, family.plain), family.source
        )
        assert probe(family.source, tokenizer, eos_names=[family.eos]) == want
