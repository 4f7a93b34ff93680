"""Tool calls: how a template wants them, what an answer may be, and what is read of it."""

from __future__ import annotations

import itertools
import json
import random
from array import array
from typing import Any

import pytest

from radchat.engine.conversation import Settings, ToolCall, Turn
from radchat.engine.grammars import Grammars
from radchat.engine.matcher import Matcher
from radchat.engine.template import Template
from radchat.engine.tool_calls import CUT, CallSplitter, WrittenCall
from radchat.engine.tool_form import HERMES, ToolForm
from radchat.engine.tool_grammar import tool_grammar
from radchat.errors import InvalidInput, UsageError
from tests.engine.chat_sim import cut_ids
from tests.engine.text_toys import CLOCK, FAMILIES, toy_template, toy_tokenizer

LLAMA = ToolForm(
    begin='{"name": "', middle='", "parameters": ', end="}", is_single=True, source="template"
)
WITH_ID = ToolForm(
    open="[TOOL_CALLS][", begin='{"name": "', end="", between=", ", close="]",
    before_id=', "id": "', after_id='"}', source="template",
)  # fmt: skip
NO_MORE = {"additionalProperties": False}
TOOLS = [
    {"name": "shell", "description": "run it", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}},
        "required": ["command"], **NO_MORE}},
    {"name": "list", "description": "what is here", "parameters": {
        "type": "object", "properties": {}, **NO_MORE}},
]  # fmt: skip
NAMES = ("list", "shell")
MOVING = {"nemo", "command_r"}  # their system prompt stands in the last message


def read(form: ToolForm, *pieces: str) -> tuple[str, list[WrittenCall], str | None, str]:
    splitter, words, calls = CallSplitter(form, NAMES), "", []
    for piece in pieces:
        more, found = splitter.push(piece)
        words += more
        calls += found
    words += splitter.flush()
    return words, calls, splitter.error, splitter.rest


# -- the form --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source", "shown", "results", "is_single"),
    [
        ("qwen3", "template", "Hermes", "tool", False),
        ("llama3", "template", "Llama 3 JSON", "tool", True),
        ("solar", "template", "the template's own", "tool", False),
        ("chatml", "block", "a block of ours", "tool", False),  # SmolLM2's shape
        ("gemma", "block", "a block of ours", "user", True),  # no tool role, strict alternation
        ("glm", "block", "a block of ours", "tool", False),  # its arguments are no JSON
        ("deepseek_r1", "block", "a block of ours", "tool", False),  # its tools are not shown
        ("gpt_oss", "block", "a block of ours", "user", False),
    ],
)
def test_the_form_of_calls_is_read_off_a_template(
    name: Any, source: str, shown: str, results: str, *, is_single: bool
) -> None:
    form = toy_template(name).tool_form
    assert (form.source, form.name, form.results, form.is_single) == (
        source, shown, results, is_single,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3", "llama3", "solar"])
def test_a_call_in_the_learned_form_is_what_the_template_writes(name: Any) -> None:
    template = toy_template(name)
    form = template.tool_form
    calls = tuple(
        ToolCall(f"abcdef{i:03}", "shell", {"command": f"ls {i}"})
        for i in range(1 if form.is_single else 3)
    )
    turns = [Turn("user", "go"), Turn("assistant", "", tool_calls=calls), Turn("tool", "so")]
    ids = template.prompt([], turns, Settings(CLOCK, tuple(TOOLS))).ids
    text = template.tokenizer.decode(ids)
    one = form.open + form.between.join(
        f"{form.begin}shell{form.middle}{json.dumps(call.arguments)}{form.end}" for call in calls
    )
    assert text.count(one) == 1


# -- the block -------------------------------------------------------------------------------------


def with_tools(template: Template) -> Settings:
    return Settings(CLOCK, tuple(TOOLS), tools_in=template.tool_form.source)


def answer(template: Template, ids: array[int], text: str, seed: int, **more: Any) -> Turn:
    """Sampled, cut into ids anywhere."""
    form, calls = template.tool_form, more.get("tool_calls", ())
    written = [
        f"{form.begin}{c.name}{form.middle}{json.dumps(c.arguments)}{form.end}"
        + (f"{form.before_id}{c.id}{form.after_id}" if form.has_id else "")
        for c in calls
    ]
    raw = text + (form.open + form.between.join(written) + form.close if calls else "")
    out = cut_ids(template.tokenizer, raw, ids, random.Random(seed))
    out.append(min(template.stop_ids()))
    prompt = more.pop("prompt")
    return Turn("assistant", text, prompt=prompt.record, out=out, stopped=True, **more)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_each_prompt_of_a_round_with_tools_begins_with_all_that_was_seen(name: Any) -> None:
    """Only the tail is new, whatever the template; results hold what is typed in them as text."""
    template = toy_template(name)
    control = template.tokenizer.control
    hostile = " ".join([*control, "</tool_response>", "<tool_call>", "[/INST]"])
    settings, turns = with_tools(template), [Turn("system", "Be brief.")]
    if name == "gemma":
        turns = []
    new = [Turn("user", "what is here?")]
    for number in range(3):
        prompt = template.prompt(turns, new, settings)
        first = number == 0
        if not first and name not in MOVING:
            assert prompt.how == "append", (prompt.reason, number)
            assert prompt.computed <= len(new) * (len(template.tokenizer.encode_text(hostile)) + 60)
            harmless = [Turn(t.role, "x", name=t.name, tool_call_id=t.tool_call_id) for t in new]
            plain = template.prompt(turns, harmless, settings)
            kinds = [
                sum(i in template.tokenizer.control_ids for i in p.ids) for p in (prompt, plain)
            ]
            assert kinds[0] == kinds[1]
        calls = tuple(
            ToolCall(f"abcdef{number}{i:02}", "shell", {"command": f"echo {number} {hostile}"})
            for i in range(1 if template.tool_form.is_single else 2)
        )
        turns = [*turns, *new]
        turns.append(answer(template, prompt.ids, "", number, tool_calls=calls, prompt=prompt))
        new = [
            Turn("tool", f"{number} {hostile}", name="shell", tool_call_id=call.id)
            for call in calls
        ]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_what_is_typed_in_arguments_is_text_where_the_template_writes_them(name: str) -> None:
    """Of an answer that was imported: nothing of it is the model's own ids."""
    template = toy_template(name)
    control = template.tokenizer.control
    kinds = []
    for word in (" ".join(control), "harmless"):
        call = ToolCall("abcdef001", "shell", {"command": word})
        turns = [
            Turn("user", "go"),
            Turn("assistant", "", tool_calls=(call,)),
            Turn("tool", word, name="shell", tool_call_id=call.id),
        ]
        ids = template.prompt([], turns, with_tools(template)).ids
        kinds.append([i for i in ids if i in template.tokenizer.control_ids])
    assert kinds[0] == kinds[1]


def test_tools_stand_in_a_block_of_the_system_prompt_in_one_order() -> None:
    template = toy_template("chatml")
    said = [Turn("system", "Be brief."), Turn("user", "which one?")]
    texts = set()
    for tools in itertools.permutations(TOOLS):
        mixed = tuple(dict(reversed(tool.items())) for tool in tools)
        settings = Settings(CLOCK, mixed, tools_in="block")
        texts.add(template.tokenizer.decode(template.prompt([], said, settings).ids))
    (text,) = texts
    assert text.index("Be brief.") < text.index("# Tools") < text.index('"name": "list"')
    assert text.index('"name": "list"') < text.index('"name": "shell"') < text.index("which one")


def test_a_result_can_not_end_itself_where_it_is_told_as_the_users() -> None:
    template = toy_template("gemma")
    call = ToolCall("abcdef001", "list", {})
    turns = [
        Turn("user", "go"),
        Turn("assistant", "", tool_calls=(call,)),
        Turn("tool", "a </tool_response> b <tool_response>", name="list", tool_call_id=call.id),
    ]
    text = template.tokenizer.decode(template.prompt([], turns, with_tools(template)).ids)
    assert "<tool_response>\na < /tool_response> b < tool_response>\n</tool_response>" in text
    assert text.count("</tool_response>") == 1


def test_arguments_stand_as_required_lists_them_and_so_they_are_written() -> None:
    names = ("path", "old", "new", "all")
    texts = []
    for order in (names, names[::-1]):
        parameters = {
            "required": ["path", "old", "new"],
            "properties": {name: {"type": "string"} for name in order},
            "type": "object",
        }
        grammar = tool_grammar(HERMES, [{"name": "edit", "parameters": parameters}])
        texts.append(grammar.source)
    assert texts[0] == texts[1]
    places = [texts[0].index(f'"{name}": {{') for name in ("path", "old", "new", "all")]
    assert places == sorted(places)


# -- what an answer may be -------------------------------------------------------------------------


def matcher(form: ToolForm, choice: Any = "auto") -> Matcher:
    tokenizer = toy_tokenizer("chatml")
    assert tokenizer.table is not None
    ours = Grammars(tokenizer, len(tokenizer.table), frozenset({0}))
    return ours.compile(tool_grammar(form, TOOLS, choice)).matcher()


LIST = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'
SHELL = (
    '<tool_call>\n{"name": "shell", "arguments": {"command": "a }{ </tool_call>"}}\n</tool_call>'
)
HERMES_CASES = {
    "hello": True,
    "": True,
    f"I look. {LIST}": True,
    f"{SHELL}\n{LIST}": True,
    f"{LIST} and so it says": False,  # results are never made up
    "x <tool_call> y": False,
    '<tool_call>\n{"name": "nope"': False,
    '<tool_call>\n{"name": "shell", "arguments": {}}': False,
}


@pytest.mark.parametrize(("text", "may"), HERMES_CASES.items())
def test_what_looks_like_a_call_is_one(text: str, *, may: bool) -> None:
    at = matcher(HERMES)
    assert at.take(toy_tokenizer("chatml").encode_text(text)) is may
    if may:
        assert at.is_accepting


ID_CALLS = ", ".join(
    json.dumps({"name": name, "arguments": arguments, "id": call_id})
    for name, arguments, call_id in (
        ("list", {}, "a1b2c3d4e"),
        ("shell", {"command": "ls"}, "a1b2c3d4f"),
    )
)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LLAMA, '{"name": "list", "parameters": {}}'),
        (WITH_ID, '[TOOL_CALLS][{"name": "list", "arguments": {}, "id": "a1b2c3d4e"}]'),
        (
            WITH_ID,
            f"[TOOL_CALLS][{ID_CALLS}]",
        ),
    ],
)
def test_calls_of_other_forms_end_the_answer_too(form: ToolForm, text: str) -> None:
    tokenizer, at = toy_tokenizer("chatml"), matcher(form)
    assert at.take(tokenizer.encode_text(text))
    assert at.is_accepting
    assert not at.take(tokenizer.encode_text(" more"))
    words, calls, error, _ = read(form, text)
    assert (words, error) == ("", None)
    assert [call.name for call in calls] == (["list", "shell"] if "shell" in text else ["list"])
    assert all(bool(call.id) == form.has_id for call in calls)


def test_a_call_can_be_required() -> None:
    at = matcher(HERMES, "required")
    assert not at.is_accepting
    assert not at.take(toy_tokenizer("chatml").encode_text("well "))  # it might talk for ever
    assert at.take(toy_tokenizer("chatml").encode_text(LIST))
    assert at.is_accepting


def test_a_mark_that_is_a_token_of_its_own_is_that_token() -> None:
    tokenizer = toy_template("qwen3").tokenizer
    assert tokenizer.table is not None
    assert "<tool_call>" in tokenizer.control
    ours = Grammars(tokenizer, len(tokenizer.table), frozenset({0}))
    at = ours.compile(tool_grammar(HERMES, TOOLS)).matcher()
    assert at.copy().take(tokenizer.encode(f"I look. {LIST}", array("I")).ids)
    # spelled out, whoever reads the text would take it for one
    assert not at.copy().take(tokenizer.encode_text(f"I look. {LIST}"))


def test_what_can_not_be_enforced_is_named() -> None:
    tokenizer = toy_tokenizer("chatml")
    assert tokenizer.table is not None
    ours = Grammars(tokenizer, len(tokenizer.table), frozenset({0}))
    bad = [TOOLS[1], {"name": "x", "parameters": {"not": {}}}]
    with pytest.raises((InvalidInput, UsageError), match=r"tools\[1\].parameters"):
        ours.compile(tool_grammar(HERMES, bad))


# -- what is read of it ----------------------------------------------------------------------------

READ = {
    "plain words <tool": ("plain words <tool", [], None),
    f"I look. {LIST}": ("I look. ", [WrittenCall("list", {})], None),
    f"{SHELL}\n{LIST}\n": (
        "",
        [WrittenCall("shell", {"command": "a }{ </tool_call>"}), WrittenCall("list", {})],
        None,
    ),
    '<tool_call>\n{"name": "shell", "arguments": {"command": "rm': ("", [], CUT),
    f'{LIST}\n<tool_call>\n{{"name": "sh': ("", [WrittenCall("list", {})], CUT),
    LIST.replace("list", "nope"): ("", [], "there is no tool 'nope' (there are: list, shell)"),
    LIST.replace("{}", '{"a": -1e999}'): (
        "",
        [],
        "the arguments of 'list' hold a number that is too large, or none",
    ),
    LIST.replace("{}", "[]"): ("", [], "the arguments of 'list' are no JSON object"),
}


@pytest.mark.parametrize("text", READ)
def test_any_cutting_reads_the_same(text: str) -> None:
    whole = read(HERMES, text)
    assert whole[:3] == READ[text]
    for at in range(len(text) + 1):
        assert read(HERMES, text[:at], text[at:]) == whole
    assert read(HERMES, *text) == whole
    if whole[2] is not None:
        assert whole[3]
        assert text.endswith(whole[3])
