"""The allocation table in SQL: one method per transition, one transaction per method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from optuna_deadline.allocation.database.schema import POOL_LENGTH, check_length
from optuna_deadline.allocation.records import Grant, MachineInfo, NewReport, Orders, Renewal, Slot
from optuna_deadline.allocation.sql import acquire as acquiring
from optuna_deadline.allocation.sql import (
    gangs,
    lending,
    membership,
    plans,
    reads,
    requests,
    single_statement,
    writes,
)
from optuna_deadline.allocation.sql import release as releasing
from optuna_deadline.allocation.sql import roster as rosters
from optuna_deadline.allocation.sql.transaction import Transaction, Transactions
from optuna_deadline.allocation.store import GRACE, KEPT_CHECKPOINTS, TTL, AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _read(
    query: Callable[Concatenate[Transaction, _P], _R],
) -> Callable[Concatenate[AllocationTable, _P], _R]:
    """A method that runs a query in a transaction which reads."""

    @wraps(query)
    def method(self: AllocationTable, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._tx.reading() as tx:
            return query(tx, *args, **kwargs)

    return method


def _write(
    change: Callable[Concatenate[Transaction, _P], _R], name: str = ""
) -> Callable[Concatenate[AllocationTable, _P], _R]:
    """A method that makes a change in a transaction of its own, which crash points may name."""

    @wraps(change)
    def method(self: AllocationTable, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._tx(name) as tx:
            return change(tx, *args, **kwargs)

    return method


class AllocationTable:
    """The table of one pool for one study, in SQL.

    Args:
        engine: From :func:`optuna_deadline.allocation.database.engine.connect`.
        pool: The pool's name; studies that name the same pool share its slots.
        study_id: The study's id in the table.
        ttl: Seconds that a lease lasts without renewal; the pool's first worker sets it.
        grace: Seconds after a lease's end before it may be reaped.
        now: The time in seconds since the epoch, if a test sets it; else the database's.
    """

    def __init__(
        self,
        engine: sa.Engine,
        pool: str,
        study_id: int,
        *,
        ttl: float = TTL,
        grace: float = GRACE,
        now: Callable[[], float] | None = None,
    ) -> None:
        check_length("pool", pool, POOL_LENGTH)
        self._tx = Transactions(engine, pool, study_id, now)
        self.pool = pool
        self.study_id = study_id
        self.ttl = ttl
        self.grace = grace

    @property
    def _at_once(self) -> bool:
        """Whether frequent writes are one statement, because round trips cost time."""
        return self._tx.engine.dialect.name == "postgresql"

    def now(self) -> float:
        """The database's time."""
        with self._tx.reading() as tx:
            return tx.now

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
        """Join the pool with devices and CPU shares; see :func:`membership.register`."""
        with self._tx("register") as tx:
            tx = membership.serialize_registrations(tx)
            self.ttl, self.grace = membership.ensure_pool(tx, self.ttl, self.grace)
            return membership.register(
                tx, worker_id, host, pid, devices, cpus, self.ttl, weight, machine_info
            )

    def make_pool(self) -> tuple[float, float]:
        """Create the pool unless it exists; returns the seconds of its leases and its grace."""
        with self._tx() as tx:
            tx = membership.serialize_registrations(tx)
            self.ttl, self.grace = membership.ensure_pool(tx, self.ttl, self.grace)
        return self.ttl, self.grace

    leave = _write(membership.leave)
    workers = _read(rosters.live_workers)
    on_host = _read(rosters.on_host)
    slots = _read(rosters.slots)
    roster = _read(rosters.read_roster)
    free_slots = _read(rosters.free_slots)

    def follow_study(self) -> None:
        """Read the pool that a worker of the study joined last, if none is in this one."""
        with self._tx.reading() as tx:
            if any(row.study_id == self.study_id for row in rosters.live_workers(tx)):
                return
            pools = reads.pools_of(tx.connection, self.study_id)
        if pools:
            self.pool = self._tx.pool = pools[0]

    # The pool.

    def elect_leader(self, worker_id: str) -> int | None:
        """Become or stay the pool's leader; returns the term."""
        with self._tx() as tx:
            return lending.elect_leader(tx, worker_id, self.ttl)

    tenants = _read(lending.tenants)
    lend = _write(lending.lend, "lend")
    set_claim = _write(lending.set_claim)

    # Leases.

    def acquire(
        self,
        worker_id: str,
        number: int,
        slot_ids: Sequence[int],
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> Grant | None:
        """Acquire a gang's slots, all or none; see :func:`acquire.acquire`."""
        with self._tx("acquire") as tx:
            return acquiring.acquire(tx, worker_id, number, slot_ids, self.ttl, others)

    publish_rendezvous = _write(gangs.publish_rendezvous, "meet")
    release_part = _write(releasing.release_part, "give_back")

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the slots that the worker still holds; see :func:`acquire.renew`."""
        if self._at_once:
            with self._tx.single_statement() as (connection, now):
                return acquiring.renew_in_one_statement(connection, worker_id, held, self.ttl, now)
        with self._tx() as tx:
            return acquiring.renew(tx, worker_id, held, self.ttl)

    release = _write(releasing.release, "release")
    cancel_grant = _write(releasing.cancel_grant)

    def reap(self) -> int:
        """Free the slots of dead workers; returns their number.

        None while the database's clock may have been stepped: see :class:`ClockMonitor`.
        """
        with self._tx("reap") as tx:
            if not self._tx.may_compare(self.ttl + self.grace, self.grace / 2, self.ttl / 2):
                return 0
            return releasing.reap(tx)

    def reap_ended(self, names: Collection[str]) -> int:
        """Free the slots of workers that have ended; see :func:`release.reap_ended`."""
        with self._tx() as tx:
            tx = membership.serialize_registrations(tx)
            return releasing.reap_ended(tx, names)

    # Fenced writes of a running segment.

    def add_reports(self, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports."""
        if self._at_once:
            with self._tx.single_statement("add_reports") as (connection, now):
                single_statement.add_reports(connection, self.study_id, worker_id, grant, new, now)
            return
        with self._tx("add_reports") as tx:
            writes.add_reports(tx, worker_id, grant, new)

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints and reports; returns the files to delete."""
        with self._tx("add_checkpoint") as tx:
            if reports and self._at_once:
                single_statement.add_reports(
                    tx.connection, self.study_id, worker_id, grant, reports, tx.now
                )
            elif reports:
                writes.add_reports(tx, worker_id, grant, reports)
            return writes.add_checkpoint(tx, worker_id, grant, new, KEPT_CHECKPOINTS)

    drop_checkpoints = _write(writes.drop_checkpoints, "drop_checkpoints")

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
        said = {
            "startup": startup,
            "position_from": position_from,
            "position_to": position_to,
            "trained": trained,
            "horizon": horizon,
            "batch": batch,
            "pausable": pausable,
        }
        if self._at_once:
            with self._tx.single_statement() as (connection, _):
                single_statement.set_progress(connection, self.study_id, worker_id, grant, said)
            return
        with self._tx() as tx:
            writes.set_progress(tx, worker_id, grant, said)

    limit_slots = _write(writes.limit_slots)

    # The plan.

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner; returns the term."""
        with self._tx() as tx:
            return plans.elect_planner(tx, worker_id, self.ttl)

    open_trial = _write(plans.open_trial, "open_trial")
    write_plan = _write(plans.write, "write_plan")
    conclude = _write(plans.conclude, "conclude")
    retire = _write(plans.retire, "retire")
    mark_ends_reported = _write(plans.mark_ends_reported, "mark_told")
    set_gate = _write(plans.set_gate)
    resize_pool = _write(plans.resize_pool, "resize_pool")
    settle = _write(plans.settle, "settle")

    # Requests of users.

    hold = _write(requests.hold)
    pin = _write(requests.pin)
    set_price = _write(requests.set_price)
    drain = _write(requests.drain)

    # Reads.

    def orders(self, worker_id: str) -> Orders:
        """The orders of one worker."""
        with self._tx.single_statement() as (connection, now):
            return reads.orders(connection, self.pool, self.study_id, worker_id, now)

    memberships = _read(gangs.memberships)
    trials = _read(reads.trials)
    unreported_trials = _read(reads.unreported_trials)
    segments = _read(reads.segments)
    reports = _read(reads.reports)
    checkpoints = _read(reads.checkpoints)
    checkpoint_origins = _read(reads.checkpoint_origins)
    trained_before = _read(reads.trained_before)
    events = _read(reads.events)
    pool_events = _read(reads.pool_events)


_promises: type[AllocationStore] = AllocationTable  # checked by mypy
