"""The best value so far against time, a panel for each deadline."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.headlines.pictures import picture

if TYPE_CHECKING:
    from benchmarks.live.__main__ import Outcome

_POINTS = 200
_FROM = 0.05  #: the share of the time at which the axis of values begins


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the median over seeds of each contender, from the time at which each seed has one.

    A contender that has not run with all seeds is left out: it would be drawn with other seeds.
    """
    deadlines = sorted({one.seconds for one in outcomes})
    with picture(path, len(deadlines), (5.0, 3.6)) as panels:
        for axes, seconds in zip(panels, deadlines, strict=True):
            mine = [one for one in outcomes if one.seconds == seconds]
            seeds = Counter(one.contender for one in mine)
            early = []
            for name in [name for name, runs in seeds.items() if runs == max(seeds.values())]:
                those = [one for one in mine if one.contender == name and one.improved]
                first = max((one.improved[0][0] for one in those), default=seconds)
                times = np.linspace(first, seconds, _POINTS)
                best = [statistics.median(_at(one, time) for one in those) for time in times]
                axes.plot(times, best, label=f"{name}, {seeds[name]} seeds")
                early.append((best[int(_FROM * _POINTS)], best[-1]))
            if all(first < last for first, last in early):  # the rest would be one line
                axes.set_ylim(bottom=min(early)[0])
            elif all(first > last for first, last in early):
                axes.set_ylim(top=max(early)[0])
            axes.set_title(f"{seconds:g} s")
            axes.set_xlabel("seconds")
            axes.set_ylabel("best value so far (median)")
        panels[-1].legend()


def _at(outcome: Outcome, time: float) -> float:
    return [value for at, value in outcome.improved if at <= time][-1]
