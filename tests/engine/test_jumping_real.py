"""Jump-forward where numbers round: the real model in fp32, and a tiny one of random weights.

Here a forced run is a product of other many rows than ids one by one, as a cold prompt is.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radchat.config import Size
from radchat.engine.engine import Engine
from radchat.engine.grammar import Grammar
from radchat.engine.grammars import Compiled, Grammars
from radchat.engine.model import LoadedModel, build_engine, load
from radchat.engine.prefix_cache import PrefixCache
from radchat.engine.request import Event, FinishReason, Request, SamplingParams
from radchat.engine.scheduler_options import SchedulerOptions
from tests.engine.bench import TinyModel
from tests.engine.jumping import (
    LAYOUTS,
    PAGE,
    PERSON,
    asking,
    check_counts,
    text_of,
    tokenizer,
    told,
)
from tests.fakes import drain, finished, text

CHARACTER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "house": {"enum": ["Gryffindor", "Hufflepuff", "Ravenclaw", "Slytherin"]},
        "occupation": {"enum": ["student", "teacher"]},
        "wand": {
            "type": "object",
            "properties": {
                "wood": {"type": "string", "maxLength": 12},
                "length": {"type": "integer", "minimum": 5, "maximum": 15},
            },
            "required": ["wood", "length"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "house", "occupation", "wand"],
    "additionalProperties": False,
}


def run_both(engines: dict[bool, Engine], requests: list[Request]) -> dict[bool, list[Event]]:
    """With jump-forward and without, each on an engine that has seen nothing else."""
    events = {}
    for jump, engine in engines.items():
        for request in requests:
            engine.submit(replace(request, jump=jump))
        events[jump] = drain(engine)
        engine.check_idle()
        for request in requests:
            check_counts(events[jump], replace(request, jump=jump))
    for request in requests:
        assert told(events[True], request) == told(events[False], request), request.id
    return events


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_of_random_weights_says_the_same(layout: str) -> None:
    """In float64, so that no near tie decides; with others in the batch, and several samples."""
    size = tokenizer(layout).vocab_size + 45  # logits wider than the tokenizer, as real ones are
    model = TinyModel("llama", torch.float64, vocab_size=size)
    stops = frozenset({tokenizer(layout).control["<|im_end|>"]})
    compiled = Grammars(tokenizer(layout), size, stops).compile(
        Grammar("json_schema", json.dumps(PERSON, ensure_ascii=False))
    )
    engines = {jump: engine_on(model, layout) for jump in (True, False)}
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 11, "top_p": 0.95}
    requests = [
        asking("greedy", compiled, layout),
        asking("n", compiled, layout, words="how are you", n=3, **sampled),
        asking("long", compiled, layout, words="hello " * 30, repetition_penalty=1.2, **sampled),
        asking("plain", None, layout, words="the cat", max_tokens=40),
    ]
    events = run_both(engines, requests)
    assert finished(events[True], "n", 2).usage.forced_tokens > 5
    assert engines[True].stats()["steps"] < engines[False].stats()["steps"]


def engine_on(model: TinyModel, layout: str) -> Engine:
    pool = model.pool(120)
    return Engine(
        model,
        pool,
        PrefixCache(pool.num_pages, PAGE),
        text_of(layout),
        options=SchedulerOptions(chunk_tokens=64),
        clock=time.monotonic,
        check=True,
        executor=model.executor,
    )


# -- the real model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fp32(smollm2: Path) -> LoadedModel:
    return load(smollm2, "fp32")


def compiled(model: LoadedModel, schema: object) -> Compiled:
    grammars = Grammars(model.tokenizer, model.vocab_size, model.stop_ids)
    return grammars.compile(Grammar("json_schema", json.dumps(schema)))


@pytest.mark.model
def test_the_real_model_says_the_same_in_fewer_steps(fp32: LoadedModel) -> None:
    grammar = compiled(fp32, CHARACTER)
    engines = {
        jump: build_engine(fp32, kv_budget=Size(tokens=2048), check=True) for jump in (True, False)
    }
    one = SamplingParams(temperature=0.0, max_tokens=120, stop_ids=fp32.stop_ids)
    several = replace(one, temperature=0.8, seed=7)
    ids = fp32.tokenizer.encode_text
    requests = [
        Request("greedy", ids("Harry Potter as JSON: "), one, grammar=grammar),
        Request("several", ids("A witch as JSON:\n"), several, n=2, grammar=grammar),
    ]
    events = run_both(engines, requests)
    assert set(json.loads(text(events[True], "greedy"))) == set(CHARACTER["required"])
    steps = {jump: engine.stats()["steps"] for jump, engine in engines.items()}
    assert steps[True] <= 0.65 * steps[False]
    assert finished(events[True], "greedy").reason is FinishReason.STOP


@pytest.mark.model
def test_the_real_model_scores_choices_as_by_brute_force(fp32: LoadedModel) -> None:
    """Over a prefix computed once, against a row of logits for every token of each."""
    engine = build_engine(fp32, kv_budget=Size(tokens=2048), check=True)
    prefix = fp32.tokenizer.encode_text("The capital of France is")
    scores: dict[str, float] = {}
    for choice in (" Paris", " London", " a large town", " the moon"):
        ids = prefix + fp32.tokenizer.encode_text(choice, after=prefix)
        params = SamplingParams(temperature=0)
        engine.submit(Request("s", ids, params, fill="score", score_from=len(prefix)))
        engine.submit(Request("b", ids, replace(params, prompt_logprobs=True, max_tokens=1)))
        events = drain(engine)
        found, brute = (finished(events, name).prompt_logprobs for name in ("s", "b"))
        assert found is not None
        assert brute is not None
        mine = [each.logprob for each in found if each is not None]
        theirs = [each.logprob for each in brute[len(prefix) :] if each is not None]
        assert mine == pytest.approx(theirs, abs=2e-4)
        assert len(mine) == len(ids) - len(prefix)
        scores[choice] = sum(mine) / len(mine)
    assert max(scores, key=lambda each: scores[each]) == " Paris"
