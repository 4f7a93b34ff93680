"""4-bit weights in plain torch, against gguf's own quantizer and a sum written out."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from radchat.engine.convert_gguf import unpack_blocks
from radchat_kernels.executor import Packed4
from radchat_kernels.torch_int4 import linear4, pieces, unpack


def packed(out: int, columns: int, quant: Quant = Quant.Q4_1) -> tuple[Packed4, torch.Tensor]:
    """Blocks of a GGUF file as convert writes them, and the float32 values gguf reads in them."""
    values = np.random.default_rng(out + columns).normal(size=(out, columns)).astype(np.float32)
    data = gguf.quants.quantize(values, quant)
    scales, zeros, q = unpack_blocks(data, quant, columns)
    weight = Packed4(
        torch.from_numpy(q[:, ::2] | q[:, 1::2] << 4),
        torch.from_numpy(scales),
        torch.from_numpy(np.ascontiguousarray(zeros)),
    )
    return weight, torch.from_numpy(gguf.quants.dequantize(data, quant))


@pytest.mark.parametrize("quant", [Quant.Q4_0, Quant.Q4_1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unpacked_values_are_the_files_rounded_once(quant: Quant, dtype: torch.dtype) -> None:
    weight, values = packed(33, 96, quant)
    assert torch.equal(unpack(weight, dtype), values.to(dtype))


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_is_that_of_the_unpacked_weight(has_bias: bool) -> None:
    weight, values = packed(37, 64)
    x = torch.randn(2, 3, 64)
    bias = torch.randn(37) if has_bias else None
    got = linear4(x, weight, bias)
    wanted = x.double() @ values.double().T + (bias.double() if bias is not None else 0)
    assert got.shape == (2, 3, 37)
    assert (got - wanted).abs().max() < 1e-5
    rounded = linear4(x.bfloat16(), weight, None if bias is None else bias.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert ((rounded - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_large_weight_is_unpacked_in_pieces(has_bias: bool) -> None:
    weight, _ = packed(37, 64)
    x, bias = torch.randn(3, 64), torch.randn(37) if has_bias else None
    tenth = 10 * 64 * 4
    runs = list(pieces(weight, torch.float32, tenth))
    assert [len(weight.nibbles[rows]) for rows in runs] == [10, 10, 10, 7]
    assert len(list(pieces(weight, torch.float32, 1))) == 37
    got = linear4(x, weight, bias, piece_bytes=tenth)
    assert torch.allclose(got, linear4(x, weight, bias), atol=1e-5)
