"""The K and V tensors of one model: ``[layers, 2, pages, page_size, kv_heads, head_dim]``.

One block of memory for all layers, so that a page is the same id everywhere and a run of
consecutive pages is a view. The pool knows nothing of who owns a page; the caller does. Memory is
committed by the system as pages are first written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


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
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self._layers = [(self.data[i, 0], self.data[i, 1]) for i in range(num_layers)]
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
        """Copy pages (from, to) in every layer. All are read before any is written."""
        if pairs:
            source, target = torch.tensor(pairs).T
            self.data[:, :, target] = self.data[:, :, source]

    def poison(self, pages: Iterable[int]) -> None:
        """Fill pages with NaN: nobody may read them before they are written again."""
        self.data[:, :, list(pages)] = torch.nan
