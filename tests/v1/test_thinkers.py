"""Models that think before they speak, and answers that are long in coming."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.daemon.services import run
from tests.e2e.tiny_models import converted
from tests.engine.text_toys import TEMPLATES
from tests.scripted import Turns
from tests.v1.apis import USER, Hanging, api
from tests.v1.test_chat import text_of

MARKS = ("<think>", "</think>", "\n\n")
FOLLOWS = {"": "<think>", "<think>": "a", "a": "b", "b": "c", "c": "</think>", "</think>": "d"}
FOLLOWS |= {"d": "e", "e": "<|im_end|>", "\n\n": "d"}


def test_reasoning_is_told_apart_and_need_not_be_told_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            template = (TEMPLATES / "qwen3.jinja").read_text()
            more: dict[str, Any] = {"template": template, "added": MARKS, "follows": FOLLOWS}
            converted(it.home.places.models, "thinker", **more)
            asked: dict[str, Any] = {"model": "thinker", "max_tokens": 40}
            whole = await it.chat(**asked)
            message = whole["choices"][0]["message"]
            assert (message["content"], message["reasoning_content"]) == ("de", "abc")
            assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
            chunks = await it.chunks(**asked)
            assert text_of(chunks) == "de"
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "abc"
            off = await it.chat(**asked, reasoning_effort="none")
            assert "reasoning_content" not in off["choices"][0]["message"]
            # the same conversation, whichever of it a client tells back
            prompts = set()
            for left_out in ((), ("reasoning_content",), ("reasoning_content", "refusal")):
                told = {name: message[name] for name in message if name not in left_out}
                on = await it.chat([*USER, told, *USER], **asked)
                prompts.add(on["usage"]["prompt_tokens"])
                assert on["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            assert len(prompts) == 1

    run(work())


def test_a_stream_that_has_nothing_to_say_yet_says_so(tmp_path: Path) -> None:
    gate = threading.Event()

    def slowly(_turns: Turns) -> Mapping[str, float]:
        assert gate.wait(30)
        return {"at last": 1.0}

    async def work() -> None:
        async with api(tmp_path, slowly, keep_alive_s=0.05) as it:
            asked = {"model": "tiny", "messages": USER, "max_tokens": 30, "stream": True}
            stream = Hanging(it, "/v1/chat/completions", asked)
            try:
                await stream.until(b": still here\n\n")
                assert stream.status == 200
                assert b"data:" not in stream.sent
            finally:
                gate.set()
            await stream.task
            *lines, last, rest = stream.sent.decode().split("\n\n")
            assert (last, rest) == ("data: [DONE]", "")
            told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            assert text_of([*map(json.loads, told)]) == "at last"

    run(work())
