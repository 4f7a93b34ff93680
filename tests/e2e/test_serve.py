"""`radchat serve`, with the real `openai` package as its client, over TCP and over the socket."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Shell, finish
from tests.waiting import wait_until

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}},
    "required": ["name"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "hello"}]


class Served:
    def __init__(self, shell: Shell, *args: str) -> None:
        self.shell = shell
        self.clients = contextlib.ExitStack()
        self.process = shell.start("serve", "--port", "0", *args)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:")
        self.key_file = shell.home.places.state / "api-key"
        self.key = self.key_file.read_text().strip()

    def client(self, key: str | None = None) -> openai.OpenAI:
        client = openai.OpenAI(base_url=self.url, api_key=key or self.key, max_retries=0)
        return self.clients.enter_context(client)

    def over_socket(self) -> openai.OpenAI:
        transport = httpx2.HTTPTransport(uds=self.shell.home.info.socket)
        client = openai.OpenAI(
            base_url="http://localhost/v1",
            api_key="none",
            http_client=httpx2.Client(transport=transport),
            max_retries=0,
        )
        return self.clients.enter_context(client)

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        done = finish(self.process)
        return done.code, done.err


@pytest.fixture
def own(homes: Homes) -> Shell:
    """A terminal of a home of its own, whose daemon may be stopped."""
    return Shell(homes(), "own", EXACT)


@pytest.fixture
def served(own: Shell) -> Iterator[Served]:
    made = Served(own, "--api-key", "another-key", "-m", "tiny")
    yield made
    made.clients.close()
    if made.process.poll() is None:
        assert made.end()[0] == 130


def say(client: openai.OpenAI, messages: Any = USER, **more: Any) -> Any:
    asked = {"model": "tiny", "temperature": 0, "max_completion_tokens": 6, **more}
    return client.chat.completions.create(messages=messages, **asked)


def check_everything(client: openai.OpenAI) -> None:
    whole = say(client)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.completion_tokens == 6
    with say(client, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    data = say(client, response_format=form, max_completion_tokens=100)
    assert set(json.loads(data.choices[0].message.content)) == {"name"}
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    called = say(client, tools=[tool], tool_choice="required", max_completion_tokens=300)
    (call, *_) = called.choices[0].message.tool_calls
    assert call.function.name == "look"
    assert set(json.loads(call.function.arguments)) == {"name"}
    assert called.choices[0].finish_reason == "tool_calls"
    probs = say(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(probs) == 6
    assert len(probs[0].top_logprobs) == 2
    several = say(client, n=3, temperature=1, seed=4)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    first = text[2]
    assert say(client, stop=[first]).choices[0].message.content == text[: text.index(first)]
    names = [model.id for model in client.models.list()]
    assert names == ["tiny"]
    ids = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=3)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError) as bad:
        say(client, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        say(client, model="nobody")
    assert missing.value.code == "model_not_found"


def test_the_openai_package_over_tcp_and_the_socket(served: Served) -> None:
    client, home = served.client(), served.shell.home
    check_everything(client)
    check_everything(served.over_socket())
    assert stat.S_IMODE(served.key_file.stat().st_mode) == 0o600

    # a client forks by the message it was given, and the branch is in the tree
    first = say(client, extra_body={"radchat": {"session": "api"}})
    told = first.to_dict()["radchat"]
    fork = say(
        client,
        [{"role": "user", "content": "another way"}],
        extra_body={"radchat": {"parent": told["message"], "branch": "side"}},
    )
    assert fork.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    tree = served.shell.json("tree", "api")
    assert set(tree["branches"]) == {"main", "side"}
    assert "side" in served.shell("tree", "api").out

    # nothing of one key is seen with another
    other = served.client("another-key")
    with pytest.raises(openai.NotFoundError):
        say(other, extra_body={"radchat": {"parent": told["message"]}})
    assert say(other).usage.prompt_tokens_details.cached_tokens == 0
    with pytest.raises(openai.AuthenticationError):
        say(served.client("no-such-key"))

    # a stream that is closed is ended
    with say(client, stream=True, max_completion_tokens=2000) as stream:
        next(iter(stream))
    wait_until(lambda: served.shell.call("status")["running"] == 0)
    home.assert_balanced()

    # many at once: each gets its own, and the daemon answers meanwhile
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        words = [f"question {number}" for number in range(64)]
        alone = {word: say(client, [{"role": "user", "content": word}]) for word in words[:2]}

        def ask(word: str) -> str:
            with say(client, [{"role": "user", "content": word}], stream=True) as stream:
                return "".join(c.choices[0].delta.content or "" for c in stream)

        going = [pool.submit(ask, word) for word in words]
        assert served.shell.call("status")["listening"] == [served.url]
        texts = [each.result(60) for each in going]
    assert all(texts)
    for place, word in enumerate(words[:2]):
        assert texts[place] == alone[word].choices[0].message.content
    home.assert_balanced()
    assert served.url in served.shell("daemon", "status").out
    code, err = served.end()
    assert code == 130
    assert str(served.key_file) in err
    with pytest.raises(openai.APIConnectionError):
        say(client)


def test_the_listener_goes_with_its_command_and_the_command_with_the_daemon(
    served: Served,
) -> None:
    log = served.shell.home.places.log
    served.process.send_signal(signal.SIGKILL)
    served.process.wait()
    wait_until(lambda: "is closed" in log.read_text())
    assert served.shell.call("status")["listening"] == []
    second = Served(served.shell)
    assert second.key == served.key
    port = second.url.rpartition(":")[2].partition("/")[0]
    taken = served.shell("serve", "--port", port, code=75)
    assert "--port 0" in taken.err
    served.shell("daemon", "stop")
    done = finish(second.process)
    assert done.code == 69
    assert "stopped" in done.err
    text = log.read_text()
    assert second.key not in text
    assert "another-key" not in text


def test_a_daemon_without_the_api_has_none_of_its_libraries(own: Shell) -> None:
    own.ask("hello")
    maps = Path(f"/proc/{own.home.info.pid}/maps").read_text()
    assert "torch" in maps
    assert "pydantic_core" not in maps
