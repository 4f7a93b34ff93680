"""4-bit weights in the interpreter: every form against a sum in float64, between bands of NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radchat.engine.decoder import Decoder, DecoderConfig
from radchat_kernels import int4, torch_int4
from radchat_kernels.executor import Packed4, choose
from radchat_kernels.triton_executor import TritonExecutor
from tests.engine.running import Running, some_ids
from tests.engine.tiny import tiny_config, tiny_weights
from tests.triton.banded import Banded, edited
from tests.triton.test_rows import DTYPES, TOLERANCE, normal, wide

PARTS = ("nibbles", "scales", "zeros")
# rows, outputs, columns: of no block a multiple, tails in the last block of columns and without
SHAPES = [
    (1, 13, 96),
    (2, 7, 1024),
    (3, 5, 1088),
    (4, 3, 4128),
    (5, 33, 160),
    (17, 70, 96),
    (40, 65, 64),
    (65, 9, 1056),
]


def random_weight(out: int, columns: int) -> Packed4:
    generator = torch.Generator().manual_seed(out * columns)
    groups = (out, columns // 32)
    return Packed4(
        torch.randint(256, (out, columns // 2), generator=generator, dtype=torch.uint8),
        (torch.rand(groups, generator=generator) * 0.02).half(),
        (torch.rand(groups, generator=generator) * -0.2).half(),
    )


def error(kernels: Any, shape: tuple[int, int, int], dtype: torch.dtype, has_bias: bool) -> float:
    """Of ``kernels``' product, relative."""
    rows, out, columns = shape
    x, weight = wide(rows, columns, dtype), random_weight(out, columns)
    bias = normal(out, dtype=dtype, seed=1) if has_bias else None
    got = kernels.linear4(x, weight, bias, launch=Banded("out_ptr")).double()
    wanted = x.double() @ torch_int4.unpack(weight, torch.float32).double().T
    if bias is not None:
        wanted += bias.double()
    assert got.shape == (rows, out)
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_all_forms(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    assert error(int4, shape, dtype, has_bias=shape[0] % 2 == 1) < TOLERANCE[dtype]


def test_the_form_goes_by_the_number_of_rows() -> None:
    weight, launches = random_weight(5, 64), Named()
    for rows in (0, 1, 4, 5, 64, 65):
        int4.linear4(normal(rows, 64), weight, launch=launches)
    forms = ["gemv4_kernel"] * 2 + ["gemm4_kernel"] * 2 + ["unpack4_kernel"]
    assert launches.names == forms


def test_a_row_alone_and_among_others_differ_by_rounding_only() -> None:
    x, weight = normal(70, 160), random_weight(9, 160)
    executor = TritonExecutor("cpu")
    among = [executor.linear4(x[:rows], weight)[0] for rows in (1, 3, 5, 20, 70)]
    for each in among[1:]:
        assert torch.allclose(each, among[0], rtol=1e-5, atol=1e-5)
    assert executor.linear4(x.view(2, 5, 7, 160), weight).shape == (2, 5, 7, 9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unpacked_weights_are_those_of_plain_torch(dtype: torch.dtype) -> None:
    weight = random_weight(6, 1056)
    got = int4.unpack4(weight, dtype, launch=Banded("out_ptr"))
    wanted = torch_int4.unpack(weight, dtype)
    if dtype == torch.bfloat16:  # which the interpreter cuts instead of rounding
        assert torch.allclose(got, wanted, rtol=2**-7, atol=0)
    else:
        assert torch.equal(got, wanted)


def test_a_model_in_4_bits_says_what_it_says_in_plain_torch() -> None:
    config = DecoderConfig.from_hf(tiny_config("qwen2"))
    weights = tiny_weights(config)
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim == 2 and "embed" not in name:
            parts = random_weight(*tensor.shape)
            packed |= {f"{name}.{part}": getattr(parts, part) for part in PARTS}
    models = [
        Running(
            Decoder(config, weights, torch.float32, executor=choose("cpu", name), packed=packed)
        )
        for name in ("torch", "triton")
    ]
    for count in (7, 1):  # a prompt, and a token after it
        plain, ours = (each.extend(some_ids(count, seed=count)) for each in models)
        assert torch.allclose(ours, plain, rtol=1e-4, atol=1e-4)
        assert plain.std() > 0.1


BUGS = {
    "the halves are swapped": (
        "return (q & 15).to(tl.float32), (q >> 4).to(tl.float32)",
        "return (q >> 4).to(tl.float32), (q & 15).to(tl.float32)",
        [1, 5, 65],
    ),
    "the zeros are dropped": (
        "zero = tl.load(zeros_ptr",
        "zero = 0 * tl.load(zeros_ptr",
        [1, 5, 65],
    ),
    "the last block of columns is dropped": (
        "range(0, num_groups, BLOCK_G)",
        "range(0, num_groups // BLOCK_G * BLOCK_G, BLOCK_G)",
        [3, 5],
    ),
    "the last outputs are dropped": ("-(-num_out // ", "(num_out // ", [1, 5, 65]),
    "columns beyond the last are read": (
        "mask=(g < num_groups)[None, :, None]",
        "mask=(g < BLOCK_G * num_groups)[None, :, None]",
        [3],
    ),
    "rows beyond the last are written": ("(r < num_rows)[None, :]", "(r < ROWS)[None, :]", [3]),
    "x is read beyond its columns": ("& (begin * 32 + i < num_groups * 32)[None, :]", "", [5]),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, tmp_path: Path) -> None:
    right, wrong, rows = BUGS[bug]
    kernels = edited(int4, right, wrong, tmp_path)
    for shape in SHAPES:
        if shape[0] in rows:
            with pytest.raises(AssertionError):
                assert error(kernels, shape, torch.float32, has_bias=False) < 1e-6


class Named:
    """A launcher that remembers the kernels and runs none."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, kernel: Any, *_: Any, **__: Any) -> None:
        self.names.append(kernel.__name__)
