"""One reading of a study: the snapshot for the policy, the rows behind it, and best reports.

Best reports and regimes are updated as reports arrive, so that no report is read twice.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from optuna_deadline._printable import printable
from optuna_deadline.allocation.records import PlannedTrial, ReportRow, Worker
from optuna_deadline.planning.cross_host import NO_GROUPS, WorkerGroups
from optuna_deadline.policies.api import Snapshot
from optuna_deadline.values.scores import score


@dataclass(frozen=True)
class Reading:
    """A snapshot and the rows behind it."""

    snapshot: Snapshot
    trials: Mapping[int, PlannedTrial]  #: live trials, and trials whose end Optuna does not know
    ended: list[PlannedTrial]  #: those of them that have ended
    workers: list[Worker]  #: live workers of the study
    capacities: Mapping[str, int]  #: by worker, the slots that are lent to the study
    reach: Mapping[str, int]  #: by worker, all slots of the pool that it offers
    slot_seconds_done: float  #: slot-seconds of training so far
    live_trials: int  #: trials that a policy may still train
    reap_from: float = math.inf  #: when the first slot in reach may be reaped
    worker_groups: WorkerGroups = NO_GROUPS  #: the workers between which gangs may be spread

    @property
    def overdue(self) -> bool:
        """Whether a slot in reach is due to be reaped."""
        return self.reap_from < self.snapshot.now


class BestReports:
    """Each trial's best report; the earlier step wins a tie.

    Args:
        direction: "minimize" or "maximize".
    """

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self._rows: dict[int, ReportRow] = {}
        self._best: ReportRow | None = None

    def take(self, rows: Iterable[ReportRow]) -> None:
        """Record reports in any order; NaN is ignored."""
        known = self._rows
        for row in rows:
            before = known.get(row.number)
            if not math.isnan(row.value) and (
                before is None or self._key(row) < self._key(before)
            ):
                known[row.number] = row
                if self._best is None or self._key(row) < self._key(self._best):
                    self._best = row

    def of(self, number: int) -> ReportRow | None:
        """A trial's best report; None before its first."""
        return self._rows.get(number)

    def best(self, among: Callable[[int], bool] | None = None) -> ReportRow | None:
        """The best report of all trials, or of some; the lower number wins a tie."""
        if among is None:
            return self._best
        rows = (row for row in self._rows.values() if among(row.number))
        return min(rows, key=self._key, default=None)

    def worst_first(self, numbers: Iterable[int]) -> list[int]:
        """Trials by their best report, worst first; those without a report come first."""
        return sorted(numbers, key=self._rank_key, reverse=True)

    def _rank_key(self, number: int) -> tuple[float, int, int]:
        row = self._rows.get(number)
        return (math.inf, number, 0) if row is None else self._key(row)

    def _key(self, row: ReportRow) -> tuple[float, int, int]:
        return -score(row.value, self._direction), row.number, row.step


class RegimeNames:
    """The regimes that reports of trials name."""

    def __init__(self) -> None:
        self._named = defaultdict[int, list[tuple[int, str]]](list)  # step and name, by trial

    def take(self, rows: Iterable[ReportRow]) -> None:
        """Record reports in any order."""
        for row in rows:
            if row.regime is not None:
                insort(self._named[row.number], (row.step, printable(row.regime)))

    def explain(self, number: int, reason: str) -> str:
        """A reason with the trial's regime, if that has changed: "...; batch 8 since step 3"."""
        runs = [next(run) for _, run in groupby(self._named.get(number, ()), key=itemgetter(1))]
        changes = [f"{name} since step {step}" for step, name in runs[1:]]
        return "; ".join(filter(None, [reason, *changes[-1:]]))
