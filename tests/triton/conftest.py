"""Kernels in Triton's interpreter, on CPU tensors: a process of its own (make test-triton).

Triton reads TRITON_INTERPRET when it is first imported, and a process can't have both kinds.
"""

from __future__ import annotations

import os
import sys

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.exit(
        "tests/triton needs a process of its own: TRITON_INTERPRET=1 python -m pytest tests/triton",
        returncode=4,
    )
os.environ["TRITON_INTERPRET"] = "1"
