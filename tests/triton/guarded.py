"""The launcher for attention: what lies beside its integers leads to NaN or to a wrong result."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from tests.triton.banded import Banded

BESIDE = {
    "items_ptr": (0, 1, 0, 0, 0, 0, -1, -1),  # an item that would zero the first row's output
    "pages_ptr": (0,),  # the poison page
    "positions_ptr": (2**31 - 1,),  # sees everything
}


class Launches(Banded):
    """As ``Banded``; what the work list promises to write begins as NaN."""

    def __init__(self, kernels: ModuleType | None = None) -> None:
        super().__init__(kernels=kernels)

    def prepare(self, kernel: str, given: dict[str, Any]) -> None:
        if kernel != "attend_kernel":
            return
        given["mid_o_ptr"].fill_(torch.nan)
        given["mid_lse_ptr"].fill_(torch.nan)
        given["o_ptr"][given["rows_ptr"].long()] = torch.nan
        # last item first: a device promises no order, the interpreter keeps it
        items = given["items_ptr"].view(-1, 8)[: int(given["n_items_ptr"])]
        items.copy_(items.flip(0))

    def beside(self, name: str, given: dict[str, Any]) -> Sequence[int]:
        """An index that is no row's, no slot's, unless there is worse."""
        return BESIDE.get(name, (len(given["q_ptr"] if "q_ptr" in given else given["mid_o_ptr"]),))
