"""A lenient schema's answers, checked afterwards: whatever the schema, there is an end to it."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from radchat.daemon.grammar_asked import judged
from radchat.engine.grammar import Grammar
from radchat.engine.schema_verdict import invalid


def test_it_says_where_the_answer_is_wrong() -> None:
    schema = {"properties": {"a": {"items": [{"type": "string"}], "uniqueItems": True}}}
    assert not invalid('{"a": ["é", 1]}', schema)
    assert invalid('{"a": [1]}', schema).startswith("a.0: 1 is not of type")


@pytest.mark.parametrize(
    "refused",
    [
        {"$ref": "#/nope"},
        {"$ref": "#/not"},
        {"patternProperties": {"a{99999999999}": {}}},
        {"$ref": "file:///etc/hostname"},
    ],
)
def test_what_can_not_be_checked_is_told_of_the_answer(refused: dict[str, Any]) -> None:
    schema = {"type": "object", "not": refused}
    told = judged(Grammar("json_schema", json.dumps(schema), lenient=True), '{"a": 1}')
    assert told["data"] == {"a": 1}
    assert "can't be checked" in told["schema_error"]


def test_nothing_is_fetched_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        assert "can't be checked" in invalid("{}", {"not": {"$ref": address}}, limit_s=5)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_pattern_that_takes_for_ever_is_given_up() -> None:
    schema = {"not": {"pattern": "^(a+)+$"}}
    assert "more than" in invalid(json.dumps("a" * 60 + "!"), schema, limit_s=0.5)
