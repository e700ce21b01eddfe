"""The best report of each trial, kept up as reports come in: none is read again for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from optuna_deadline.allocation.records import ReportRow


class BestReports:
    """Each trial's best report; of two that are alike the earlier step's.

    Args:
        direction: "minimize" or "maximize".
    """

    def __init__(self, direction: str) -> None:
        self._sign = -1.0 if direction == "maximize" else 1.0
        self._rows: dict[int, ReportRow] = {}

    def take(self, rows: Iterable[ReportRow]) -> None:
        """Take in reports, in any order; a NaN is none."""
        known = self._rows
        for row in rows:
            before = known.get(row.number)
            if not math.isnan(row.value) and (
                before is None or self._key(row) < self._key(before)
            ):
                known[row.number] = row

    def of(self, number: int) -> ReportRow | None:
        """One trial's, None where it has not reported."""
        return self._rows.get(number)

    def best(self, without: Collection[int] = ()) -> ReportRow | None:
        """The best of all trials but some; of two that are alike the lower number's."""
        rows = (row for row in self._rows.values() if row.number not in without)
        return min(rows, key=self._key, default=None)

    def worst_first(self, numbers: Iterable[int]) -> list[int]:
        """Trials from that which is the furthest behind; who has not reported is behind all."""
        return sorted(numbers, key=self._standing, reverse=True)

    def _standing(self, number: int) -> tuple[float, int, int]:
        row = self._rows.get(number)
        return (math.inf, number, 0) if row is None else self._key(row)

    def _key(self, row: ReportRow) -> tuple[float, int, int]:
        return self._sign * row.value, row.number, row.step
