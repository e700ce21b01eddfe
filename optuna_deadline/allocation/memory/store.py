"""The allocation table in memory, with the same guarantees for the threads of one process.

For simulations and tests: nothing survives the process, and a transition takes microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optuna_deadline.allocation.admission import check_admission, choose_devices
from optuna_deadline.allocation.memory.leases import MemoryLeases
from optuna_deadline.allocation.memory.state import (
    MemoryPool,
    MemoryState,
    MemoryStudy,
    MemoryTenant,
    changed,
)
from optuna_deadline.allocation.records import (
    Grant,
    MachineInfo,
    NewReport,
    ReportRow,
    Slot,
    Worker,
)
from optuna_deadline.allocation.rules import host_type_detail, kept_ids, none_if_nan
from optuna_deadline.allocation.store import GRACE, KEPT_CHECKPOINTS, TTL, AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location


class MemoryTable(MemoryLeases):
    """The table of one pool for one study, in memory.

    Args:
        pool: The pool's name.
        study_id: The study's id.
        now: The time in seconds.
        started: When the study began.
        deadline: When it ends.
        ttl: Seconds that a lease lasts without renewal; the pool's first worker sets it.
        grace: Seconds after a lease's end before it may be reaped.
        state: The rows of another table, to share its slots and studies.
        name: The study's name.
    """

    def __init__(
        self,
        pool: str = "pool",
        study_id: int = 1,
        *,
        now: Callable[[], float],
        started: float = 0.0,
        deadline: float = math.inf,
        ttl: float = TTL,
        grace: float = GRACE,
        state: MemoryState | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(state or MemoryState(), pool, study_id, ttl, grace, now)
        with self._lock:
            name = name or f"study {study_id}"
            self.state.studies.setdefault(study_id, MemoryStudy(name, started, deadline))

    # Membership.

    def register(
        self,
        worker_id: str,
        host: str,
        pid: int,
        devices: Sequence[str],
        cpus: int,
        weight: float | None = None,
        machine_info: MachineInfo | None = None,
    ) -> list[Slot]:
        """Join the pool with devices and CPU shares."""
        with self._lock:
            now, state = self.now(), self.state
            law = state.pools.setdefault(self.pool, MemoryPool(self.ttl, self.grace))
            self.ttl, self.grace = law.ttl, law.grace
            before, machine_info = state.workers.get(worker_id), machine_info or MachineInfo()
            worker = Worker(
                worker_id,
                self.pool,
                self.study_id,
                host,
                pid,
                "live",
                now + self.ttl,
                None if before is None else before.drained,
                machine_info.machine,
                machine_info.store,
                machine_info.versions,
                machine_info.address,
                machine_info.boot,
            )
            live = {row.id: row for row in self._live(now)}
            slots = [
                changed(row, offered_by=tuple(state.offers[row.id]))
                for row in (state.slots.values() if machine_info.uuids else ())
            ]
            check_admission(worker, machine_info.uuids, live.values(), slots)
            self._stop_idle_payments([self.study_id])
            known = {row.device: row.id for row in state.slots.values() if row.host == host}
            offers = {name: state.offers[slot_id] for name, slot_id in known.items()}
            offered = {n: [live[w] for w in names if w in live] for n, names in offers.items()}
            mine = {name for name, names in offers.items() if worker_id in names}
            names = choose_devices(offered, mine, devices, cpus, worker)
            state.drop_worker(worker_id)
            state.workers[worker_id] = worker
            place = state.tenants.setdefault(
                (self.pool, self.study_id), MemoryTenant(1.0, now, now)
            )
            place.weight = place.weight if weight is None else weight
            lent, mine_now = [], []
            for name in names:
                others = [row for row in offered.get(name, ()) if row.id != worker_id]
                slot_id = self._offer(worker, name, known.get(name), taken_over=not others)
                mine_now.append(slot_id)
                if name in machine_info.uuids:
                    row = state.slots[slot_id]
                    state.slots[slot_id] = changed(row, uuid=machine_info.uuids[name])
                lent += [] if others else [slot_id]
            self._event(
                "register",
                worker=worker_id,
                host=host,
                devices=names,
                lent=lent,
                **host_type_detail(machine_info),
            )
            return self._slots(sorted(mine_now))

    def _offer(
        self, worker_id: Worker, name: str, slot_id: int | None, *, taken_over: bool
    ) -> int:
        """Offer a slot; a dead rival loses its offer, even if it wakes."""
        state = self.state
        if slot_id is None:
            slot_id = len(state.slots) + 1
            place = worker_id.pool, worker_id.study_id
            state.slots[slot_id] = Slot(
                slot_id, worker_id.host, name, *place, 0, None, None, None, None
            )
            state.offer(slot_id, [])
        elif taken_over:
            row = state.slots[slot_id]
            state.slots[slot_id] = changed(row, pool=worker_id.pool, lent_to=worker_id.study_id)
        workers = [state.workers[other] for other in state.offers[slot_id]]
        kept = [
            w.id
            for w in workers
            if w.pool == worker_id.pool
            and w.study_id != worker_id.study_id
            and (w.state == "live" or state.studies[w.study_id].settled is None)
        ]
        state.offer(slot_id, [*kept, worker_id.id])
        return slot_id

    def leave(self, worker_id: str) -> None:
        """Leave the pool; elected roles end at once."""
        with self._lock:
            if worker_id in self.state.workers:
                gone = changed(self.state.workers[worker_id], state="left", lease=self.now())
                self.state.workers[worker_id] = gone
                slots, offered = self.state.slots, self.state.offered_slots(worker_id)
                free = [slot_id for slot_id in offered if slots[slot_id].holder != worker_id]
                self.state.withdraw(worker_id, free)
            self._release_leadership([worker_id])
            self._event("leave", worker=worker_id)
            self._stop_idle_payments([self.study_id])

    # Fenced writes of a running segment.

    def add_reports(self, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports."""
        with self._lock:
            study, now = self._guard(worker_id, grant), self.now()
            rows = study.reports
            for step, value, trained in new:
                key = (grant.number, step)
                if key not in study.steps:
                    study.steps.add(key)
                    rows.append(ReportRow(len(rows) + 1, *key, value, grant.size, trained, now))

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints and reports; returns the files to delete."""
        with self._lock:
            self.add_reports(worker_id, grant, reports)
            study, number, fence = self._guard(worker_id, grant), grant.number, grant.fence
            coming = {}  # by name: comparing paths takes ten times as long
            for one in new:
                row_id = self.state.checkpoint_ids = self.state.checkpoint_ids + 1
                value = none_if_nan(one.value)
                if (one.number, one.fence, one.value) != (number, fence, value):
                    one = one._replace(number=number, fence=fence, value=value)
                coming[str(one.path)] = row_id, one
            before = study.checkpoints.get(number, ())
            rows = [*reversed(coming.values())]
            rows += [pair for pair in before if str(pair[1].path) not in coming]
            kept = kept_ids([(i, row.value) for i, row in rows], KEPT_CHECKPOINTS)
            gone = [row.path for i, row in rows if i not in kept]
            study.checkpoints[number] = [pair for pair in rows if pair[0] in kept]
            for i, row in coming.values():
                if i in kept:
                    study.written_by[i] = worker_id
                    self._event(
                        "checkpoint", number=number, fence=fence, worker=worker_id, step=row.step
                    )
            for i in {i for i, _ in before} - {i for i, _ in study.checkpoints[number]}:
                study.written_by.pop(i, None)
            return gone

    def drop_checkpoints(self, *paths: Location) -> list[Location]:
        """Delete checkpoints of ended trials."""
        with self._lock:
            study, named, gone = self._study, {str(path) for path in paths}, list[Location]()
            if study is None:
                return gone
            for number, rows in study.checkpoints.items():
                if study.trials[number].alive:
                    continue
                dropped = [pair for pair in rows if str(pair[1].path) in named]
                study.checkpoints[number] = [pair for pair in rows if pair not in dropped]
                for row_id, row in dropped:
                    study.written_by.pop(row_id, None)
                    gone.append(row.path)
            return gone

    def set_progress(
        self,
        worker_id: str,
        grant: Grant,
        *,
        startup: float | None,
        position_from: float | None,
        position_to: float | None,
        trained: float | None,
        horizon: int | None,
        batch: int | None = None,
        pausable: bool | None = None,
    ) -> None:
        """Record the progress and speed of a segment."""
        with self._lock:
            study = self._guard(worker_id, grant)
            key = (grant.number, grant.fence)
            study.running[key] = study.running[key]._replace(
                startup=startup, position_from=position_from, position_to=position_to,
                trained=trained,
            )  # fmt: skip
            facts = {"horizon": horizon, "batch": batch, "pausable": pausable}
            if known := {name: value for name, value in facts.items() if value is not None}:
                self._put(study.trials[grant.number], **known)

    def limit_slots(self, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
        """Record the most slots on which the trial can train."""
        with self._lock:
            planned = self._guard(worker_id, grant).trials[grant.number]
            if planned.slot_limit is None or planned.slot_limit > slots:
                self._put(planned, slot_limit=slots, limit_reason=reason)
                self._event(
                    "limit", number=grant.number, fence=grant.fence, worker=worker_id,
                    slots=slots, reason=reason,
                )  # fmt: skip


_promises: type[AllocationStore] = MemoryTable  # checked by mypy
