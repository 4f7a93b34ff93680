"""The K and V tensors of one model: ``[layers, 2, pages, page_size, kv_heads, head_dim]``.

One block of memory for all layers, so that a page is the same id everywhere and a run of
consecutive pages is a view. The pool knows nothing of who owns a page; the caller does. Memory is
committed by the system as pages are first written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from radchat_kernels.executor import Executor, choose

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


class KVPool:
    """Pages of KV. With ``poison`` free slots are NaN, so that a read of one is seen."""

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
        poison: bool = False,
        executor: Executor | None = None,
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self._layers = [(self.data[i, 0], self.data[i, 1]) for i in range(num_layers)]
        self._executor = executor or choose("cpu")
        self._slots = self.data.view(num_layers, 2, -1, num_kv_heads, head_dim)
        if poison:
            self.data.fill_(torch.nan)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        layers, two, _, _, kv_heads, head_dim = self.data.shape
        return layers * two * kv_heads * head_dim * self.data.element_size()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """K and V of one layer, each ``[pages, page_size, kv_heads, head_dim]``."""
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages (from, to) in every layer; none is both, and none is written twice."""
        if pairs:
            self._executor.copy_pages(self.data, list(pairs))

    def block_shape(self, num_tokens: int) -> tuple[int, ...]:
        """Of the values of so many tokens as ``read`` gives and ``write`` takes them."""
        layers, two, _, kv_heads, head_dim = self._slots.shape
        return layers, two, num_tokens, kv_heads, head_dim

    def read(self, table: Sequence[int], start: int, end: int) -> bytearray:
        """A copy of a path's tokens [start, end), whose pages ``table`` names from its start.

        In this process's memory, wherever the pool is, as is what ``write`` takes.
        """
        data = bytearray((end - start) * self.bytes_per_token)
        values = torch.frombuffer(data, dtype=self.dtype).view(self.block_shape(end - start))
        for slot, at, count in self._runs(table, start, end):
            values.narrow(2, at - start, count).copy_(self._slots.narrow(2, slot, count))
        return data

    def write(
        self, table: Sequence[int], start: int, end: int, data: bytearray | memoryview, first: int
    ) -> None:
        """Tokens [start, end) of a path from ``data``, that holds tokens from ``first`` on.

        ``data`` must be writable, if only for torch's sake.
        """
        num_tokens = len(data) // self.bytes_per_token
        values = torch.frombuffer(data, dtype=self.dtype).view(self.block_shape(num_tokens))
        for slot, at, count in self._runs(table, start, end):
            self._slots.narrow(2, slot, count).copy_(values.narrow(2, at - first, count))

    def _runs(self, table: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """[start, end) as (first slot, position, tokens) of neighbours in the pool."""
        size = self.page_size
        at = start
        while at < end:
            index = at // size
            stop = index + 1
            while stop * size < end and table[stop] == table[stop - 1] + 1:
                stop += 1
            count = min(stop * size, end) - at
            yield table[index] * size + at % size, at, count
            at += count

    def poison(self, pages: Iterable[int]) -> None:
        """Fill pages with NaN: nobody may read them before they are written again."""
        self.data[:, :, list(pages)] = torch.nan
