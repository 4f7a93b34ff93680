"""Clients that go away, stop strings, and a daemon that stops: what is left is in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.services import run, until
from tests.scripted import Turns
from tests.v1.apis import USER, Hanging, api
from tests.v1.test_chat import text_of

LONG: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 3000, "temperature": 0}


@pytest.mark.parametrize("radchat", [None, {"session": "s"}])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_answer(
    tmp_path: Path, stream: bool, radchat: dict[str, Any] | None
) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await it.chat()
            engine = it.home.service.engines.all[0].engine
            more = {"radchat": radchat} if radchat else {}
            for when in ("before a word", "in the midst"):
                asked = Hanging(it, "/v1/chat/completions", {**LONG, "stream": stream, **more})
                if when == "in the midst":
                    begun = engine.stats()["output_tokens"]
                    await until(lambda: engine.stats()["output_tokens"] > begun + 3)  # noqa: B023
                await asked.cut()
                await it.idle()
                told = engine.stats()["output_tokens"]
                await it.chat(max_tokens=2)
                assert engine.stats()["output_tokens"] == told + 2
            if radchat:  # what was said in a session is kept, by the rule of every answer
                log = await it.home.service.log({"terminal": None, "folder": "/"}, session="s")
                assert log["messages"][-1]["finish_reason"] == "abort"

    run(work())


def fox(_turns: Turns) -> Mapping[str, float]:
    return {"The quick brown fox jumps": 1.0}


def test_a_stop_string_is_never_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path, fox) as it:
            for stop in (["own fox"], ["own fox jumps", "own fox"], "own fox", ["fox", "own f"]):
                asked: dict[str, Any] = {"stop": stop, "max_tokens": 50}
                whole = (await it.chat(**asked))["choices"][0]
                chunks = await it.chunks(**asked, logprobs=True)
                assert whole["message"]["content"] == text_of(chunks) == "The quick br"
                assert whole["finish_reason"] == "stop"
                assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
                said = [
                    entry["token"]
                    for chunk in chunks
                    for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
                ]
                assert "".join(said).startswith("The quick br")
                assert "fox" not in "".join(said)
            # one that comes to its own end: its words, and no token that is none
            for_all = {"logprobs": True, "max_tokens": 50}
            (whole,) = (await it.chat(**for_all))["choices"]
            told = whole["logprobs"]["content"]
            assert "".join(entry["token"] for entry in told) == whole["message"]["content"]
            assert whole["finish_reason"] == "stop"
            streamed = [
                entry
                for chunk in await it.chunks(**for_all)
                for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            ]
            assert streamed == told

    run(work())


def test_a_daemon_that_stops_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await it.chat()
            streamed = Hanging(it, "/v1/chat/completions", {**LONG, "stream": True})
            whole = Hanging(it, "/v1/chat/completions", LONG)
            await streamed.until(b"content")
            it.app.stop_begun.set()
            it.app.cut.set()
            await streamed.task
            await whole.task
            assert b'"error"' in streamed.sent.split(b"\n\n")[-2]
            assert b"[DONE]" not in streamed.sent
            assert whole.status == 503
            refused = await it.http.post("/v1/chat/completions", json=LONG)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1

    run(work())


BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "half a brace": (b"{:", 400),
    "cut off": (b'{"model": "tiny", "messages": [{"role"', 400),
    "GBK": ('{"model": "中文"}'.encode("gbk"), 400),
    "an array": (b"[]", 400),
    "NaN": (b'{"model": "tiny", "messages": [], "temperature": NaN}', 400),
    "deep": (b"[" * 100_000, 400),
    "deep in a field": (b'{"model": "tiny", "messages": ' + b"[" * 100_000, 400),
    "no messages": (b'{"model": "tiny"}', 400),
}


def test_bodies_that_are_no_requests(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            head = {"content-type": "application/json"}
            for what, (body, status) in BODIES.items():
                answer = await it.http.post("/v1/chat/completions", content=body, headers=head)
                assert answer.status_code == status, (what, answer.text)
                assert answer.json()["error"]["type"] == "invalid_request_error", what
            text = await it.http.post(
                "/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
            )
            assert text.status_code == 400
            huge = await it.http.post(
                "/v1/chat/completions",
                content=b"{}",
                headers={**head, "content-length": str(200 * 1024 * 1024)},
            )
            assert huge.status_code == 413
            surrogate = (
                rb'{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"\ud800"}]}'
            )
            good = await it.http.post("/v1/chat/completions", content=surrogate, headers=head)
            assert good.status_code == 200

    run(work())
