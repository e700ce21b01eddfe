"""How the slots of a pool are dealt to the trials that go on, the best first.

Fewer trials than slots: the slots that are left over go to gangs, where those pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Run, Snapshot, TrialView

#: Deals a number of slots to trials with these last scores, the best first. Gangs have one of the
#: useful sizes.
Allocator = Callable[[Sequence[float], Sequence[int], int], list[int]]


def uniform(scores: Sequence[float], sizes: Sequence[int], slots: int) -> list[int]:
    """One slot each, then round by round in score order, up to what a gang can use."""
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
    """One slot each, then all that the best can use, then what the next can."""
    shares = [1] * len(scores)
    left = slots - len(shares)
    for index in range(len(shares)):
        while gain := _enlarge(shares, index, sizes, left):
            left -= gain
    return shares


def softmax(scores: Sequence[float], sizes: Sequence[int], slots: int) -> list[int]:
    """One slot each, the rest in the proportions of ``exp(score)``, what is over to the best.

    How fractions are rounded is our reconstruction: down, to useful sizes. A trial that has
    diverged or not reported has no part in the rest.
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
    """Enlarge a gang to its next useful size, if that many slots are left; returns how many."""
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
