"""Fewer trials than slots: the slots that are left over go to gangs, where those pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Run
from optuna_deadline.policies.gang_sizes import uniform
from optuna_deadline.policies.snapshot import Snapshot, TrialView


def share_out(
    snapshot: Snapshot,
    trials: Sequence[TrialView],
    held: bool,
    ahead: Callable[[TrialView], float] | None = None,
) -> dict[int, Run]:
    """Orders that deal all slots to fewer trials, round by round.

    A gang grows where S(k) and the time left make up for the restart. Who has most slots is dealt
    first, so that the left-over slots do not wander whenever two trials change places.

    Args:
        snapshot: The study.
        trials: At most as many as there are slots.
        held: Whether slots have changed hands too short ago for anybody to grow.
        ahead: Seconds that a running trial has yet to train as it does; None: to the deadline.
    """
    sizes = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
    ranked = sorted(trials, key=lambda t: (-t.slots, -t.last_score, t.number))
    shares = uniform([trial.last_score for trial in ranked], sizes, snapshot.capacity)
    orders: dict[int, Run] = {}
    for trial, share in zip(ranked, shares, strict=True):
        kept = max(size for size in sizes if size <= max(1, trial.slots))
        if share > kept and trial.running:
            left = math.inf if ahead is None else ahead(trial)
            if held or not pays(snapshot, kept, share, left):
                share = kept
        orders[trial.number] = Run(share, "fewer trials than slots: as many as it can use")
    return orders


def pays(snapshot: Snapshot, slots: int, more: int, ahead: float = math.inf) -> bool:
    """Whether a restart on more slots makes up for its cost until the deadline.

    Args:
        snapshot: The study.
        slots: That the trial has.
        more: That it would have.
        ahead: Seconds after which it is done with the slots that it has.
    """
    left = min(snapshot.time_left, ahead)
    trained = snapshot.speedup(more) * max(0.0, left - snapshot.overhead.total)
    return trained > WORTHWHILE * left * snapshot.speedup(slots)


def pays_until(snapshot: Snapshot, slots: int, more: int) -> float:
    """The instant from which a restart that pays no longer does."""
    gain = 1 - WORTHWHILE * snapshot.speedup(slots) / snapshot.speedup(more)
    return snapshot.deadline - snapshot.overhead.total / gain
