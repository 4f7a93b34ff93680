"""Models that think first, with templates by the rules of real families, through the daemon."""

from __future__ import annotations

import itertools
import json
import re
import sys
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from radchat.engine.cuts import common_ids
from radchat.protocol import Event
from tests.e2e.conftest import POOL
from tests.e2e.harness import Terminal
from tests.e2e.homes import Home, Shell
from tests.e2e.tiny_models import converted
from tests.engine.text_toys import TEMPLATES
from tests.waiting import PATIENCE

THOUGHT, ANSWER = "abc", "de"
MARKS = ("<think>", "</think>")
# which token follows which; a model says nothing but this, "" is what comes after any other text
ANSWERS = {"d": "e", "e": "<|im_end|>"}
THINKS = {"": "<think>", "<think>": "a", "a": "b", "b": "c", "c": "</think>", "</think>": "d"}
SAYS: dict[str, Mapping[str, str]] = {
    "qwen3": THINKS | ANSWERS | {"\n\n": "d"},
    "smollm3": THINKS | ANSWERS | {"\n\n": "d"},
    "deepseek_r1": THINKS | {"": "a", "d": "e", "e": "<|end_of_sentence|>"},
    "seed_oss": {"": "<seed:think>", "<seed:think>": "a", "a": "b", "b": "c"}
    | {"c": "</seed:think>", "</seed:think>": "d"}
    | ANSWERS,
    "gpt_oss": {"": "<|channel|>final<|message|>", "<|channel|>final<|message|>": "d"}
    | {"d": "e", "e": "<|return|>"},
}
ADDED = {
    "qwen3": (*MARKS, "\n\n"),
    "smollm3": (*MARKS, "\n\n"),
    "deepseek_r1": (*MARKS, "<|User|>", "<|Assistant|>", "<|end_of_sentence|>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "gpt_oss": ("<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|channel|>final<|message|>"),
}
LONG = ("qwen3", "smollm3")  # also as one that never comes to an end: d e d e ...


@pytest.fixture(scope="module")
def house(sources: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with one tiny model a template."""
    models = tmp_path_factory.mktemp("thinkers") / "models"
    folders: dict[str, Path] = {}
    for name, follows in SAYS.items():
        template = (TEMPLATES / f"{name}.jinja").read_text()
        known: dict[str, Any] = {"template": template, "added": ADDED[name]}
        folders[name] = converted(models, name, follows=follows, **known)
        if name in LONG:
            endless = {**follows, "e": "d"}
            folders[f"{name}-long"] = converted(models, f"{name}-long", follows=endless, **known)
    home = Home(sources, folders, RADCHAT_KV_DEVICE=POOL, RADCHAT_CHECK="1")
    yield home
    home.close()


@pytest.fixture
def think(house: Home, request: pytest.FixtureRequest) -> Thinker:
    return Thinker(Shell(house, str(abs(hash(request.node.name)) % 10**6)))


class Thinker:
    """One terminal; the events of its turns."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.home = shell, shell.home
        self.events: list[Event] = []

    def __call__(self, text: str = "", most: int = 300, **args: Any) -> dict[str, Any]:
        """A turn; the first one makes the session."""
        args = {"new_session": not self.events, "session": None, **args}
        options = {"temperature": 0, "max_tokens": most, **args.pop("options", {})}
        with self.shell.stream(text=text, dtype="fp32", options=options, **args) as events:
            self.events = list(events)
        return dict(self.events[-1].data["branches"][0])

    def told(self, code: str) -> list[dict[str, Any]]:
        return [e.data for e in self.events if e.name == "notice" and e.data["code"] == code]

    def prompt(self, answer: dict[str, Any]) -> list[int]:
        return self.home.prompt_ids(answer["message"])

    def path(self, answer: dict[str, Any]) -> list[int]:
        """Its prompt and its ids, but the stop id, which has no KV yet."""
        out = self.home.out_ids(answer["message"])
        return self.prompt(answer) + (out[:-1] if answer["finish_reason"] == "stop" else out)


def common(a: list[int], b: list[int]) -> int:
    return common_ids(array("I", a), array("I", b))


KEEPS = [
    *(("seed_oss", "on"), ("smollm3", "on"), ("smollm3", "off"), ("qwen3", "off")),
    ("gpt_oss", "low"),
]


@pytest.mark.parametrize(("model", "level"), KEEPS)
def test_three_turns_are_read_once_where_the_template_keeps_what_was_said(
    think: Thinker, model: str, level: str
) -> None:
    """CT-01: also where it would write the empty block of thinking off otherwise later."""
    before: list[int] = []
    for number in range(3):
        answer = think(f"turn {number}", model=model, think=level)
        assert answer["text"] == ANSWER
        assert answer["reasoning"] == (THOUGHT if level == "on" else None)
        assert think.prompt(answer)[: len(before)] == before
        cached = answer["usage"]["cached_input_tokens"]
        assert cached >= len(before) - 1
        assert think.told("recompute") == []
        before = think.path(answer)
        assert answer["usage"]["reasoning_tokens"] == (len(THOUGHT) + 2 if level == "on" else 0)


@pytest.mark.parametrize("model", ["qwen3", "deepseek_r1"])
def test_three_turns_of_a_template_that_drops_reasoning_cost_one_answer_each(
    think: Thinker, model: str
) -> None:
    """CT-02: all that stands before the dropped block is reused, what is dropped is not read."""
    answers = [think(f"turn {number}", model=model, think="on") for number in range(3)]
    assert [a["reasoning"] for a in answers] == [THOUGHT] * 3
    assert [a["text"] for a in answers] == [ANSWER] * 3
    for earlier, later in itertools.pairwise(answers):
        old, new = think.path(earlier), think.prompt(later)
        kept = common(old, new)
        assert len(think.prompt(earlier)) - 2 <= kept < len(old)  # R1's opening opens the block
        assert later["usage"]["cached_input_tokens"] >= kept
        assert later["usage"]["reasoning_tokens"] == len(THOUGHT) + (model == "qwen3") + 1
    log = think.shell.call("log")["messages"]
    assert [m["reasoning"] for m in log if m["role"] == "assistant"] == [THOUGHT] * 3  # for people
    close = think.home.out_ids(answers[0]["message"])[-len(ANSWER) - 2]
    assert think.home.ids(answers[2]["message"]).count(close) == 1  # in the newest answer alone


def test_a_long_answer_read_again_because_its_reasoning_goes_is_told_first(think: Thinker) -> None:
    """Streams, 6: tokens, and seconds once a speed is measured, before anything is computed."""
    think("say much", model="qwen3-long", think="on", most=400)
    answer = think("go on", model="qwen3-long", think="on", most=8)
    (line,) = think.told("recompute")
    assert line["tokens"] == pytest.approx(400 - len(THOUGHT), abs=8)
    assert re.fullmatch(
        rf"this recomputes {line['tokens']} tokens(, (about|less than) [\d.]+ s)?: "
        r"reasoning dropped.*",
        line["text"],
    )
    (why,) = think.shell.call("cache.why")["answers"]
    assert [part["cause"] for part in why["parts"]] == ["template", "new"]
    assert why["parts"][0]["why"].startswith("reasoning dropped")
    names = [event.name for event in think.events]
    assert names.index("notice") < names.index("start")
    usage = answer["usage"]
    computed = usage["input_tokens"] - usage["cached_input_tokens"]
    assert line["tokens"] <= computed <= line["tokens"] + 40


def test_a_switch_that_stands_in_the_system_part_is_told_before_all_is_read_again(
    think: Thinker,
) -> None:
    """Thinking turned off in the middle of a chat: SmolLM3 says it at the very beginning."""
    think("say much", model="smollm3-long", think="on", most=400)
    think("go on", model="smollm3-long", think="off", most=8)
    (line,) = think.told("recompute")
    assert line["text"].endswith("s: settings changed: switch")
    assert line["tokens"] > 400
    think("back", model="smollm3-long", think="off", most=8)
    assert think.told("recompute") == []


def test_thinking_may_be_turned_on_and_off_between_turns(think: Thinker) -> None:
    """The opening alone tells Qwen3: nothing of the path is read again."""
    answers = [think("next", model="qwen3", think=level) for level in ("off", "on", "off")]
    assert [a["reasoning"] for a in answers] == [None, THOUGHT, None]
    assert answers[1]["usage"]["cached_input_tokens"] >= len(think.path(answers[0])) - 1
    kept = common(think.path(answers[1]), think.prompt(answers[2]))
    assert kept >= len(think.prompt(answers[1])) - 1
    assert answers[2]["usage"]["cached_input_tokens"] >= kept


def test_effort_goes_to_a_template_that_knows_levels_and_is_told_where_there_is_no_such_level(
    think: Thinker,
) -> None:
    prompts = [
        think.prompt(think("hi", model="gpt_oss", think=level, new_session=True, session=None))
        for level in ("low", "medium", "high")
    ]
    assert len({tuple(ids) for ids in prompts}) == 3
    think("hi", model="gpt_oss", think="off", new_session=True)
    (line,) = think.told("think")
    assert "can't be switched off" in line["text"]
    think("hi", model="qwen3", think="high", new_session=True)
    (line,) = think.told("think")
    assert line["text"] == "this model's reasoning is on or off: high means on"


@pytest.mark.parametrize("model", ["qwen3", "deepseek_r1"])
def test_an_answer_cut_while_it_thinks_is_all_reasoning_and_goes_on_thinking(
    think: Thinker, model: str
) -> None:
    """CT-07, CT-08: the block opened by the answer, or by the prompt; no second opening."""
    whole = think("why", model=model, think="on", new_session=True)
    opens = model == "qwen3"
    cut = think("why", model=model, think="on", new_session=True, most=2 + opens)
    assert (cut["reasoning"], cut["text"]) == ("ab", "")
    assert cut["finish_reason"] == "length"
    assert cut["usage"]["reasoning_tokens"] == cut["usage"]["output_tokens"] == 2 + opens
    words = [e for e in think.events if e.name in ("delta", "reasoning")]
    assert "".join(e.data["text"] for e in words) == "ab"
    rest = think(kind="continue", model=model, think="on")
    assert (rest["reasoning"], rest["text"]) == (THOUGHT, ANSWER)
    assert think.home.ids(rest["message"]) == think.home.ids(whole["message"])
    assert "".join(e.data["text"] for e in think.events if e.name == "reasoning") == "c"
    assert think("next", model=model, think="on")["text"] == ANSWER


def test_a_chat_shows_thoughts_dim_tells_their_cost_and_can_hide_them(think: Thinker) -> None:
    shell = think.shell
    flags = ("-m", "qwen3", "--exact", "--temp", "0", "--think")
    command = [sys.executable, "-P", "-m", "radchat", "chat", *flags]
    env = {**shell.env, "TERM": "xterm-256color"}
    with Terminal(command, env, columns=160, cwd=shell.folder) as terminal:
        terminal.wait_for("> ", PATIENCE)
        terminal.type("why\r")
        terminal.wait_for("thought 5 tokens", PATIENCE)
        assert THOUGHT in terminal.lines
        assert b"\x1b[2m" + THOUGHT.encode() in terminal.raw
        terminal.type("/think hide\r")
        terminal.wait_for("thinking is hidden", PATIENCE)
        terminal.type("and why\r")
        terminal.wait_for(lambda t: t.text.count("thought 5 tokens") == 2, PATIENCE)
        assert terminal.lines.count(THOUGHT) == 1
        terminal.type("/think off\r")
        terminal.wait_for("think off", PATIENCE)
        terminal.type("at once\r")
        terminal.wait_for(lambda t: t.text.count(" ctx ") == 3, PATIENCE)
        assert terminal.text.count("thought") == 2
        terminal.type("\x04")
        assert terminal.wait_end(PATIENCE) == 0


@pytest.mark.parametrize(("model", "thoughts"), [("seed_oss", 3), ("qwen3", 0), ("deepseek_r1", 0)])
def test_reasoning_fills_the_context_where_the_template_keeps_it(
    think: Thinker, model: str, thoughts: int
) -> None:
    for number in range(3):
        answer = think(f"turn {number}", model=model, think="on")
    session = answer["session"]
    told = think.shell.call("context", session=session, model=model, think="on", text="next")
    parts = told["parts"]
    assert parts["reasoning"] == thoughts * len(THOUGHT)
    assert parts["answers"] == 3 * len(ANSWER)
    assert parts["user"] == len("turn 0turn 1turn 2next")
    assert sum(parts.values()) == told["tokens"]
    assert think("next", model=model, think="on")["usage"]["input_tokens"] == told["tokens"]


def test_a_summary_is_not_thought_about_where_the_opening_alone_turns_it_off(
    think: Thinker,
) -> None:
    first = think("say much", model="qwen3-long", think="on", most=600)
    where = {"where": think.shell.where, "session": first["session"]}
    options = {"temperature": 0}
    asked = {**where, "model": "qwen3-long", "dtype": "fp32", "think": "on", "options": options}
    with think.home.client().stream("compact", **asked) as events:
        done = list(events)[-1].data
    assert set(done["summary"]) == set(ANSWER)
    after = think("on", model="qwen3-long", think="on", most=8)
    assert (after["branch"], after["reasoning"]) == ("compact", THOUGHT)


def test_what_a_script_gets_of_reasoning(think: Thinker) -> None:
    """stdout has the answer alone; a pipe on stderr has no thoughts; JSON has both."""
    shell = think.shell
    flags = ("-m", "qwen3", "--exact", "--temp", "0", "--think")
    done = shell("ask", "why", *flags)
    assert done.out == ANSWER + "\n"
    assert THOUGHT not in done.err
    document = shell("ask", "why", *flags, "--json").json
    assert (document["reasoning"], document["text"]) == (THOUGHT, ANSWER)
    assert document["usage"]["reasoning_tokens"] == len(THOUGHT) + 2
    lines = [
        json.loads(line)
        for line in shell("ask", "why", *flags, "--output-format", "stream-json").out.splitlines()
    ]
    texts = {
        kind: "".join(line["text"] for line in lines if line["type"] == kind)
        for kind in ("reasoning_delta", "text_delta")
    }
    assert texts == {"reasoning_delta": THOUGHT, "text_delta": ANSWER}
