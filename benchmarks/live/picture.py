"""The best value so far against time, a panel for each deadline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.headlines.pictures import picture

if TYPE_CHECKING:
    from benchmarks.live.__main__ import Outcome

_POINTS = 200


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the median over seeds of each contender, from the time at which each seed has one."""
    deadlines = sorted({one.seconds for one in outcomes})
    with picture(path, len(deadlines), (5.0, 3.6)) as panels:
        for axes, seconds in zip(panels, deadlines, strict=True):
            mine = [one for one in outcomes if one.seconds == seconds]
            for name in dict.fromkeys(one.contender for one in mine):
                those = [one for one in mine if one.contender == name and one.improved]
                first = max((one.improved[0][0] for one in those), default=seconds)
                times = np.linspace(first, seconds, _POINTS)
                best = [statistics.median(_at(one, time) for one in those) for time in times]
                axes.plot(times, best, label=name)
            axes.set_title(f"{seconds:g} s")
            axes.set_xlabel("seconds")
            axes.set_ylabel("best value so far (median)")
        panels[-1].legend()


def _at(outcome: Outcome, time: float) -> float:
    return [value for at, value in outcome.improved if at <= time][-1]
