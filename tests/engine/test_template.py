import json
import random
import re
import subprocess
import sys
from array import array
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.engine.conversation import Settings, ToolCall, Turn, content_text
from radchat.engine.template import Template
from radchat.errors import InvalidInput, ModelBroken
from tests.engine.chat_sim import TOOLS, Chat, control_count, last_sampled, path_ids
from tests.engine.text_toys import (
    CLOCK,
    FAMILIES,
    plain_settings,
    toy_template,
    toy_tokenizer,
)

WORD = re.compile(r"w\d+x\d+q")
MOVING = {"nemo", "command_r"}
PROPERTY = settings(max_examples=12, derandomize=True, deadline=None, database=None)
SYSTEMLESS = {"gemma"}


def check_prompts(chat: Chat) -> None:
    """What holds for every prompt of a played conversation."""
    decode = chat.template.tokenizer.decode
    for num_turns, prompt in chat.prompts:
        turns = chat.turns[:num_turns]
        assert sum(prompt.shares) + prompt.rebuilt == len(prompt.tail)
        if prompt.base is not None:
            base = chat.turns[prompt.base]
            assert base.prompt is not None
            assert base.out is not None
            path = base.prompt.ids + base.out
            if prompt.base_is_prompt:
                assert prompt.kept <= len(base.prompt.ids)
            assert prompt.ids == path[: prompt.kept] + prompt.tail
        else:
            assert prompt.kept == 0
            assert prompt.ids == prompt.tail
        before = last_sampled(turns)
        if prompt.how == "append":
            assert before is not None
            old = path_ids(before)
            assert prompt.ids[: len(old)] == old
            assert prompt.rebuilt == 0
        text = decode(prompt.ids)
        for word in WORD.findall(" ".join(turn.text for turn in turns)):
            assert text.count(word) == 1, (word, text)
        assert text.count("Write 'Action:'") == (chat.template is toy_template("command_r"))


def play(name: str, seed: int, *, harmless: bool, tools: bool, think: bool) -> Chat:
    template = toy_template(name)
    chat = Chat(
        template,
        seed,
        harmless=harmless,
        use_tools=tools,
        think=think and bool(template.facts.form.open_mark),
        settings=plain_settings(tools=TOOLS if tools else ()),
    )
    if name not in SYSTEMLESS and seed % 2:
        chat.turns.append(Turn("system", chat.words()))
    for _ in range(4):
        chat.turn()
    return chat


@pytest.mark.parametrize("name", sorted(FAMILIES))
@PROPERTY
@given(seed=st.integers(0, 10**6), tools=st.booleans(), think=st.booleans())
def test_old_ids_stand_and_every_text_is_there_once(name, seed, tools, think):
    chat = play(name, seed, harmless=False, tools=tools, think=think)
    check_prompts(chat)
    plain = play(name, seed, harmless=True, tools=tools, think=think)
    tokenizer = chat.template.tokenizer
    for (_, typed), (_, harmless) in zip(chat.prompts, plain.prompts, strict=True):
        assert typed.how == harmless.how
        assert control_count(tokenizer, typed.ids) == control_count(tokenizer, harmless.ids)
