"""The rows of a database as frozen records in dictionaries."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from optuna_deadline.allocation.records import (
    GangMembership,
    PlannedTrial,
    ReportRow,
    SegmentRow,
    Slot,
    StudyClaim,
    Worker,
)
from optuna_deadline.checkpoints.files import Checkpoint

RowT = TypeVar("RowT")

#: An event without its id, which is its index: pool, study, time, kind, number, slot, fence, term,
#: worker and the items of its detail. Many are written and few are read, so they are tuples, and
#: the garbage collector skips tuples of plain values.
EventRow = tuple[
    str,
    int,
    float,
    str,
    int | None,
    int | None,
    int | None,
    int | None,
    str | None,
    tuple[tuple[str, object], ...],
]


def changed(row: RowT, **columns: object) -> RowT:
    """A frozen record with some columns changed.

    Like ``dataclasses.replace`` in a tenth of its time; a simulated study writes little else.
    """
    new: RowT = object.__new__(type(row))
    new.__dict__.update(row.__dict__, **columns)
    return new


@dataclass
class MemoryPool:
    """A pool: its lease times, the plan's epoch, and its leader."""

    ttl: float
    grace: float
    epoch: int = 0
    leader: str | None = None
    term: int = 0
    expires: float = 0.0


@dataclass
class MemoryTenant:
    """A study in a pool, and its planner."""

    weight: float
    joined: float
    counted: float
    planner: str | None = None
    term: int = 0
    expires: float = 0.0
    claim: StudyClaim | None = None
    served: float = 0.0
    entitled: float = 0.0


@dataclass
class MemoryStudy:
    """A study's rows, each kind by its lookup key."""

    name: str
    started: float
    deadline: float
    gate_closed: float | None = None
    settled: float | None = None
    pool_slots: int | None = None  #: slots that the study pays for
    funds_end: float = math.inf
    trials: dict[int, PlannedTrial] = field(default_factory=dict)
    #: former deadlines
    unreported: dict[int, PlannedTrial] = field(default_factory=dict)
    #: live trials by worker
    trials_by_worker: dict[str | None, set[int]] = field(default_factory=dict)
    #: cached
    orders_by_worker: dict[str | None, tuple[PlannedTrial, ...]] = field(default_factory=dict)
    running: dict[tuple[int, int], SegmentRow] = field(default_factory=dict)
    ended: list[SegmentRow] = field(default_factory=list)  #: in the order of their ends
    ended_by: dict[int, list[SegmentRow]] = field(default_factory=dict)  #: by trial
    reports: list[ReportRow] = field(default_factory=list)  #: row id = index + 1
    steps: set[tuple[int, int]] = field(default_factory=set)  #: (number, step) of each report
    #: By trial, (row id, checkpoint), the newest first.
    checkpoints: dict[int, list[tuple[int, Checkpoint]]] = field(default_factory=dict)
    written_by: dict[int, str] = field(default_factory=dict)  #: by the checkpoint's row id
    #: number, fence, worker
    memberships: dict[tuple[int, int, str], GangMembership] = field(default_factory=dict)

    @property
    def known_end(self) -> float | None:
        """When its money is used up, as stored in the table."""
        return None if math.isinf(self.funds_end) else self.funds_end

    def put(self, planned: PlannedTrial) -> None:
        """Write a trial's row."""
        number = planned.number
        before = self.trials.get(number)
        self.trials[number] = planned
        self._index_by_worker(before, planned)
        if planned.end_reported and not planned.alive:
            self.unreported.pop(number, None)
        else:
            new = number not in self.unreported
            self.unreported[number] = planned
            if new:
                _sort_the_last(self.unreported)
        if before is None:
            _sort_the_last(self.trials)

    def _index_by_worker(self, before: PlannedTrial | None, planned: PlannedTrial) -> None:
        """Update the indexes of the trial's workers."""
        number = planned.number
        if before is not None and before.alive:
            for worker in (before.owner, before.worker):
                self.orders_by_worker.pop(worker, None)
                self.trials_by_worker[worker].discard(number)
        if planned.alive:
            for worker in (planned.owner, planned.worker):
                self.orders_by_worker.pop(worker, None)
                self.trials_by_worker.setdefault(worker, set()).add(number)

    def orders(self, worker: str) -> tuple[PlannedTrial, ...]:
        """The live trials that a worker owns or is to own; the same tuple until they change."""
        if worker not in self.orders_by_worker:
            numbers = sorted(self.trials_by_worker.get(worker, ()))
            self.orders_by_worker[worker] = tuple([self.trials[number] for number in numbers])
        return self.orders_by_worker[worker]

    def end(self, row: SegmentRow) -> None:
        """Write the row of a segment that has ended."""
        self.ended.append(row)
        self.ended_by.setdefault(row.number, []).append(row)


@dataclass
class MemoryState:
    """The rows of one database, shared by the tables of its pools and studies."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    pools: dict[str, MemoryPool] = field(default_factory=dict)
    studies: dict[int, MemoryStudy] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    tenants: dict[tuple[str, int], MemoryTenant] = field(default_factory=dict)  #: pool, study
    slots: dict[int, Slot] = field(default_factory=dict)
    offers: dict[int, list[str]] = field(default_factory=dict)  #: workers by slot, dead ones too
    _offered: dict[str, set[int]] = field(default_factory=dict)  #: the same: slots by worker
    #: None if the study was deleted
    events: list[EventRow | None] = field(default_factory=list)
    checkpoint_ids: int = 0

    def delete_study(self, study_id: int) -> None:
        """Delete a study, as deleting it in Optuna's database does."""
        with self.lock:
            self.studies.pop(study_id, None)
            for me in [row.id for row in self.workers.values() if row.study_id == study_id]:
                self.drop_worker(me)
            for key in [key for key in self.tenants if key[1] == study_id]:
                del self.tenants[key]
            self.events[:] = [
                None if said is None or said[1] == study_id else said for said in self.events
            ]

    def drop_worker(self, worker_id: str) -> None:
        """Delete a worker and its offers."""
        self.workers.pop(worker_id, None)
        for slot_id in self._offered.pop(worker_id, ()):
            self.offers[slot_id].remove(worker_id)

    def offer(self, slot_id: int, workers: list[str]) -> None:
        """Set the workers that offer a slot."""
        for worker in self.offers.get(slot_id, ()):
            self._offered[worker].discard(slot_id)
        self.offers[slot_id] = workers
        for worker in workers:
            self._offered.setdefault(worker, set()).add(slot_id)

    def withdraw(self, worker_id: str, slot_ids: Iterable[int]) -> None:
        """Withdraw a worker's offers of slots."""
        for slot_id in slot_ids:
            self._offered[worker_id].discard(slot_id)
            self.offers[slot_id].remove(worker_id)

    def offered_slots(self, worker_id: str) -> Collection[int]:
        """The slots that a worker offers."""
        return self._offered.get(worker_id, ())


def _sort_the_last(rows: dict[int, PlannedTrial]) -> None:
    """Move the newest key to its place, where it usually is already."""
    newest = reversed(rows)
    last, before = next(newest, 0), next(newest, -1)
    if last < before:
        ordered = sorted(rows.items())
        rows.clear()
        rows.update(ordered)
