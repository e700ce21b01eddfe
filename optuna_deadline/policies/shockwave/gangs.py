"""The gangs with which all trials of a study can end at the earliest common instant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.shockwave.program import Array, Counts

_ENDS = 400  # instants that are tried
#: A trial grows once its gang has less than this share of the speed that it needs. S is concave,
#: so growing late costs the fewest slot-seconds; growing too late leaves slots idle at the end.
_SHARE = 0.6


def common_end(works: Array, sizes: Sequence[int], speedup: Speedup, slots: int) -> float:
    """Seconds in which some trials can end together if gangs may change at any time.

    To train ``w`` seconds of one slot by ``T``, a gang needs the speed ``w / T``, and at least as
    many slots as ``S`` says, interpolated. The earliest such ``T`` is a bound of the makespan.

    Args:
        works: Seconds of training that are left, on one slot.
        sizes: The gangs that are worthwhile.
        speedup: S(k).
        slots: Of the study.
    """
    speeds = np.array([speedup(size) for size in sizes])
    ends = np.geomspace(works.max() / speeds[-1], works.sum() + works.max(), _ENDS)
    needed = np.interp(works / ends[:, None], [0.0, *speeds], [0.0, *sizes]).sum(axis=1)
    return float(ends[int(np.argmax(needed <= slots))])


def gangs_in_time(works: Array, sizes: Sequence[int], speedup: Speedup, slots: int) -> Counts:
    """By trial, the smallest gang that it needs now to end with the others."""
    speeds = np.array([speedup(size) for size in sizes])
    needs = works / common_end(works, sizes, speedup, slots)
    places = np.minimum(np.searchsorted(speeds, _SHARE * needs), len(sizes) - 1)
    return np.asarray(sizes, dtype=np.int64)[places]
