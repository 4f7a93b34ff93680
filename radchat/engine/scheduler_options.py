"""What of scheduling can be set: the queue's policy, and the limits of a step and of who runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    policy: str = "lpm"  # or fcfs, random
    chunk_tokens: int = 512
    max_running: int = 64  # rows of one priority; forks of a running request may exceed it
    max_passed: int = 128
    max_retractions: int = 6
    growth_tokens: int = 64  # room left for each running request's next tokens at an admission
    scoring_chunk: int = 128  # prompt log probabilities need a row of logits for every token
    follow: bool = True
    seed: int = 0  # of the random policy
