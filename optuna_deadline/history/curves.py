"""Reports as curves, and the best of them so far: pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from optuna_deadline.allocation.records import ReportRow


class Best(NamedTuple):
    """A report that no earlier one matched."""

    at: float
    value: float
    number: int
    step: int


def curves_of(reports: Iterable[ReportRow]) -> dict[int, list[ReportRow]]:
    """Each trial's finite reports in the order of their steps; trials without any are left out."""
    curves: dict[int, list[ReportRow]] = defaultdict(list)
    for row in reports:
        if math.isfinite(row.value):
            curves[row.number].append(row)
    return {number: sorted(rows, key=lambda row: row.step) for number, rows in curves.items()}


def best_so_far(reports: Iterable[ReportRow], maximize: bool) -> list[Best]:
    """Each report that was better than all before it; NaN and infinities never are."""
    sign = 1.0 if maximize else -1.0
    found: list[Best] = []
    for row in sorted(reports, key=lambda row: (row.at, row.id)):
        better = not found or sign * row.value > sign * found[-1].value
        if math.isfinite(row.value) and better:
            found.append(Best(row.at, row.value, row.number, row.step))
    return found
