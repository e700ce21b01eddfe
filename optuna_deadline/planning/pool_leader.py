"""The loop of a pool: read, divide, assign, lend. One leader per pool, elected by a lease.

Large changes are written in batches, so that each transaction is short for a pool of any size.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from optuna_deadline.allocation.records import Account, Slot, StudyClaim
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import LeaseLost
from optuna_deadline.planning.placement.slot_assignment import assign_shares
from optuna_deadline.policies.pool.fair_share import PoolSnapshot, StudyView, whole_slots
from optuna_deadline.policies.pool.purse import purse_times
from optuna_deadline.policies.registry import make_divider

RowT = TypeVar("RowT")

#: Rows that one transaction changes. Tens of thousands take longer than the server waits
#: for a client that may be frozen; it would roll all of them back, again and again.
MAX_BATCH = 500


def batches(rows: Sequence[RowT]) -> Iterator[Sequence[RowT]]:
    """Split rows into batches of limited size, in order."""
    for first in range(0, len(rows), MAX_BATCH):
        yield rows[first : first + MAX_BATCH]


_logger = logging.getLogger("optuna_deadline")


@dataclass(frozen=True)
class PoolReading:
    """A pool's snapshot and its rows."""

    snapshot: PoolSnapshot
    slots: tuple[Slot, ...]  #: slots that live workers offer
    reach: Mapping[int, frozenset[int]]  #: by study, the slots that its live workers offer
    overdue: bool = False  #: whether a slot of the pool is due to be reaped


class PoolLeader:
    """Divides the pool's slots among its studies while it is elected.

    It plans no trials: each study's own planner plans within the slots lent to the study, because
    only a process of the study has its sampler and its terms. The leader reaps slots of studies
    without workers, since planners read their own workers' slots only.

    Args:
        table: The allocation table of one of the pool's studies.
        divider: The name of the divider, which decides.
        worker_id: The worker that this leader belongs to.
        clock: A monotonic clock in seconds, for the time between two elections.
        interval: Seconds between two looks at the pool.
    """

    def __init__(
        self,
        table: AllocationTable,
        divider: str,
        worker_id: str,
        clock: Callable[[], float] = time.monotonic,
        interval: float = 0.0,
    ) -> None:
        self._table = table
        self._name, self._divider = divider, make_divider(divider)
        self._worker_id = worker_id
        self._clock = clock
        self._interval = interval
        self._next_look = 0.0
        self._term: int | None = None
        self._next_election = 0.0
        self._next_account = 0.0
        self._accounts: Mapping[int, Account] = {}

    def tick(self) -> bool:
        """Divide once if this leader is elected; returns whether a slot was lent anew."""
        now = self._clock()
        if now < self._next_look:  # planners tick after each report
            return False
        self._next_look = now + self._interval
        if now >= self._next_election:
            self._term = self._table.elect_leader(self._worker_id, self._name)
            self._next_election = now + self._table.ttl / 6
        if self._term is None:
            return False
        reading = read_pool(self._table)
        if reading.overdue and self._table.reap():
            reading = read_pool(self._table)
        rates = self._divider.rates(reading.snapshot)
        shares = whole_slots(reading.snapshot, rates)
        most = {study.study_id: study.most for study in reading.snapshot.studies}
        dealt = assign_shares(shares, most, reading.slots, reading.reach)
        lent = {
            slot.id: dealt[slot.id]
            for slot in reading.slots
            if dealt.get(slot.id, slot.lent_to) != slot.lent_to
        }
        if not lent and now < self._next_account:
            return False
        try:
            for part in batches(sorted(lent.items())) if lent else [()]:
                self._table.lend(self._worker_id, self._term, dict(part), self._accounts)
        except LeaseLost:
            _logger.info("Another worker divides this pool now.")
            self._next_election = 0.0
            return False
        self._next_account = now + self._table.ttl / 6
        times = purse_times(reading.snapshot)
        self._accounts = {
            study: Account(shares[study], rate, 1 / times[study] if rate else 0.0)
            for study, rate in rates.items()
        }
        return bool(lent)


def read_pool(table: AllocationTable) -> PoolReading:
    """Read the pool: the studies of live workers, and the slots that these offer."""
    now = table.now()
    served_by = {worker.id: worker.study_id for worker in table.workers()}
    rows = table.slots()
    slots = tuple(slot for slot in rows if slot.offered_by)
    leases = [slot.lease for slot in rows if slot.lease is not None]
    lent = Counter(slot.lent_to for slot in slots)
    reach: dict[int, set[int]] = {study: set() for study in served_by.values()}
    for slot in slots:
        for worker in slot.offered_by:
            if worker in served_by:
                reach[served_by[worker]].add(slot.id)
    studies = []
    for row in table.tenants():
        if row.study_id not in reach or now >= row.deadline:
            continue
        room = len(reach[row.study_id])
        claim = row.claim or StudyClaim(live=0, most=room, done=0.0, remaining=None)
        studies.append(
            StudyView(
                study_id=row.study_id,
                name=row.name,
                weight=row.weight,
                joined=row.joined,
                deadline=row.deadline,
                live=claim.live,
                slots=lent[row.study_id],
                most=min(room, claim.most),
                done=claim.done,
                remaining=claim.remaining,
                served=row.served,
                entitled=row.entitled,
                work=claim.work,
                span=claim.span,
                restart=claim.restart,
                spent=row.spent,
                counted=max(row.counted, now - table.ttl),  # later if no worker has led
            )
        )
    return PoolReading(
        PoolSnapshot(now, len(slots), tuple(studies)),
        slots,
        {study: frozenset(ids) for study, ids in reach.items()},
        min(leases, default=now) + table.grace < now,
    )
