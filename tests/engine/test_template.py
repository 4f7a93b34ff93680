import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.engine.conversation import Prompt, Turn
from tests.engine.chat_sim import (
    Chat,
    control_count,
    direct,
    last_sampled,
    make_tools,
    path_ids,
)
from tests.engine.text_toys import (
    FAMILIES,
    LAYOUTS,
    plain_settings,
    toy_template,
)

WORD = re.compile(r"w\d+x\d+q")
TOOL_WORD = re.compile(r"t\d+t")
MOVING = {"nemo", "command_r"}
PROPERTY = settings(max_examples=12, derandomize=True, deadline=None, database=None)
SYSTEMLESS = {"gemma"}


def check_prompt(chat: Chat, turns: list[Turn], prompt: Prompt) -> None:
    """What holds for every prompt of every conversation."""
    assert sum(prompt.shares) + prompt.rebuilt == len(prompt.tail)
    if prompt.base is None:
        assert prompt.kept == 0
        assert prompt.ids == prompt.tail
    else:
        base = turns[prompt.base]
        assert base.prompt is not None
        assert base.out is not None
        assert prompt.ids == (base.prompt.ids + base.out)[: prompt.kept] + prompt.tail
        assert not prompt.base_is_prompt or prompt.kept <= len(base.prompt.ids)
    before = last_sampled(turns)
    if prompt.how == "append":
        assert before is not None
        old = path_ids(before)
        assert prompt.ids[: len(old)] == old
        assert prompt.rebuilt == 0
    text = chat.template.tokenizer.decode(prompt.ids)
    for word in WORD.findall(" ".join(turn.text for turn in turns)):
        assert text.count(word) == 1, (word, text)
    assert text.count("Write 'Action:'") == (chat.template.source == FAMILIES["command_r"].source)
    shown = set(TOOL_WORD.findall(text))
    wanted = set(TOOL_WORD.findall(json.dumps(chat.settings.tools)))
    assert shown == (wanted if chat.template.facts.tools == "shown" else set())
    whole = direct(chat, turns)
    for turn in turns:
        for word in WORD.findall(turn.reasoning or ""):
            assert text.count(word) <= 1
            if chat.settings.history != "sampled":
                assert word in whole or word not in text, (word, whole, text)
    if chat.harmless and chat.exact:
        last = WORD.findall(turns[-1].text)[-1]
        assert text[text.rindex(last) :] == whole[whole.rindex(last) :]


def start(name: str, seed: int, **options: Any) -> Chat:
    template = toy_template(name, options.pop("layout", "gpt2"))
    tools = options.pop("tools", False)
    think = options.pop("think", False) and bool(template.facts.form.open_mark)
    settings = plain_settings(tools=make_tools("t0t") if tools else ())
    chat = Chat(
        template,
        seed,
        use_tools=tools,
        think=think,
        settings=settings,
        check=check_prompt,
        **options,
    )
    if name not in SYSTEMLESS and seed % 2:
        chat.turns.append(Turn("system", chat.words()))
    return chat


@pytest.mark.parametrize("name", sorted(FAMILIES))
@PROPERTY
@given(seed=st.integers(0, 10**6), tools=st.booleans(), think=st.booleans())
def test_old_ids_stand_every_text_is_there_once_and_typed_control_stays_text(
    name: Any, seed: Any, tools: Any, think: Any
) -> None:
    typed = start(name, seed, tools=tools, think=think)
    plain = start(name, seed, tools=tools, think=think, harmless=True)
    for _ in range(4):
        typed.turn()
        plain.turn()
    tokenizer = typed.template.tokenizer
    for one, other in zip(typed.prompts, plain.prompts, strict=True):
        assert one.how == other.how
        assert control_count(tokenizer, one.ids) == control_count(tokenizer, other.ids)


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1", "solar"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_tokenizer_keeps_old_ids_and_typed_text(layout: Any, name: Any) -> None:
    for seed in range(2):
        chats = [
            start(name, seed, layout=layout, tools=True, think=True, harmless=harmless, exact=False)
            for harmless in (False, True)
        ]
        for _ in range(3):
            prompts = [chat.turn() for chat in chats]
            counts = [control_count(chats[0].template.tokenizer, p.ids) for p in prompts]
            assert counts[0] == counts[1]


def wander(chat: Chat) -> None:
    """Something that happens between two turns."""
    dice, turns = chat.dice, chat.turns
    facts = chat.template.facts
    what = dice.choice(("fork", "edit", "import", "tools", "think", "system", "history", "back"))
    settings = chat.settings
    starts = [i for i, turn in enumerate(turns) if turn.role == "user"]
    if what == "fork":  # at any message that a template can be asked to go on from
        ends = [i + 1 for i, turn in enumerate(turns) if not turn.tool_calls and i >= starts[0]]
        del turns[dice.choice(ends) :]
    elif what == "edit":
        ends = [i for i, turn in enumerate(turns) if turn.role == "assistant" and turn.text]
        if ends:
            i = dice.choice(ends)
            turns[i:] = [Turn("assistant", chat.words(typed=False))]
    elif what == "import" and turns[-1].role == "assistant":
        turns += [chat.user(), Turn("assistant", chat.words(typed=False))]
    elif what == "tools" and (chat.use_tools or facts.tools == "shown"):
        chat.count += 1
        chat.settings = replace(settings, tools=make_tools(f"t{chat.count}t"))
    elif what == "think" and facts.think_switch:
        on = dice.random() < 0.5
        chat.settings = replace(settings, switches={facts.think_switch: on})
    elif what == "system" and turns[0].role == "system":
        turns[0] = Turn("system", chat.words())
    elif what == "history":
        chat.settings = replace(settings, history=dice.choice(("auto", "template", "sampled")))
    elif what == "back":
        chat.settings = chat.first_settings


@pytest.mark.parametrize("name", sorted(FAMILIES))
@PROPERTY
@given(seed=st.integers(0, 10**6), tools=st.booleans(), think=st.booleans())
def test_no_text_is_lost_or_doubled_when_people_fork_edit_import_and_change_settings(
    name: Any, seed: Any, tools: Any, think: Any
) -> None:
    chat = start(name, seed, tools=tools, think=think, harmless=seed % 3 == 0)
    for _ in range(7):
        chat.turn()
        wander(chat)
