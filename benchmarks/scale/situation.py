"""A large pool at half of its time: its rows in memory, and the same rows in PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.memory.state import MemoryPool, MemoryState, MemoryTenant
from optuna_deadline.allocation.memory.store import MemoryTable
from optuna_deadline.allocation.records import (
    PlannedTrial,
    ReportRow,
    SegmentRow,
    Slot,
    StudyClaim,
    Worker,
)
from optuna_deadline.allocation.store import GRACE, TTL

POOL = "pool"
STEPS, STEP_SECONDS = 81, 60.0


@dataclass(frozen=True)
class Size:
    """The size of a pool. Every study has its share of the slots, and twice as many trials.

    Attributes:
        hosts: The number of hosts.
        slots: The slots of each host.
        studies: The studies that share the pool.
        served: The studies with a worker on a host, so each can use this many times its share.
    """

    hosts: int
    slots: int = 10
    studies: int = 1
    served: int = 4

    @property
    def capacity(self) -> int:
        """All slots."""
        return self.hosts * self.slots

    @property
    def share(self) -> int:
        """Slots of one study."""
        return self.capacity // self.studies

    @property
    def workers(self) -> int:
        """Worker processes."""
        return self.studies * self.breadth

    @property
    def breadth(self) -> int:
        """Hosts that one study has workers on."""
        return min(self.hosts, max(1, round(self.served * self.hosts / self.studies)))

    @property
    def trials(self) -> int:
        """Live trials."""
        return 2 * self.share * self.studies

    def __str__(self) -> str:
        return f"{self.capacity:,} slots, {self.studies} studies"


def worker_id(study: int, host: int) -> str:
    """A study's worker on a host."""
    return f"s{study}-h{host}"


@dataclass
class Situation:
    """The rows at a time.

    Attributes:
        size: The size of the pool.
        now: The time.
        state: The rows.
        tables: The table of each study.
    """

    size: Size
    now: float
    state: MemoryState = field(default_factory=MemoryState)
    tables: dict[int, MemoryTable] = field(default_factory=dict)

    def planner_of(self, study: int) -> str:
        """The worker that plans a study: the one on its first host."""
        return worker_id(study, self.hosts_of(study)[0])

    def hosts_of(self, study: int) -> list[int]:
        """The hosts on which a study has workers, those of its share first."""
        first = (study - 1) * self.size.share // self.size.slots
        return [(first + k) % self.size.hosts for k in range(self.size.breadth)]

    def running(self, study: int) -> Iterator[PlannedTrial]:
        """The trials of a study that hold slots."""
        return (row for row in self.state.studies[study].trials.values() if row.owner is not None)

    def report_once(self, study: int) -> int:
        """Let each running trial of a study report its next step; return their number."""
        rows, reported = self.state.studies[study], 0
        chance = random.Random(f"{study} {len(rows.reports)}")
        steps = dict.fromkeys(rows.trials, 0)
        for number, step in rows.steps:
            steps[number] = max(steps[number], step)
        for line in list(self.running(study)):
            step = steps[line.number] + 1
            rows.steps.add((line.number, step))
            trained = step * STEP_SECONDS
            rows.reports.append(
                ReportRow(
                    len(rows.reports) + 1, line.number, step, chance.random(), line.slots, trained,
                    self.now,
                )
            )  # fmt: skip
            reported += 1
        return reported


def build(size: Size) -> Situation:
    """A pool that has run for hours: studies have fair shares, half of their trials train."""
    found = Situation(size, 4.0 * STEPS * STEP_SECONDS)
    state, now = found.state, found.now
    state.pools[POOL] = MemoryPool(TTL, GRACE)
    for study in range(1, size.studies + 1):
        found.tables[study] = MemoryTable(
            POOL, study, now=lambda: found.now, deadline=2 * now, state=state
        )
        said = StudyClaim(
            2 * size.share, size.breadth * size.slots, size.share * now, size.share * now
        )
        state.tenants[POOL, study] = MemoryTenant(
            1.0, 0.0, now, claim=said, served=size.share * now, entitled=size.share * now
        )
        for host in found.hosts_of(study):
            me = worker_id(study, host)
            state.workers[me] = Worker(me, POOL, study, f"host{host}", host, "live", now + 1e6)
    for host in range(size.hosts):
        for nth in range(size.slots):
            slot = host * size.slots + nth + 1
            study = min(size.studies, 1 + (slot - 1) // size.share)
            state.slots[slot] = Slot(
                slot, f"host{host}", f"gpu:{nth}", POOL, study, 0, None, None, None, None
            )
    offered: dict[int, list[str]] = {slot: [] for slot in state.slots}
    for worker in state.workers.values():
        for nth in range(size.slots):
            offered[worker.pid * size.slots + nth + 1].append(worker.id)
    for slot, workers in offered.items():
        state.offer(slot, workers)
    for study in range(1, size.studies + 1):
        _fill(found, study)
    return found


def _fill(found: Situation, study: int) -> None:
    """A study's trials: as under halving, most have trained a little and few have trained long."""
    rows, size, chance = found.state.studies[study], found.size, random.Random(study)
    first = (study - 1) * size.share + 1
    for number in range(2 * size.share):
        running = number < size.share
        slot = found.state.slots[first + number] if running else None
        owner = None if slot is None else worker_id(study, int(slot.host.removeprefix("host")))
        rows.put(
            PlannedTrial(
                number, study * 1_000_000 + number, "running" if running else "paused", 1, owner,
                "run" if running else "pause", owner, int(running), "", 0.0, STEPS, None, False, 0,
            )
        )  # fmt: skip
        steps = min(STEPS - 2, max(1, int(chance.paretovariate(0.8))))
        top, trained = chance.random(), steps * STEP_SECONDS
        granted = found.now - trained
        row = SegmentRow(
            number, 1, 1, granted, None if running else found.now - 1000.0,
            None if running else "pause", 5.0, None if running else 1.0, 0.0, float(steps),
            trained,
        )  # fmt: skip
        if running:
            rows.running[number, 1] = row
        else:
            rows.end(row)
        for step in range(1, steps + 1):
            value = top * (1 - 0.9**step) + chance.gauss(0, 0.005)
            rows.steps.add((number, step))
            rows.reports.append(
                ReportRow(
                    len(rows.reports) + 1, number, step, value, 1, step * STEP_SECONDS,
                    granted + step * STEP_SECONDS,
                )
            )  # fmt: skip
        if slot is not None:
            found.state.slots[slot.id] = Slot(
                slot.id, slot.host, slot.device, POOL, study, 1, owner, study, number,
                found.now + 1e6,
            )  # fmt: skip


def write_rows(found: Situation, engine: sa.Engine) -> None:
    """Write the same rows to a database, with leases of weeks."""
    state = found.state
    with engine.connect() as connection:
        clock = "SELECT extract(epoch FROM clock_timestamp())"
        shift = float(connection.exec_driver_sql(clock).scalar_one()) - found.now
    with engine.begin() as connection:

        def fill(table: sa.Table, rows: list[dict[str, Any]]) -> None:
            for at in range(0, len(rows), 10_000):
                connection.execute(sa.insert(table), rows[at : at + 10_000])

        fill(schema.pool, [{"name": POOL, "epoch": 0, "ttl": 2e6, "grace": GRACE}])
        fill(schema.leader, [{"pool": POOL, "holder": None, "term": 0, "expires": 0.0}])
        fill(schema.study, [
            {"study_id": key, "name": row.name, "direction": "maximize",
             "started": row.started + shift, "deadline": row.deadline + shift,
             "policy": "hypersched", "parameters": {}}
            for key, row in state.studies.items()
        ])  # fmt: skip
        fill(schema.tenant, [
            {"pool": POOL, "study_id": study, "weight": row.weight, "joined": shift, "term": 0,
             "expires": 0.0, "live": row.claim.live, "most": row.claim.most,
             "done": row.claim.done, "remaining": row.claim.remaining, "served": row.served,
             "entitled": row.entitled, "counted": row.counted + shift}
            for (_, study), row in state.tenants.items() if row.claim is not None
        ])  # fmt: skip
        fill(schema.worker, [
            {"id": row.id, "pool": POOL, "study_id": row.study_id, "host": row.host,
             "pid": row.pid, "state": "live", "registered": shift, "lease": row.lease + shift}
            for row in state.workers.values()
        ])  # fmt: skip
        fill(schema.slot, [
            {"id": row.id, "host": row.host, "device": row.device, "pool": POOL,
             "fence": row.fence, "holder": row.holder, "study_id": row.study_id,
             "number": row.number, "lent_to": row.lent_to,
             "lease": None if row.lease is None else row.lease + shift}
            for row in state.slots.values()
        ])  # fmt: skip
        numbers = f"pg_get_serial_sequence('{schema.slot.name}', 'id'), {len(state.slots)}"
        connection.exec_driver_sql(f"SELECT setval({numbers})")
        fill(schema.offer, [
            {"worker": worker, "slot_id": slot}
            for slot, workers in state.offers.items() for worker in workers
        ])  # fmt: skip
        for study, rows in state.studies.items():
            fill(schema.trial, [
                {"study_id": study, "number": row.number, "trial_id": row.trial_id,
                 "state": row.state, "fence": row.fence, "owner": row.owner,
                 "desired_mode": row.mode, "desired_worker": row.worker,
                 "desired_slots": row.slots, "reason": row.reason, "desired_since": shift,
                 "horizon": row.horizon, "told": False, "failures": 0}
                for row in rows.trials.values()
            ])  # fmt: skip
            fill(schema.segment, [
                {"study_id": study, "worker": "w", **row._asdict(), "workers": None,
                 "granted": row.granted + shift,
                 "ended": None if row.ended is None else row.ended + shift}
                for row in [*rows.running.values(), *rows.ended]
            ])  # fmt: skip
            fill(schema.report, [
                {"study_id": study, "number": row.number, "step": row.step, "value": row.value,
                 "fence": 1, "slots": 1, "trained": row.trained, "at": row.at + shift}
                for row in rows.reports
            ])  # fmt: skip
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
