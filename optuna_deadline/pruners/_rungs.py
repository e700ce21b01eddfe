"""The rungs of a plain study, which each process updates from the database."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.policies.measured_halving import Rungs, TimeLeft
from optuna_deadline.study.rows import RungRow, new_values
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.scores import score


def values_at_rungs(reports: Mapping[int, float]) -> list[float]:
    """The first, second, fourth, ... report."""
    steps = sorted(reports)
    return [reports[steps[2**rung - 1]] for rung in range(len(steps).bit_length())]


class KnownRungs:
    """All values at the rungs of one study that this process knows; thread-safe.

    Each report reads the rows that were recorded since the last one. If the count of values
    differs from the known number, a row was committed late, and all rows are read again.

    Args:
        terms: The study's terms.
    """

    def __init__(self, terms: Terms) -> None:
        self._study_id = terms.study_id
        self._direction = terms.direction
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._rungs = Rungs()
        self._newest, self._known = -1, 0

    def read(self, tx: Transaction) -> RungRow | None:
        """Read new rows; return one with the deadline, or None for a deleted study."""
        with self._lock:
            rows = self._read_new(tx)
            if rows and rows[0].total != self._known:
                self._forget()
                rows = self._read_new(tx)
        return rows[0] if rows else None

    def _read_new(self, tx: Transaction) -> list[RungRow]:
        rows = new_values(tx, self._study_id, self._newest)
        for row in rows:
            if row.rung is not None:
                value = math.nan if row.value is None else row.value
                self._known += self._rungs.record(
                    row.number, row.rung, score(value, self._direction)
                )
                self._newest = max(self._newest, row.sequence)
        return rows

    def reason(
        self, number: int, reports: Mapping[int, float], left: Callable[[], TimeLeft]
    ) -> str | None:
        """The reason to prune a trial; None to continue it."""
        with self._lock:
            found = self._rungs.judge(number, len(reports), left())
        return None if found is None else str(found)
