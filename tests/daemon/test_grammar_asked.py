"""Answers held to a grammar, through the service: what is told, kept and gone on with."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from radchat.daemon.grammar_asked import GrammarAsked, judged
from radchat.engine.grammar import Grammar
from radchat.engine.grammars import Compiled, Grammars
from radchat.errors import InvalidInput, RadchatError, UsageError
from tests.daemon.services import WHERE, house, named, notices, run, until
from tests.e2e.test_reasoning import ADDED, SAYS
from tests.e2e.tiny_models import converted
from tests.engine.text_toys import TEMPLATES

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"const": "Ada"}, "age": {"type": "integer", "enum": [36, 37]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
UNIQUE = {"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
OPTIONS: Any = {"temperature": 0, "max_tokens": 60}


def schema(value: Any, *, lenient: bool = False) -> GrammarAsked:
    return {"kind": "json_schema", "source": json.dumps(value), "lenient": lenient}


def held(grammar: GrammarAsked | None, **more: Any) -> dict[str, Any]:
    return {"grammar": grammar, "options": OPTIONS, "new_session": True, **more}


def test_it_is_told_as_data_with_what_was_forced_and_the_same_without_jumping(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            events = await home.ask("who?", **held(schema(PERSON)))
            (body,) = named(events, "message")
            assert body["data"] == json.loads(body["text"])
            assert body["data"]["name"] == "Ada"
            assert "schema_error" not in body
            assert body["grammar"] == "json_schema"
            deltas = named(events, "delta")
            assert "".join(each["text"] for each in deltas) == body["text"]
            assert deltas[0]["text"] == '{"name": "Ada", "age": 3'
            assert [each.get("forced", False) for each in deltas] == [True, False, True]
            counts = body["usage"]
            assert counts["forced_tokens"] == counts["output_tokens"] - 1
            assert events[-1].data["usage"]["forced_tokens"] == counts["forced_tokens"]

            slow = await home.ask("who?", **held(schema(PERSON), jump=False))
            (other,) = named(slow, "message")
            assert other["text"] == body["text"]
            assert other["usage"]["forced_tokens"] == 0
            assert not any("forced" in each for each in named(slow, "delta"))

            free = await home.ask("who?", options={"max_tokens": 2}, new_session=True)
            assert not {"grammar", "data", "schema_error"} & named(free, "message")[0].keys()

    run(main())


def test_one_that_is_cut_off_is_no_data_and_is_gone_on_with_under_its_grammar(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            whole = (await home.say("who?", **held(schema(PERSON))))["branches"][0]
            cut = await home.say(
                "who?", **held(schema(PERSON), options={**OPTIONS, "max_tokens": 7})
            )
            (body,) = cut["branches"]
            assert body["finish_reason"] == "length"
            assert body["data"] is None
            assert "cut off" in body["schema_error"]
            stopped = held(schema({"const": 123}), options={**OPTIONS, "stop": ["3"]})
            (part,) = (await home.say("which?", **stopped))["branches"]
            assert (part["text"], part["finish_reason"], part["data"]) == ("12", "stop", None)
            await home.say("who?", **held(schema(PERSON), options={**OPTIONS, "max_tokens": 7}))
            with pytest.raises(UsageError, match="grammar that the answer has"):
                await home.say(kind="continue", grammar=schema(PERSON))
            (body,) = (await home.say(kind="continue", options=OPTIONS))["branches"]
            assert body["data"] == whole["data"]
            assert body["finish_reason"] == "stop"
            assert (await home.texts())[-1] == ("assistant", whole["text"])
            (after,) = (await home.say("and?", options={"max_tokens": 2}))["branches"]
            assert "grammar" not in after

    run(main())


BAD: list[tuple[GrammarAsked, type[RadchatError], str]] = [
    (schema(UNIQUE), UsageError, "uniqueItems"),
    (schema(False), InvalidInput, "false"),
    ({"kind": "json_schema", "source": "{"}, InvalidInput, "not JSON"),
    ({"kind": "regex", "source": "("}, InvalidInput, "the regex"),
    ({"kind": "lark", "source": "start: ("}, InvalidInput, "the grammar"),
    ({"kind": "lark", "source": "root ::= ("}, InvalidInput, "GBNF"),
    ({"kind": "choices", "source": "[]"}, InvalidInput, "choices"),
    ({"kind": "choices", "source": '["' + "x" * 2_000_000 + '"]'}, InvalidInput, "too many"),
]


def test_a_bad_one_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            for grammar, error, words in BAD:
                with pytest.raises(error, match=words):
                    await home.say("who?", **held(grammar))
            assert (await home.service.sessions_list(WHERE))["sessions"] == []
            (body,) = (await home.say("who?", **held(schema(PERSON))))["branches"]
            assert body["data"]["name"] == "Ada"

    run(main())


def test_a_lenient_one_says_what_it_leaves_out_and_checks_the_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            events = await home.ask("two", **held(schema(UNIQUE, lenient=True)))
            assert notices(events) == ["schema"]
            assert "uniqueItems" in named(events, "notice")[0]["text"]
            (body,) = named(events, "message")
            assert body["data"] == [1, 1]
            assert "unique" in body["schema_error"]

    run(main())


def test_an_answer_goes_on_while_another_ones_grammar_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: it is neither the loop's work nor the engine's."""
    gate, entered = threading.Event(), threading.Event()
    compile_ = Grammars.compile

    def slow(self: Grammars, grammar: Grammar) -> Compiled:
        entered.set()
        assert gate.wait(30)
        return compile_(self, grammar)

    monkeypatch.setattr(Grammars, "compile", slow)

    async def main() -> None:
        async with house(tmp_path) as home:
            await home.say("hello", new_session=True)
            asked = asyncio.create_task(home.say("who?", **held(schema(PERSON))))
            await until(entered.is_set)
            (body,) = (await home.say("more", options={"temperature": 0, "max_tokens": 40}))[
                "branches"
            ]
            assert body["usage"]["output_tokens"] == 40
            assert not asked.done()
            gate.set()
            assert (await asked)["branches"][0]["data"]["name"] == "Ada"

    try:
        run(main())
    finally:
        gate.set()


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_a_model_that_thinks_does_so_freely_and_only_if_it_must_or_is_told_to(
    tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        async with house(tmp_path) as home:
            template = (TEMPLATES / f"{name}.jinja").read_text()
            converted(
                home.places.models,
                name,
                template=template,
                added=ADDED[name],
                follows=SAYS[name],
            )
            grammar: GrammarAsked = {"kind": "choices", "source": '["de", "x"]'}
            (body,) = (await home.say("q", **held(grammar, model=name)))["branches"]
            assert body["text"] == "de"
            assert body["reasoning"] == ("abc" if name == "deepseek_r1" else None)
            off = await home.say("q", **held(grammar, model=name, think="off"))
            assert off["usage"]["input_tokens"] == body["usage"]["input_tokens"]
            asked = held(grammar, model=name, think="on")
            (body,) = (await home.say("q", **asked))["branches"]
            assert (body["reasoning"], body["text"]) == ("abc", "de")
            asked["options"] = {"temperature": 0, "max_tokens": 2}
            (body,) = (await home.say("q", **asked))["branches"]
            assert body["text"] == ""
            (body,) = (await home.say(kind="continue", options=OPTIONS))["branches"]
            assert (body["reasoning"], body["text"]) == ("abc", "de")

    run(main())


@pytest.mark.parametrize("text", ['{"a": 1', "1e999", "[" * 100_000, "9" * 5000])
def test_what_json_can_not_hold_is_no_data(text: str) -> None:
    told = judged(Grammar("json_schema", "true"), text)
    assert told.keys() == {"schema_error"}
