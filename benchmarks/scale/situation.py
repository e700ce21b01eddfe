"""A large pool at half of its time: its rows in memory, and the same rows in PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.allocation.table import GRACE, TTL
from optuna_deadline.allocation.table.memory import MemoryTable

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
        database: The rows.
        tables: The table of each study.
    """

    size: Size
    now: float
    database: MemoryDatabase = field(default_factory=MemoryDatabase)
    tables: dict[int, MemoryTable] = field(default_factory=dict)

    def planner_of(self, study: int) -> str:
        """The worker that plans a study: the one on its first host."""
        return worker_id(study, self.hosts_of(study)[0])

    def hosts_of(self, study: int) -> list[int]:
        """The hosts on which a study has workers, those of its share first."""
        first = (study - 1) * self.size.share // self.size.slots
        return [(first + k) % self.size.hosts for k in range(self.size.breadth)]

    def running(self, study: int) -> list[PlannedTrial]:
        """The trials of a study that hold slots."""
        return [row for row in self.tables[study].trials() if row.owner is not None]

    def held(self, me: str) -> list[tuple[int, int]]:
        """The slots that a worker holds, with their fences, in the order of their trials."""
        with self.tables[1].writing() as tx:
            held = "SELECT id, fence FROM @slot WHERE holder = :me ORDER BY number"
            return [(slot, fence) for slot, fence in tx.rows(held, me=me)]

    def report_once(self, study: int) -> int:
        """Let each running trial of a study report its next step; return their number."""
        chance = random.Random(f"{study} {self.now}")
        running = self.running(study)
        with self.tables[study].writing() as tx:
            steps = dict(tx.rows(
                "SELECT number, max(step) FROM @report WHERE study_id = :study GROUP BY number"
            ))  # fmt: skip
            tx.insert("report", [
                _report(study, n, steps.get(n, 0) + 1, chance.random(), self.now)
                for n in [line.number for line in running]
            ])  # fmt: skip
        return len(running)


def build(size: Size) -> Situation:
    """A pool that has run for hours: studies have fair shares, half of their trials train."""
    found = Situation(size, 4.0 * STEPS * STEP_SECONDS)
    now, database = found.now, found.database
    for study in range(1, size.studies + 1):
        found.tables[study] = MemoryTable(
            POOL, study, now=lambda: found.now, deadline=2 * now, database=database
        )
    with found.tables[1].writing() as tx:
        tx.insert("pool", [{"name": POOL, "epoch": 0, "ttl": TTL, "grace": GRACE}])
        tx.insert("leader", [{"pool": POOL, "term": 0, "expires": 0.0}])
        tx.insert("slot", _slots(size))
        for study in found.tables:
            tx.insert("tenant", [{
                "pool": POOL, "study_id": study, "weight": 1.0, "joined": 0.0, "term": 0,
                "expires": 0.0, "live": 2 * size.share, "most": size.breadth * size.slots,
                "done": size.share * now, "remaining": size.share * now,
                "served": size.share * now, "entitled": size.share * now, "counted": now,
                "span": 0.0, "restart": 0.0, "spent": 0.0,
            }])  # fmt: skip
            hosts = found.hosts_of(study)
            tx.insert("worker", [
                {"id": worker_id(study, host), "pool": POOL, "study_id": study,
                 "host": f"host{host}", "pid": host, "state": "live", "registered": 0.0,
                 "lease": now + 1e6}
                for host in hosts
            ])  # fmt: skip
            tx.insert("offer", [
                {"worker": worker_id(study, host), "slot_id": host * size.slots + nth + 1}
                for host in hosts for nth in range(size.slots)
            ])  # fmt: skip
            _fill(tx, found, study)
    return found


def _slots(size: Size) -> Iterator[dict[str, Any]]:
    for slot in range(1, size.capacity + 1):
        host, nth = divmod(slot - 1, size.slots)
        study = min(size.studies, 1 + (slot - 1) // size.share)
        yield {"id": slot, "host": f"host{host}", "device": f"gpu:{nth}", "pool": POOL,
               "fence": 0, "lent_to": study}  # fmt: skip


def _fill(tx: Transaction, found: Situation, study: int) -> None:
    """A study's trials: as under halving, most have trained a little and few have trained long."""
    size, chance = found.size, random.Random(study)
    first = (study - 1) * size.share + 1
    for number in range(2 * size.share):
        running = number < size.share
        slot, owner = first + number, None
        if running:
            owner = worker_id(study, (slot - 1) // size.slots)
            tx.run(
                "UPDATE @slot SET holder = :owner, study_id = :id, number = :number, fence = 1, "
                "lease = :lease WHERE id = :slot",
                owner=owner, id=study, number=number, lease=found.now + 1e6, slot=slot,
            )  # fmt: skip
        tx.insert("trial", [{
            "study_id": study, "number": number, "trial_id": study * 1_000_000 + number,
            "state": "running" if running else "paused", "fence": 1, "owner": owner,
            "desired_mode": "run" if running else "pause", "desired_worker": owner,
            "desired_slots": int(running), "reason": "", "desired_since": 0.0, "horizon": STEPS,
            "told": False, "failures": 0,
        }])  # fmt: skip
        steps = min(STEPS - 2, max(1, int(chance.paretovariate(0.8))))
        top, trained = chance.random(), steps * STEP_SECONDS
        granted = found.now - trained
        tx.insert("segment", [{
            "study_id": study, "number": number, "fence": 1, "worker": "w", "slots": 1,
            "granted": granted, "ended": None if running else found.now - 1000.0,
            "outcome": None if running else "pause", "startup": 5.0,
            "stop": None if running else 1.0, "position_from": 0.0, "position_to": float(steps),
            "trained": trained,
        }])  # fmt: skip
        tx.insert("report", [
            _report(
                study, number, step, top * (1 - 0.9**step) + chance.gauss(0, 0.005),
                granted + step * STEP_SECONDS,
            )
            for step in range(1, steps + 1)
        ])  # fmt: skip


def _report(study: int, number: int, step: int, value: float, at: float) -> dict[str, Any]:
    return {"study_id": study, "number": number, "step": step, "value": value, "fence": 1,
            "slots": 1, "trained": step * STEP_SECONDS, "at": at}  # fmt: skip


#: Columns with instants, which another database's clock moves.
_INSTANTS = {
    "started", "deadline", "joined", "counted", "registered", "lease", "desired_since", "granted",
    "ended", "at",
}  # fmt: skip


def write_rows(found: Situation, engine: sa.Engine) -> None:
    """Write the same rows to PostgreSQL, with leases of weeks."""
    with engine.connect() as connection:
        clock = "SELECT extract(epoch FROM clock_timestamp())"
        shift = float(connection.exec_driver_sql(clock).scalar_one()) - found.now
    with found.database.engine.connect() as source, engine.begin() as target:
        for table in schema.metadata.sorted_tables:
            rows = [
                {name: _moved(name, value, shift) for name, value in row.items()}
                for row in source.execute(sa.select(table)).mappings()
                if table is not schema.version
            ]
            if table is schema.pool:
                rows = [{**row, "ttl": 2e6} for row in rows]
            for at in range(0, len(rows), 10_000):
                target.execute(sa.insert(table), rows[at : at + 10_000])
        for table in (schema.slot, schema.report):
            last = f"(SELECT max(id) FROM {table.name})"
            target.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {last})"
            )
    with autocommit(engine) as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")


def _moved(name: str, value: Any, shift: float) -> Any:
    return value + shift if name in _INSTANTS and value is not None else value
