"""Attention over pages of KV: a plan of the work, and what runs it.

``plan`` is pure Python; ``attend`` and ``store`` run it with torch; ``reference`` says in float64
what they must compute. The README tells which to use when.
"""

from radchat_kernels.plan import Item, Plan, Segment, plan
from radchat_kernels.torch_exec import attend, store

__all__ = ["Item", "Plan", "Segment", "attend", "plan", "store"]
