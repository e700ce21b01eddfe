"""Allocators of a pool's slots to gangs, by score, and the test of whether a larger gang pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Run, Snapshot, TrialView

#: From a number of slots and trials' scores, best first, to their slots. Gangs have one of the
#: useful sizes.
Allocator = Callable[[Sequence[float], Sequence[int], int], list[int]]


def uniform(scores: Sequence[float], sizes: Sequence[int], slots: int) -> list[int]:
    """One slot each, then round by round in score order, up to the useful size of a gang."""
    shares = [1] * len(scores)
    left = slots - len(shares)
    while left > 0:
        before = left
        for index in range(len(shares)):
            left -= _enlarge(shares, index, sizes, left)
        if left == before:
            break
    return shares


def top_job(scores: Sequence[float], sizes: Sequence[int], slots: int) -> list[int]:
    """One slot each, then all that the best can use, then the next."""
    shares = [1] * len(scores)
    left = slots - len(shares)
    for index in range(len(shares)):
        while gain := _enlarge(shares, index, sizes, left):
            left -= gain
    return shares


def softmax(scores: Sequence[float], sizes: Sequence[int], slots: int) -> list[int]:
    """One slot each, the rest in the proportions of ``exp(score)``, the remainder to the best.

    Our reconstruction: fractions are rounded down to useful sizes. Trials that have diverged or
    not reported get no part of the rest.
    """
    shares = [1] * len(scores)
    finite = [score for score in scores if math.isfinite(score)]
    top = max(finite, default=0.0)
    weights = [math.exp(score - top) if math.isfinite(score) else 0.0 for score in scores]
    rest = left = slots - len(shares)
    for index, weight in enumerate(weights):
        part = rest * weight / sum(weights) if any(weights) else 0.0
        size = max([size for size in sizes if size <= 1 + part], default=1)
        left -= size - 1
        shares[index] = size
    for index in range(len(shares)):
        while gain := _enlarge(shares, index, sizes, left):
            left -= gain
    return shares


def _enlarge(shares: list[int], index: int, sizes: Sequence[int], left: int) -> int:
    """Enlarge a gang to its next useful size if enough slots are left; returns the difference."""
    larger = next((size for size in sizes if size > shares[index]), None)
    if larger is None or larger - shares[index] > left:
        return 0
    gain = larger - shares[index]
    shares[index] = larger
    return gain


#: The allocators by the names that HyperSched's code gives them.
ALLOCATORS: dict[str, Allocator] = {"uniform": uniform, "top_job": top_job, "softmax": softmax}


def share_out(snapshot: Snapshot, trials: Sequence[TrialView], held: bool) -> dict[int, Run]:
    """Orders that distribute all slots over fewer trials, round by round.

    A gang grows if S(k) and the time left make up for the restart. The trial with the most slots
    comes first, so that left-over slots do not move when two trials change ranks.

    Args:
        snapshot: The study.
        trials: At most as many as there are slots.
        held: Whether slots moved too recently for a gang to grow.
    """
    sizes = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
    ranked = sorted(trials, key=lambda t: (-t.slots, -t.last_score, t.number))
    shares = uniform([trial.last_score for trial in ranked], sizes, snapshot.capacity)
    orders: dict[int, Run] = {}
    for trial, share in zip(ranked, shares, strict=True):
        kept = max(size for size in sizes if size <= max(1, trial.slots))
        grows = share > kept and trial.running
        if grows and (held or not growth_pays(snapshot, kept, share)):
            share = kept
        orders[trial.number] = Run(share, "fewer trials than slots: as many as it can use")
    return orders


def growth_pays(snapshot: Snapshot, slots: int, more: int) -> bool:
    """Whether a restart on more slots makes up for its cost until the deadline.

    Args:
        snapshot: The study.
        slots: The trial's present slots.
        more: Its slots after the restart.
    """
    left = snapshot.time_left
    trained = snapshot.speedup(more) * max(0.0, left - snapshot.overhead.total)
    return trained > WORTHWHILE * left * snapshot.speedup(slots)
