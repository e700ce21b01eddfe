"""Fewer trials than slots: the slots that are left over go to gangs, where those pay."""

from __future__ import annotations

from collections.abc import Sequence

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.dealing import uniform
from optuna_deadline.policies.plan import Order, Run
from optuna_deadline.policies.snapshot import Snapshot, TrialView


def share_out(snapshot: Snapshot, trials: Sequence[TrialView], held: bool) -> dict[int, Order]:
    """Orders that deal all slots to fewer trials, round by round.

    A gang grows where S(k) and the time left make up for the restart. Who has most slots is dealt
    first, so that the left-over slots do not wander whenever two trials change places.

    Args:
        snapshot: The study.
        trials: At most as many as there are slots.
        held: Whether slots have changed hands too short ago for anybody to grow.
    """
    sizes = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
    ranked = sorted(trials, key=lambda t: (-t.slots, -t.last_score, t.number))
    shares = uniform([trial.last_score for trial in ranked], sizes, snapshot.capacity)
    orders: dict[int, Order] = {}
    for trial, share in zip(ranked, shares, strict=True):
        kept = max(size for size in sizes if size <= max(1, trial.slots))
        if share > kept and trial.running and (held or not pays(snapshot, kept, share)):
            share = kept
        orders[trial.number] = Run(share, "fewer trials than slots: as many as it can use")
    return orders


def pays(snapshot: Snapshot, slots: int, more: int) -> bool:
    """Whether a restart on more slots makes up for its cost until the deadline."""
    left = snapshot.time_left
    trained = snapshot.speedup(more) * max(0.0, left - snapshot.overhead.total)
    return trained > WORTHWHILE * left * snapshot.speedup(slots)
