"""What a model's first steps would compile, compiled before there is one: kernels of the executor,
and what the libraries under torch make at their first use.

Steps of all shapes that a chat has run over page 0, which is nobody's, and what they give is thrown
away. A variant that none of them needs (a long window, log probabilities) is compiled when a
request does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from radchat.engine import sampling
from radchat.engine.device import Device
from radchat.engine.forward import Forward
from radchat.engine.kv_pool import KVPool
from radchat.engine.request import SamplingParams
from radchat_kernels.executor import Executor
from radchat_kernels.plan import Limits, Segment, plan

# (position of the first row, rows) of each sequence of a step
STEPS = (
    ((0, 64),),  # a prompt, from its first token
    ((32, 64),),  # over what is cached
    ((0, 5),),
    ((32, 5),),
    ((40, 1),),  # an answer; then branches of one prefix, few and many
    *(((40, 1),) * rows for rows in (2, 3, 5, 16)),
    ((40, 1), (40, 1), (32, 21)),  # beside a prompt
)
FILTERED = SamplingParams(top_p=0.95)
GREEDY = SamplingParams(temperature=0)
NOTHING = sampling.Seen()


def warm_up(
    model: Forward,
    pool: KVPool,
    device: Device,
    executor: Executor,
    limits: Limits,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Run ``STEPS``; ``progress`` hears the share that is done. ``limits``: of the steps' plans.

    Changes nothing but page 0. Raises what a step does where the device is full.
    """
    computed = model.tokens_computed
    pool.copy_pages([(1, 0)])
    most = model.config.max_position_embeddings
    for done, step in enumerate(STEPS, 1):
        if all(start + rows <= most for start, rows in step):
            _run(step, model, pool, device, executor, limits)
        progress(done / len(STEPS))
    device.wait()
    model.tokens_computed = computed  # they are no work of a request's


def _run(
    step: Sequence[tuple[int, int]],
    model: Forward,
    pool: KVPool,
    device: Device,
    executor: Executor,
    limits: Limits,
) -> None:
    size = pool.page_size
    segments: list[Segment] = []
    positions: list[int] = []
    last: list[int] = []
    for start, rows in step:
        table = [0] * -(-(start + rows) // size)
        segments.append(Segment(len(positions), rows, start, table))
        positions.extend(range(start, start + rows))
        last.append(len(positions) - 1)
    made = plan(segments, size, limits=limits)
    slots = [t % size for t in positions]
    ids, at, to, ends = device.upload([0] * len(positions), positions, slots, last)
    with torch.inference_mode():
        logits = model.forward(ids, at, to, made, pool, ends)
        for params in (FILTERED, GREEDY):
            draws = [sampling.Draw(row, params, 0, 0, NOTHING) for row in range(len(step))]
            sampling.sample(logits, draws, executor=executor)
