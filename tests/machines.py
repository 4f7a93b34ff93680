"""How a hypothesis machine is run: the same lives each time, with no clock and no memory."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run(
    machine: type[RuleBasedStateMachine], *, examples: int, steps: int, shrinks: bool = True
) -> None:
    """``shrinks``: not in CI, where it outlasts the time limit; the slow tests shrink."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            database=None,
            phases=tuple(Phase) if shrinks else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
