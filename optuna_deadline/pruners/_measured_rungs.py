"""The rungs of measured halving in a plain study, which each process updates from the database."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.sql import studies
from optuna_deadline.policies.measured_halving import Rungs, TimeLeft, rung_of
from optuna_deadline.study.terms import Terms


class MeasuredRungs:
    """All values at the rungs of one study that this process knows; thread-safe.

    Each report reads the rows that were recorded since the last one. If the count of values
    differs from the known number, a row was committed late, and all rows are read again.

    Args:
        terms: The study's terms.
    """

    def __init__(self, terms: Terms) -> None:
        self._study_id = terms.study_id
        self._sign = 1.0 if terms.maximize else -1.0
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._rungs = Rungs()
        self._newest, self._known = -1, 0

    def passed(self, reports: Mapping[int, float]) -> int:
        """The number of rungs that a trial with these reports has passed."""
        newest = rung_of(len(reports))
        return 0 if newest is None else newest + 1

    def values_to_record(
        self, reports: Mapping[int, float], rungs: Iterable[int]
    ) -> dict[int, float]:
        """The values to record at ``rungs``, in the order of the steps."""
        steps = sorted(reports)
        return {rung: reports[steps[2**rung - 1]] for rung in rungs}

    def read(self, connection: sa.Connection, number: int, passed: int) -> list[sa.Row[Any]]:
        """Read new rows; each has the deadline, and a deleted study has no row."""
        with self._lock:
            rows = self._read_new(connection)
            if rows and rows[0].total != self._known:
                self._forget()
                rows = self._read_new(connection)
        return rows

    def _read_new(self, connection: sa.Connection) -> list[sa.Row[Any]]:
        rows = studies.new_values(connection, self._study_id, self._newest)
        for row in rows:
            if row.rung is not None:
                value = math.nan if row.value is None else row.value
                self._known += self._rungs.add(row.number, row.rung, self._sign * value)
                self._newest = max(self._newest, row.sequence)
        return rows

    def reason(self, number: int, reports: int, left: TimeLeft) -> str | None:
        """The reason to prune a trial after so many reports; None to continue it."""
        with self._lock:
            found = self._rungs.judge(number, reports, left)
        return None if found is None else str(found)
