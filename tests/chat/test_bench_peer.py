"""The other side of `bench --compare`, over real HTTP."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from radchat.cli.bench_peer import Address, Messages, Server
from radchat.errors import ConfigInvalid, RadchatError, Unreachable, UsageError
from tests.openai_server import Answer, Handler, OpenAIServer, well, without_usage

HELLO: Messages = [{"role": "user", "content": "hello"}]


def side(url: str, key: str = "") -> Server:
    return Server(url, max_tokens=24, key=key)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_server_is_found_with_or_without_v1(ending: str) -> None:
    with OpenAIServer(well) as there, side(there.url + ending, "a-key") as server:
        server.ready()
        assert (server.name, server.model) == ("llama-server", "their-model")
        assert server.url == f"{there.url}/v1"
        assert there.keys == ["Bearer a-key"]


def test_an_answer_has_its_text_counts_and_times() -> None:
    with OpenAIServer(well) as there, side(there.url) as server:
        server.ready()
        (heard,) = server.ask([HELLO])
        assert there.keys == [None]
    assert (heard.input_tokens, heard.cached_tokens, heard.output_tokens) == (50, 40, 3)
    assert heard.text == "one two three"
    assert 0 < heard.first_token_s <= heard.total_s
    asked = there.asked[-1]
    assert asked["messages"] == HELLO
    assert (asked["max_tokens"], asked["temperature"], asked["stream"]) == (24, 0, True)
    assert asked["model"] == "their-model"


def test_counts_that_are_not_told_are_none_and_thinking_is_a_first_token() -> None:
    with OpenAIServer(without_usage) as there, side(there.url) as server:
        (heard,) = server.ask([HELLO])
    assert (heard.input_tokens, heard.cached_tokens, heard.output_tokens) == (None, None, None)
    assert heard.text == "yes"


def test_the_first_token_is_timed_when_it_comes_and_not_at_the_end() -> None:
    def slowly(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.say(None)
        time.sleep(0.2)
        handler.say("one")
        time.sleep(0.3)
        handler.say(" two", "stop")
        handler.send("")

    with OpenAIServer(slowly) as there, side(there.url) as server:
        (heard,) = server.ask([HELLO])
    assert heard.first_token_s >= 0.2
    assert heard.total_s >= heard.first_token_s + 0.25


def test_several_are_asked_at_once_and_answered_in_their_order() -> None:
    all_here = threading.Barrier(4)

    def together(handler: Handler, body: dict[str, Any]) -> None:
        all_here.wait(60)  # broken, were they asked one by one
        handler.begin()
        handler.say(body["messages"][0]["content"], "stop")
        handler.send("")

    with OpenAIServer(together) as there, side(there.url) as server:
        heard = server.ask([[{"role": "user", "content": str(n)}] for n in range(4)])
    assert [each.text for each in heard] == ["0", "1", "2", "3"]


def dies(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.say("one")
    handler.close_connection = True


def dies_in_a_chunk(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.wfile.write(b"ff\r\ndata: {")
    handler.close_connection = True


def garbage(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.send("data: {\x1b[31m nonsense\n\n")
    handler.send("")


def another_shape(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.send({"choices": [7]})
    handler.send("")


def no_stream(handler: Handler, body: dict[str, Any]) -> None:
    handler.whole(200, {"response": "hello"})


def refuses(handler: Handler, body: dict[str, Any]) -> None:
    handler.whole(400, {"error": {"message": "no room for that"}})


def wants_a_key(handler: Handler, body: dict[str, Any]) -> None:
    handler.whole(401, {"error": {"message": "who are you"}})


def fails_midway(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.say("one")
    handler.send({"error": {"message": "out of memory"}})
    handler.send("")


def says_nothing(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin()
    handler.say("", "stop")
    handler.send("")


def no_http(handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"220 mail here\r\n")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (dies, 69, "broke off"),
        (dies_in_a_chunk, 69, "broke off"),
        (garbage, 1, "nonsense"),
        (another_shape, 1, '{"choices": [7]}'),
        (no_stream, 1, 'application/json: {"response": "hello"}'),
        (refuses, 1, "answered 400: "),
        (wants_a_key, 1, "OPENAI_API_KEY"),
        (fails_midway, 1, "out of memory"),
        (says_nothing, 1, "empty"),
        (no_http, 1, "220 mail here"),
    ],
)
def test_what_goes_wrong_is_said_with_the_url(answer: Answer, code: int, said: str) -> None:
    with (
        OpenAIServer(answer) as there,
        side(there.url) as server,
        pytest.raises(RadchatError) as failed,
    ):
        server.ask([HELLO, HELLO])
    assert failed.value.exit_code == code
    assert there.url in failed.value.message
    assert said in failed.value.message
    assert failed.value.message.isprintable()


@pytest.mark.parametrize(
    "models", [{"models": []}, {"data": []}, {"data": [{"id": 3}]}, [1], b"<p>"]
)
def test_a_list_of_models_in_another_shape_is_shown(models: Any) -> None:
    with (
        OpenAIServer(well, models) as there,
        side(there.url) as server,
        pytest.raises(RadchatError, match="does not speak as OpenAI") as failed,
    ):
        server.ready()
    assert failed.value.exit_code == 1


def test_nobody_at_the_url_is_unreachable() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
        with pytest.raises(Unreachable, match=url):
            side(url).ready()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "http://",
        "http://a:b@c",
        "http://x:y",
        "http://x?q",
        "http://x\x1b",
        "http://[x",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(UsageError):
        side(url)


def test_addresses() -> None:
    assert str(Address.of("localhost:8080")) == "http://localhost:8080/v1"
    assert str(Address.of("https://host/openai/v1")) == "https://host:443/openai/v1"
    assert str(Address.of("http://[::1]:9")) == "http://[::1]:9/v1"


def test_a_key_that_no_header_may_hold_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigInvalid) as failed:
        side("http://localhost", "sec\nret")
    assert "sec" not in failed.value.message
