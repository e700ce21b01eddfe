"""The allocation table in SQL: one method per transition, one transaction per method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import sqlalchemy as sa

from optuna_deadline.allocation.records import (
    Assignment,
    CheckpointOrigin,
    Event,
    GangMembership,
    Grant,
    MachineInfo,
    NewReport,
    Orders,
    PlannedTrial,
    Rendezvous,
    Renewal,
    ReportRow,
    Roster,
    SegmentRow,
    Slot,
    StudyClaim,
    Tenant,
    Worker,
)
from optuna_deadline.allocation.sql import acquire as acquiring
from optuna_deadline.allocation.sql import (
    gangs,
    lending,
    membership,
    plans,
    reads,
    requests,
    roster,
    single_statement,
    writes,
)
from optuna_deadline.allocation.sql import release as releasing
from optuna_deadline.allocation.sql.database.schema import POOL_LENGTH, check_length
from optuna_deadline.allocation.sql.database.transaction import Transactions
from optuna_deadline.allocation.store import GRACE, KEPT_CHECKPOINTS, TTL, AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location


class AllocationTable:
    """The table of one pool for one study, in SQL.

    Args:
        engine: From :func:`optuna_deadline.allocation.sql.database.engine.connect`.
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

    def leave(self, worker_id: str) -> None:
        """Leave the pool; elected roles end at once."""
        with self._tx() as tx:
            membership.leave(tx, worker_id)

    def workers(self) -> list[Worker]:
        """The live workers."""
        with self._tx.reading() as tx:
            return roster.live_workers(tx)

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that are live or hold slots."""
        with self._tx.reading() as tx:
            return roster.on_host(tx, host)

    def slots(self) -> list[Slot]:
        """All slots of the pool."""
        with self._tx.reading() as tx:
            return roster.slots(tx)

    def roster(self) -> Roster:
        """The study's live workers and their slots."""
        with self._tx.reading() as tx:
            return roster.read_roster(tx)

    def free_slots(self, worker_id: str) -> list[int]:
        """Slots that the worker may acquire now."""
        with self._tx.reading() as tx:
            return roster.free_slots(tx, worker_id)

    def follow_study(self) -> None:
        """Read the pool that a worker of the study joined last, if none is in this one."""
        with self._tx.reading() as tx:
            if any(row.study_id == self.study_id for row in roster.live_workers(tx)):
                return
            pools = reads.pools_of(tx.connection, self.study_id)
        if pools:
            self.pool = self._tx.pool = pools[0]

    # The pool.

    def elect_leader(self, worker_id: str) -> int | None:
        """Become or stay the pool's leader; returns the term."""
        with self._tx() as tx:
            return lending.elect_leader(tx, worker_id, self.ttl)

    def tenants(self) -> list[Tenant]:
        """The pool's unsettled studies."""
        with self._tx.reading() as tx:
            return lending.tenants(tx)

    def lend(
        self,
        worker_id: str,
        term: int,
        lent: Mapping[int, int],
        shares: Mapping[int, int],
        fair: Mapping[int, float],
    ) -> None:
        """Lend slots to studies; see :func:`lending.lend`."""
        with self._tx("lend") as tx:
            lending.lend(tx, worker_id, term, lent, shares, fair)

    def set_claim(self, worker_id: str, term: int, claim: StudyClaim) -> None:
        """Set the study's claim."""
        with self._tx() as tx:
            lending.set_claim(tx, worker_id, term, claim)

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

    def publish_rendezvous(self, worker_id: str, grant: Grant, rendezvous: Rendezvous) -> None:
        """Publish where the ranks of a gang meet; see :func:`gangs.publish_rendezvous`."""
        with self._tx("meet") as tx:
            gangs.publish_rendezvous(tx, worker_id, grant, rendezvous)

    def release_part(self, worker_id: str, number: int, fence: int) -> bool:
        """Release a member's part of a gang; see :func:`release.release_part`."""
        with self._tx("give_back") as tx:
            return releasing.release_part(tx, worker_id, number, fence)

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the slots that the worker still holds; see :func:`acquire.renew`."""
        if self._at_once:
            with self._tx.single_statement() as (connection, now):
                return acquiring.renew_in_one_statement(connection, worker_id, held, self.ttl, now)
        with self._tx() as tx:
            return acquiring.renew(tx, worker_id, held, self.ttl)

    def release(
        self,
        worker_id: str,
        grant: Grant,
        outcome: str,
        *,
        ended: str,
        value: float | None = None,
        stop: float | None = None,
        failures: int = 0,
        stays: bool = False,
    ) -> bool:
        """Release the slots; see :func:`release.release`."""
        with self._tx("release") as tx:
            return releasing.release(
                tx,
                worker_id,
                grant,
                outcome,
                ended=ended,
                value=value,
                stop=stop,
                failures=failures,
                stays=stays,
            )

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        """Release a grant whose answer was lost; see :func:`release.cancel_grant`."""
        with self._tx() as tx:
            return releasing.cancel_grant(tx, worker_id, number, fence)

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

    def add_report(
        self, worker_id: str, grant: Grant, step: int, value: float, trained: float
    ) -> None:
        """Record one report."""
        self.add_reports(worker_id, grant, [NewReport(step, value, trained)])

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

    def drop_checkpoints(self, *paths: Location) -> list[Location]:
        """Delete checkpoints of ended trials."""
        with self._tx("drop_checkpoints") as tx:
            return writes.drop_checkpoints(tx, paths)

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

    def limit_slots(self, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
        """Record the most slots on which the trial can train."""
        with self._tx() as tx:
            writes.limit_slots(tx, worker_id, grant, slots, reason)

    # The plan.

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner; returns the term."""
        with self._tx() as tx:
            return plans.elect_planner(tx, worker_id, self.ttl)

    def open_trial(self, worker_id: str, term: int, number: int, trial_id: int) -> None:
        """Add a new Optuna trial to the table."""
        with self._tx("open_trial") as tx:
            plans.open_trial(tx, worker_id, term, number, trial_id)

    def write_plan(
        self,
        worker_id: str,
        term: int,
        changes: Sequence[Assignment],
        seconds: float | None = None,
    ) -> int:
        """Write the changes of a plan; returns the epoch."""
        with self._tx("write_plan") as tx:
            return plans.write(tx, worker_id, term, changes, seconds)

    def conclude(
        self,
        worker_id: str,
        term: int,
        number: int,
        state: str,
        reason: str,
        value: float | None = None,
        *,
        unreported: bool = False,
    ) -> bool:
        """End a trial without a worker."""
        with self._tx("conclude") as tx:
            return plans.conclude(
                tx, worker_id, term, number, state, reason, value, unreported=unreported
            )

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        """Retire trials without a worker."""
        with self._tx("retire") as tx:
            return plans.retire(tx, worker_id, term, reasons)

    def mark_ends_reported(self, *numbers: int) -> None:
        """Record that Optuna knows the ends of these trials."""
        with self._tx("mark_told") as tx:
            plans.mark_ends_reported(tx, numbers)

    def set_gate(self, worker_id: str, term: int, is_open: bool) -> None:
        """Open or close the gate."""
        with self._tx() as tx:
            plans.set_gate(tx, worker_id, term, is_open)

    def resize_pool(
        self,
        worker_id: str,
        term: int,
        slots: int,
        funds_end: float,
        types: Mapping[str, int] | None = None,
        seen: tuple[int | None, float | None] | None = None,
    ) -> bool:
        """Set the number of slots that the study pays for; see :func:`plans.resize_pool`."""
        with self._tx("resize_pool") as tx:
            return plans.resize_pool(tx, worker_id, term, slots, funds_end, types, seen)

    def settle(self, worker_id: str, term: int, seen: float | None = None) -> bool:
        """Close the study."""
        with self._tx("settle") as tx:
            return plans.settle(tx, worker_id, term, seen)

    # Requests of users.

    def hold(self, number: int, held: bool) -> bool:
        """Hold a trial without slots, or release the hold; see :mod:`requests`."""
        with self._tx() as tx:
            return requests.hold(tx, number, held)

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a trial's gang, or remove the pin."""
        with self._tx() as tx:
            return requests.pin(tx, number, slots)

    def set_price(
        self,
        host_type: str,
        per_hour: float,
        slots: int,
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the price of a slot of a host type from now on; see :mod:`requests`."""
        with self._tx() as tx:
            return requests.set_price(tx, host_type, per_hour, slots, funds_end, seen, types)

    def drain(self, host: str, drained: bool) -> int:
        """Drain the pool's live workers on a host, or undo it."""
        with self._tx() as tx:
            return requests.drain(tx, host, drained)

    # Reads.

    def orders(self, worker_id: str) -> Orders:
        """The orders of one worker."""
        with self._tx.single_statement() as (connection, now):
            return reads.orders(connection, self.pool, self.study_id, worker_id, now)

    def memberships(self, worker_id: str) -> list[GangMembership]:
        """The parts that a worker gives, and those of the gangs that it was granted."""
        with self._tx.reading() as tx:
            return gangs.memberships(tx, worker_id)

    def trials(self) -> list[PlannedTrial]:
        """Every trial in the table."""
        with self._tx.reading() as tx:
            return reads.trials(tx)

    def unreported_trials(self) -> list[PlannedTrial]:
        """Trials that live, or whose end Optuna does not know yet."""
        with self._tx.reading() as tx:
            return reads.unreported_trials(tx)

    def segments(self, since: float = 0.0) -> list[SegmentRow]:
        """Segments that run, or ended at or after ``since``."""
        with self._tx.reading() as tx:
            return reads.segments(tx, since)

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        """Reports with a row id above ``after``, of one trial or of all."""
        with self._tx.reading() as tx:
            return reads.reports(tx, after, number)

    def checkpoints(self, number: int | None = None) -> list[Checkpoint]:
        """Committed checkpoints, newest first."""
        with self._tx.reading() as tx:
            return reads.checkpoints(tx, number)

    def checkpoint_origins(
        self, after: int = 0, number: int | None = None
    ) -> list[CheckpointOrigin]:
        """Where checkpoints were written, of one trial or of all."""
        with self._tx.reading() as tx:
            return reads.checkpoint_origins(tx, after, number)

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's earlier segments."""
        with self._tx.reading() as tx:
            return reads.trained_before(tx, number, fence)

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The study's events from a row id on, of some kinds or of all."""
        with self._tx.reading() as tx:
            return reads.events(tx, after, kinds)

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The events of all studies of the pool from a row id on, of some kinds or of all."""
        with self._tx.reading() as tx:
            return reads.pool_events(tx, after, kinds)


_promises: type[AllocationStore] = AllocationTable  # checked by mypy
