"""Heirs: who has the pool once all survivors have ended, and there is little time left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.snapshot import Snapshot, TrialView


def part_the_heirs(
    snapshot: Snapshot,
    heirs: list[TrialView],
    shares: Sequence[int],
    ahead: Sequence[int],
    largest: int,
) -> tuple[list[TrialView], float]:
    """The heirs, or the best alone once no other comes to a rung that could part them in time.

    The model in hand was trained to its end, and what comes near it takes all the slots there are.
    Survivors share to the deadline instead: each of them may still be the best.

    Args:
        snapshot: The study.
        heirs: The best first.
        shares: What each would get of the pool.
        ahead: Steps until each is judged again.
        largest: The largest useful gang.

    Returns:
        Who shares the pool, and until when that holds.
    """
    most = max((trial.slots for trial in heirs), default=0)
    first = [trial for trial in heirs if trial.slots == most]
    leader = (first if len(first) == 1 else heirs)[:1]  # who is alone already stays so
    needed = 0.0
    for trial, share, steps in zip(heirs, shares, ahead, strict=True):
        if trial in leader:
            if snapshot.speedup(largest) <= WORTHWHILE * snapshot.speedup(share):
                return heirs, math.inf
        elif trial.step_seconds is not None:
            lost = 0.0 if share == trial.slots else snapshot.overhead.total
            needed = max(needed, steps * trial.step_seconds / snapshot.speedup(share) + lost)
    if snapshot.time_left > needed:
        return heirs, snapshot.deadline - needed
    return leader, math.inf
