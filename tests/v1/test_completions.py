"""Completions without a template, tokens, models and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from radchat.models.remote import pull_remote
from tests.daemon.services import run, until
from tests.remote.fakes import serving
from tests.v1.apis import USER, Api, Hanging, api

TEXT = "Once upon a time there was a fox who said"
PLAIN: dict[str, Any] = {"model": "tiny", "prompt": TEXT, "max_tokens": 6, "temperature": 0}


async def complete(it: Api, status: int = 200, **more: Any) -> Any:
    return await it.post("/v1/completions", {**PLAIN, **more}, status)


def test_text_and_its_ids_go_on_alike_and_from_the_cache(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            told = await it.post("/tokenize", {"model": "tiny", "prompt": TEXT})
            ids = told["tokens"]
            assert told["count"] == len(ids)
            assert told["max_model_len"] > len(ids)
            back = await it.post("/detokenize", {"model": "tiny", "tokens": ids})
            assert back == {"prompt": TEXT}
            text = await complete(it, return_token_ids=True, logprobs=2)
            (choice,) = text["choices"]
            assert choice["prompt_token_ids"] == ids
            assert len(choice["token_ids"]) == 6
            again = await complete(it, prompt=ids)
            assert again["choices"][0]["text"] == choice["text"]
            cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == len(ids) - 1
            # the next turn's ids begin with all that was read and drawn: what is cached tells
            more = [*ids, *choice["token_ids"], *ids[:3]]
            third = await complete(it, prompt=more)
            cached = third["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= len(ids) + 5
            logprobs = choice["logprobs"]
            assert "".join(logprobs["tokens"]) == choice["text"]
            assert all(len(top) == 2 for top in logprobs["top_logprobs"])
            chunks = await it.stream("/v1/completions", {**PLAIN, "return_token_ids": True})
            assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
            streamed = [i for c in chunks for i in c["choices"][0]["token_ids"]]
            assert streamed == choice["token_ids"]
            told = [
                c["choices"][0]["logprobs"]
                for c in await it.stream("/v1/completions", {**PLAIN, "logprobs": 2})
            ]
            offsets = [offset for each in told if each for offset in each["text_offset"]]
            assert offsets == logprobs["text_offset"]

    run(work())


def test_a_prompt_is_told_again_and_scored(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            told = await complete(it, echo=True, logprobs=1, max_tokens=1)
            (choice,) = told["choices"]
            assert choice["text"].startswith(TEXT)
            logprobs = choice["logprobs"]
            assert logprobs["token_logprobs"][0] is None
            assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
            assert len(logprobs["tokens"]) == told["usage"]["total_tokens"]
            assert logprobs["text_offset"][0] == 0
            assert "".join(logprobs["tokens"]) == choice["text"]
            assert logprobs["text_offset"][-1] == len(choice["text"]) - len(logprobs["tokens"][-1])
            assert (await complete(it, 400, suffix="x"))["error"]["param"] == "suffix"
            assert (await complete(it, 400, echo=True, logprobs=1, stream=True))["error"]

    run(work())


def test_several_prompts_and_choices_have_their_numbers(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            prompts = ["one fox", "two foxes"]
            both = await complete(it, prompt=prompts, n=2, seed=3, temperature=1)
            assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
            for place, prompt in enumerate(prompts):
                alone = await complete(it, prompt=prompt, n=2, seed=3, temperature=1)
                mine = [c["text"] for c in both["choices"][2 * place : 2 * place + 2]]
                assert mine == [choice["text"] for choice in alone["choices"]]
            single = [(await complete(it, prompt=p))["usage"]["prompt_tokens"] for p in prompts]
            assert both["usage"]["prompt_tokens"] == sum(single)
            assert both["usage"]["completion_tokens"] == 24

    run(work())


BAD: dict[str, Any] = {
    "no prompt": {"prompt": ""},
    "no ids": {"prompt": []},
    "an id that is none": {"prompt": [1, 10**9]},
    "one below 0": {"prompt": [-1]},
    "no tokens": {"max_tokens": 0},
    "a mixture": {"prompt": ["a", 1]},
    "too many logprobs": {"logprobs": 21},
    "best of more": {"best_of": 3},
    "more than all together may be": {"prompt": ["a"] * 65, "n": 2},
    "scores of many": {"echo": True, "logprobs": 1, "n": 2},
    "two grammars": {"structured_outputs": {"regex": "a", "json": {}}},
    "a stop id beyond the end": {"stop_token_ids": [10**8]},
    "a regex that is none": {"structured_outputs": {"regex": "("}},
}


def test_bad_completions_are_told_and_hurt_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            neighbour = asyncio.create_task(complete(it, max_tokens=50))
            for what, body in BAD.items():
                error = (await complete(it, 400, **body))["error"]
                assert error["type"] == "invalid_request_error", what
            assert (await neighbour)["usage"]["completion_tokens"] == 50
            long = await complete(it, 400, prompt="word " * 5000)
            assert long["error"]["code"] == "context_length_exceeded"

    run(work())


def test_an_answer_under_a_grammar(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            regex = await complete(it, structured_outputs={"regex": "[ab]{3}"})
            assert set(regex["choices"][0]["text"]) <= set("ab")
            chosen = await complete(it, structured_outputs={"choice": ["yes", "no"]})
            assert chosen["choices"][0]["text"] in ("yes", "no")

    run(work())


def test_a_completion_whose_client_goes_is_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            await complete(it)
            engine = it.home.service.engines.all[0].engine
            begun = engine.stats()["output_tokens"]
            asked = Hanging(it, "/v1/completions", {**PLAIN, "max_tokens": 3000, "n": 2})
            await until(lambda: engine.stats()["output_tokens"] > begun + 3)
            await asked.cut()
            await it.idle()
            told = engine.stats()["output_tokens"]
            await complete(it, max_tokens=2)
            assert engine.stats()["output_tokens"] == told + 2

    run(work())


def test_models_are_listed_and_none_is_loaded_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            told = (await it.http.get("/v1/models")).json()
            assert {each["id"] for each in told["data"]} == {"tiny", "other"}
            assert all(each["owned_by"] == "radchat" for each in told["data"])
            one = (await it.http.get("/v1/models/tiny")).json()
            assert one["max_model_len"] > 0
            assert (await it.http.get("/v1/models/nobody")).status_code == 404
            assert it.home.service.engines.all == []
            # no path, no home folder of anybody, no other program's store
            folder = str(next(it.home.places.models.iterdir()))
            for name in (folder, "~nobody/x", "../models", "ollama:llama3", "tin", "\x00"):
                for path, body in (
                    ("/v1/chat/completions", {"messages": USER}),
                    ("/v1/completions", {"prompt": "x"}),
                    ("/tokenize", {"prompt": "x"}),
                ):
                    answer = await it.post(path, {"model": name, **body}, 404)
                    assert answer["error"]["code"] == "model_not_found"
            assert it.home.service.engines.all == []

    run(work())


def _metrics(text: str) -> dict[str, float]:
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def _read(it: Api) -> dict[str, float]:
    answer = await it.http.get("/metrics")
    assert answer.status_code == 200
    return _metrics(answer.text)


def test_metrics_add_up_and_never_go_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            before = await _read(it)
            assert before["vllm:num_requests_running{}"] == 0
            told = await it.chat()
            await it.chunks()
            await it.chat(status=400, temperature=-1)
            now = await _read(it)
            read = told["usage"]["prompt_tokens"]
            assert now["vllm:prompt_tokens_total{}"] == 2 * read
            assert now["vllm:generation_tokens_total{}"] == 10
            assert now["vllm:prefix_cache_hits_total{}"] == read - 1
            assert now["vllm:time_to_first_token_seconds_count{}"] == 1
            assert now["vllm:e2e_request_latency_seconds_count{}"] == 2
            labels = {"route": "/v1/chat/completions", "status": "400"}
            assert now["radchat:http_requests_total" + json.dumps(labels)] == 1
            states: Mapping[str, float] = {
                name: value for name, value in now.items() if name.startswith("radchat:kv_tokens")
            }
            stats = it.home.service.engines.all[0].engine.stats()
            assert sum(states.values()) == stats["tokens"]["total"]
            await it.home.service.models_unload()
            after = await _read(it)
            for name, value in now.items():
                if "_total" in name or "_count" in name:
                    assert after[name] >= value, name
            assert after["radchat:engines{}"] == 0

    run(work())


def test_a_conversation_is_tokenized_as_it_is_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            told = await it.post("/tokenize", {"model": "tiny", "messages": USER})
            asked = await it.chat()
            assert told["count"] == asked["usage"]["prompt_tokens"]
            bare = {"model": "tiny", "messages": USER, "add_generation_prompt": False}
            assert (await it.post("/tokenize", bare, 400))["error"]["param"] == next(reversed(bare))
            huge = {"model": "tiny", "prompt": "x" * 1_000_001}
            assert (await it.post("/tokenize", huge, 400))["error"]["param"] == "prompt"
            both = {"model": "tiny", "messages": USER, "prompt": "x"}
            assert (await it.post("/tokenize", both, 400))["error"]["param"] == "prompt"

    run(work())


def test_an_engine_that_is_gone_is_no_empty_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with api(tmp_path) as it:
            folder = next(path for path in it.home.places.models.iterdir() if "tiny" in path.name)
            with serving("vllm", folder) as fake:
                entry = await asyncio.to_thread(pull_remote, it.home.places, fake.url, "tiny")
                told = await complete(it, model=entry.name)
                assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                fake.faults.tells_cached = False
                told = await complete(it, model=entry.name)
                assert told["usage"]["prompt_tokens_details"]["cached_tokens"] is None
                fake.faults.refuse = [400]
                failed = await complete(it, 503, model=entry.name)
                assert "not now" in failed["error"]["message"]

    run(work())
