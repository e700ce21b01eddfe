"""One look at a study: what the planner plans on, and the rows behind it.

The best report of each trial, kept up as reports come in: none is read again for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from optuna_deadline.allocation.records import PlannedTrial, ReportRow, Worker
from optuna_deadline.planning.cross_host import NO_GROUPS, WorkerGroups
from optuna_deadline.policies.api import Snapshot


@dataclass(frozen=True)
class Reading:
    """A snapshot, with the rows behind it that the planner acts on."""

    snapshot: Snapshot
    trials: Mapping[int, PlannedTrial]  #: that live, or whose end Optuna does not know
    ended: list[PlannedTrial]  #: those of them that do not live
    workers: list[Worker]  #: the study's live ones
    capacities: Mapping[str, int]  #: by worker, the slots that are lent to the study
    reach: Mapping[str, int]  #: by worker, all slots of the pool that it offers
    slot_seconds_done: float  #: slot-seconds of training so far
    live_trials: int  #: trials that a policy may still train
    reap_from: float = math.inf  #: when the first slot in reach may be reaped
    worker_groups: WorkerGroups = NO_GROUPS  #: between which workers gangs may be spread

    @property
    def overdue(self) -> bool:
        """Whether a slot in reach is to be reaped."""
        return self.reap_from < self.snapshot.now


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
        """Trials by their progress, the least first; trials without a report come first of all."""
        return sorted(numbers, key=self._rank_key, reverse=True)

    def _rank_key(self, number: int) -> tuple[float, int, int]:
        row = self._rows.get(number)
        return (math.inf, number, 0) if row is None else self._key(row)

    def _key(self, row: ReportRow) -> tuple[float, int, int]:
        return self._sign * row.value, row.number, row.step
