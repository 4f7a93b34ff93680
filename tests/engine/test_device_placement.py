"""Everything of a step is on the device: not one tensor made on the CPU by mistake.

The device is a stand-in (``stand_in.py``) that computes nothing: what is where, and how often
something goes there and back, is all that is looked at. Kernels are not run; of their arguments
only the place is checked.
"""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from radchat.config import Size
from radchat.engine.convert import convert
from radchat.engine.device import Device
from radchat.engine.forward import heads_of
from radchat.engine.model import build_engine, load
from radchat.engine.request import Request, SamplingParams
from radchat_kernels.executor import Executor, HeadNorm, Heads
from radchat_kernels.torch_executor import TorchExecutor
from tests.engine.bench import Bench, GeneralTinyModel, TinyModel, prompt
from tests.engine.stand_in import DEVICE, Checked, Misplaced, StandIn, executor, is_on_device
from tests.engine.tiny import CLASSES
from tests.fakes import drain
from tests.models import making

WINDOWED = {"mistral": {"sliding_window": 24}}
FAMILIES = pytest.mark.parametrize("kind", CLASSES)
EXECUTORS = pytest.mark.parametrize("name", ["triton", "torch"])
DRAWS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 0},
    {"temperature": 1.0, "logit_bias": {3: 1.0}, "presence_penalty": 0.5, "prompt_logprobs": True},
]


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """Of a file in 4 bits: they can be run in them, or unpacked."""
    config, weights = making.model("llama")
    source = making.gguf_file(tmp_path / "m.gguf", config, weights, quant=Quant.Q4_1)
    convert(source, tmp_path / "tiny", {"name": "tiny"})
    return tmp_path / "tiny"


def named(name: str) -> Executor:
    return executor() if name == "triton" else TorchExecutor()


def on_device(kind: str, made: Executor, dtype: torch.dtype = torch.bfloat16) -> Bench:
    model = TinyModel(kind, dtype, made, DEVICE, **WINDOWED.get(kind, {}))
    return Bench(dtype, kind, on=model)


def converse(bench: Bench) -> None:
    """Two turns, a fork inside a page, and branches that decode at once."""
    first = prompt(1, 50)
    bench.run(bench.request(first, 3))
    second = first + prompt(2, 9)
    bench.run(bench.request(second, 3))
    bench.run(*(bench.request(second[:41] + array("I", [n]), 4) for n in range(3)))


@FAMILIES
@EXECUTORS
def test_a_conversation_runs_on_the_device(kind: str, name: str) -> None:
    with StandIn():
        bench = on_device(kind, named(name))
        converse(bench)
    assert is_on_device(bench.pool.data)
    assert is_on_device(bench.model.logits)


@EXECUTORS
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "phi3"])
def test_a_conversation_on_the_general_path_runs_on_the_device(kind: str, name: str) -> None:
    with StandIn():
        model = GeneralTinyModel(kind, torch.float32, named(name), DEVICE)
        converse(Bench(torch.float32, kind, on=model))
    assert is_on_device(model.logits)


@EXECUTORS
@pytest.mark.parametrize("params", DRAWS, ids=str)
def test_ids_are_drawn_from_logits_on_the_device(params: dict[str, object], name: str) -> None:
    with StandIn():
        bench = on_device("llama", named(name))
        given = SamplingParams(max_tokens=3, seed=7, **params)  # type: ignore[arg-type]
        n = 1 if given.prompt_logprobs else 2
        bench.run(Request("a", prompt(1, 30), given, n=n))


def test_a_decode_step_takes_one_transfer_there_and_few_launches() -> None:
    launches = Checked()
    with StandIn() as device:
        bench = on_device("llama", executor(launches))
        for n in range(4):
            bench.engine.submit(bench.request(prompt(1, 40) + prompt(n, 1), 8))
        for _ in range(5):
            bench.engine.step()
        device.up.clear()
        device.down.clear()
        launches.names.clear()
        made = bench.engine.plans_made
        bench.engine.step()
        assert bench.engine.plans_made == made, "the plan of the last step serves"
    assert len(device.up) == 1
    assert device.down == [(4,)], "the ids"
    layers = bench.model.config.num_layers
    assert Counter(launches.names) == {
        "add_rmsnorm_kernel": 2 * layers + 1,
        "rope_store_kernel": layers,
        "attend_kernel": layers,
        "merge_kernel": layers,
        "act_mul_kernel": layers,
    }


def test_log_probabilities_of_all_rows_come_in_one_transfer() -> None:
    with StandIn() as device:
        bench = on_device("llama", executor())
        for n, count in enumerate((3, 0, None, 5)):
            params = SamplingParams(max_tokens=8, temperature=0, logprobs=count)
            bench.engine.submit(Request(str(n), prompt(1, 40) + prompt(n, 1), params))
        for _ in range(5):
            bench.engine.step()
        device.up.clear()
        device.down.clear()
        bench.engine.step()
    assert device.down == [(4,), (3, 1 + 5 + 5)], "the ids; log probabilities and ids of the best"


@EXECUTORS
def test_kv_goes_to_host_memory_and_back(name: str) -> None:
    with StandIn() as device:
        pool = TinyModel("llama", torch.float32, named(name), DEVICE).pool(8)
        device.up.clear()
        data = pool.read([3, 4, 7], 5, 40)
        pool.write([1, 2, 5], 5, 40, data, 5)
        pool.copy_pages([(1, 3), (2, 4)])
        pool.poison([1, 2])
    assert len(data) == 35 * pool.bytes_per_token
    assert torch.frombuffer(data, dtype=torch.float32).eq(1).all(), "what a stand-in gives"
    assert device.down == [(2, 2, 27, 2, 16), (2, 2, 8, 2, 16)]
    assert device.up == [(2, 2, 27, 2, 16), (2, 2, 8, 2, 16), (4,)], "the pairs last"


@EXECUTORS
@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_a_model_is_loaded_onto_the_device(converted: Path, dtype: str, name: str) -> None:
    with StandIn():
        model = load(converted, dtype, device=Device(DEVICE), executor=named(name))
        engine = build_engine(model, kv_budget=Size(tokens=256), check=True)
        engine.submit(Request("a", prompt(1, 20), SamplingParams(temperature=0, max_tokens=3)))
        drain(engine)
    assert not model.is_mapped
    assert (engine.device, engine.executor) == (model.device, model.executor)
    assert is_on_device(engine.pool.data)
    limits = model.executor.limits(heads_of(model.decoder.config), 2)
    assert limits.growing is (name == "triton")
    assert limits.shared
    assert engine._runner.planner._limits == limits


# -- mistakes are seen ----------------------------------------------------------------------------


class Forgetful(TorchExecutor):
    """Makes a weight where tensors are made by default."""

    def add_rmsnorm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().add_rmsnorm(x, residual, torch.ones(len(weight)), eps)


def test_a_tensor_made_on_the_cpu_by_mistake_is_seen_in_an_operation() -> None:
    with StandIn(), pytest.raises(Misplaced, match=r"aten\.mul"):
        converse(on_device("llama", Forgetful()))


def test_and_in_a_launch() -> None:
    made = executor()
    heads = Heads(4, 2, 16)
    seen = pytest.raises(Misplaced, match=r"argument \d+ of rope_store_kernel is on the cpu")
    with StandIn(), seen:
        qkv = torch.zeros(3, 128, device=DEVICE)
        pool = torch.zeros(4, 16, 2, 16, device=DEVICE)
        slots = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        norm = HeadNorm(torch.ones(6, 16), 1e-5)
        angles = (torch.zeros(3, 1, 16, device=DEVICE), torch.zeros(3, 1, 16, device=DEVICE))
        made.rope_store(qkv, angles, pool, pool, slots, heads, norm)


def test_and_the_cpus_own_operations_are_not_taken_for_the_devices() -> None:
    x = torch.zeros(1, 1, 2, 16, device=DEVICE)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    with StandIn(), pytest.raises(Misplaced, match="is the CPU's alone"):
        flash(x, x, x)
