"""How fast a study's trials trained, and what it cost to start and to stop them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna_deadline.allocation.records import SegmentRow
from optuna_deadline.forecasting.overheads import Overhead, learn_overhead
from optuna_deadline.forecasting.throughput import Pace, Speedup, learn_speedup, step_seconds


@dataclass(frozen=True)
class Measured:
    """What the segments of a study have measured.

    Attributes:
        speedup: S(k).
        seconds: By trial, of a step on one slot.
        overhead: Of a start and a stop.
    """

    speedup: Speedup
    seconds: Mapping[int, float]
    overhead: Overhead


def measure(segments: Sequence[SegmentRow]) -> Measured:
    """What is known so far; priors stand in for what was not measured yet."""
    paces = [
        Pace(
            row.number,
            row.slots,
            row.position_to - row.position_from,
            row.trained,
            row.workers > 1,
        )
        for row in segments
        if row.position_from is not None and row.position_to is not None and row.trained
    ]
    speedup = learn_speedup(paces)
    startups = [row.startup for row in segments if row.startup is not None]
    stops = [row.stop for row in segments if row.stop is not None]
    return Measured(speedup, step_seconds(paces, speedup), learn_overhead(startups, stops))
