"""The allocation table as its users see it: one method a transition, one transaction a method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import sqlalchemy as sa

from optuna_deadline.allocation.records import (
    About,
    Assignment,
    Claim,
    Desired,
    Event,
    Grant,
    Hand,
    Home,
    Meeting,
    NewReport,
    Orders,
    Renewal,
    ReportRow,
    Roster,
    SegmentRow,
    Slot,
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
from optuna_deadline.allocation.sql.database.transaction import Transactions
from optuna_deadline.allocation.store import GRACE, KEPT_CHECKPOINTS, TTL, AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location


class AllocationTable:
    """One pool's table for one study, in SQL.

    Args:
        engine: From :func:`optuna_deadline.allocation.sql.database.engine.connect`.
        pool: The pool's name; studies that name the same pool share its slots.
        study_id: The study's id in the table.
        ttl: Seconds that a lease lives without renewal; the pool's first worker fixes it.
        grace: Seconds after a lease's end before anybody may reap it.
        now: The time in seconds since the epoch, where a test drives it; the database's otherwise.
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
        self._tx = Transactions(engine, pool, study_id, now)
        self.pool = pool
        self.study_id = study_id
        self.ttl = ttl
        self.grace = grace

    @property
    def _at_once(self) -> bool:
        """Whether what comes often is one statement: where each round trip counts."""
        return self._tx.engine.dialect.name == "postgresql"

    def now(self) -> float:
        """The database's time."""
        with self._tx.reading() as tx:
            return tx.now

    # Membership.

    def register(
        self,
        me: str,
        host: str,
        pid: int,
        devices: Sequence[str],
        cpus: int,
        weight: float | None = None,
        about: About | None = None,
    ) -> list[Slot]:
        """Join the pool with devices and CPU shares; see :func:`membership.register`."""
        with self._tx("register") as tx:
            tx = membership.one_at_a_time(tx)
            self.ttl, self.grace = membership.ensure_pool(tx, self.ttl, self.grace)
            return membership.register(tx, me, host, pid, devices, cpus, self.ttl, weight, about)

    def make_pool(self) -> tuple[float, float]:
        """Make the pool unless it is there; returns its lease's seconds and its grace."""
        with self._tx() as tx:
            tx = membership.one_at_a_time(tx)
            self.ttl, self.grace = membership.ensure_pool(tx, self.ttl, self.grace)
        return self.ttl, self.grace

    def leave(self, me: str) -> None:
        """Leave the pool; what it led and planned is handed on at once."""
        with self._tx() as tx:
            membership.leave(tx, me)

    def workers(self) -> list[Worker]:
        """The live workers."""
        with self._tx.reading() as tx:
            return roster.live_workers(tx)

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that count as live or hold slots."""
        with self._tx.reading() as tx:
            return roster.on_host(tx, host)

    def slots(self) -> list[Slot]:
        """All slots of the pool."""
        with self._tx.reading() as tx:
            return roster.slots(tx)

    def roster(self) -> Roster:
        """The study's live workers and their slots."""
        with self._tx.reading() as tx:
            return roster.read(tx)

    def free_slots(self, me: str) -> list[int]:
        """Slots that the worker may acquire now."""
        with self._tx.reading() as tx:
            return roster.free_slots(tx, me)

    # The pool.

    def lead(self, me: str) -> int | None:
        """Become or stay the pool's leader; returns the term."""
        with self._tx() as tx:
            return lending.lead(tx, me, self.ttl)

    def tenants(self) -> list[Tenant]:
        """The pool's studies that are not settled."""
        with self._tx.reading() as tx:
            return lending.tenants(tx)

    def lend(
        self,
        me: str,
        term: int,
        lent: Mapping[int, int],
        shares: Mapping[int, int],
        fair: Mapping[int, float],
    ) -> None:
        """Lend slots to studies; see :func:`lending.lend`."""
        with self._tx("lend") as tx:
            lending.lend(tx, me, term, lent, shares, fair)

    def claim(self, me: str, term: int, said: Claim) -> None:
        """Say what the study needs."""
        with self._tx() as tx:
            lending.claim(tx, me, term, said)

    # Leases.

    def acquire(
        self,
        me: str,
        number: int,
        slot_ids: Sequence[int],
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> Grant | None:
        """Take a gang's slots, all or none; see :func:`acquiring.acquire`."""
        with self._tx("acquire") as tx:
            return acquiring.acquire(tx, me, number, slot_ids, self.ttl, others)

    def meet(self, me: str, grant: Grant, where: Meeting) -> None:
        """Say where the ranks of a gang that crosses workers meet; see :func:`gangs.meet`."""
        with self._tx("meet") as tx:
            gangs.meet(tx, me, grant, where)

    def give_back(self, me: str, number: int, fence: int) -> bool:
        """Give back what a worker gave to another one's gang; see :func:`releasing.give_back`."""
        with self._tx("give_back") as tx:
            return releasing.give_back(tx, me, number, fence)

    def renew(self, me: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew what is still ours; see :mod:`renewals`."""
        if self._at_once:
            with self._tx.glancing() as (connection, now):
                return acquiring.renew_at_once(connection, me, held, self.ttl, now)
        with self._tx() as tx:
            return acquiring.renew(tx, me, held, self.ttl)

    def release(
        self,
        me: str,
        grant: Grant,
        outcome: str,
        *,
        ended: str,
        value: float | None = None,
        stop: float | None = None,
        failures: int = 0,
        stays: bool = False,
    ) -> bool:
        """Give the slots back; see :func:`releasing.release`."""
        with self._tx("release") as tx:
            return releasing.release(
                tx, me, grant, outcome, ended=ended, value=value, stop=stop, failures=failures,
                stays=stays,
            )  # fmt: skip

    def disown(self, me: str, number: int, fence: int) -> bool:
        """Give back a grant whose answer was lost; see :func:`releasing.disown`."""
        with self._tx() as tx:
            return releasing.disown(tx, me, number, fence)

    def reap(self) -> int:
        """Free what dead workers held; returns the number of slots.

        None while the database's clock may have been stepped: see :class:`EvenClock`.
        """
        with self._tx("reap") as tx:
            if not self._tx.may_compare(self.ttl + self.grace, self.grace / 2, self.ttl / 2):
                return 0
            return releasing.reap(tx)

    def bury(self, names: Collection[str]) -> int:
        """Free what workers hold that are known to have ended; see :func:`reaping.bury`."""
        with self._tx() as tx:
            tx = membership.one_at_a_time(tx)
            return releasing.bury(tx, names)

    # Fenced writes of a running segment.

    def add_reports(self, me: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports."""
        if self._at_once:
            with self._tx.glancing("add_reports") as (connection, now):
                single_statement.add_reports(connection, self.study_id, me, grant, new, now)
            return
        with self._tx("add_reports") as tx:
            writes.add_reports(tx, me, grant, new)

    def add_report(self, me: str, grant: Grant, step: int, value: float, trained: float) -> None:
        """Record one report."""
        self.add_reports(me, grant, [NewReport(step, value, trained)])

    def add_checkpoint(
        self, me: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints and reports; returns the files that may go."""
        with self._tx("add_checkpoint") as tx:
            if reports and self._at_once:
                single_statement.add_reports(
                    tx.connection, self.study_id, me, grant, reports, tx.now
                )
            elif reports:
                writes.add_reports(tx, me, grant, reports)
            return writes.add_checkpoint(tx, me, grant, new, KEPT_CHECKPOINTS)

    def set_progress(
        self,
        me: str,
        grant: Grant,
        *,
        startup: float | None,
        position_from: float | None,
        position_to: float | None,
        trained: float | None,
        horizon: int | None,
        batch: int | None = None,
    ) -> None:
        """Say how far and how fast a segment has come."""
        said = {
            "startup": startup,
            "position_from": position_from,
            "position_to": position_to,
            "trained": trained,
            "horizon": horizon,
            "batch": batch,
        }
        if self._at_once:
            with self._tx.glancing() as (connection, _):
                single_statement.set_progress(connection, self.study_id, me, grant, said)
            return
        with self._tx() as tx:
            writes.set_progress(tx, me, grant, said)

    def limit_slots(self, me: str, grant: Grant, slots: int, reason: str) -> None:
        """Say on how many slots the trial can train at most."""
        with self._tx() as tx:
            writes.limit_slots(tx, me, grant, slots, reason)

    # The plan.

    def elect(self, me: str) -> int | None:
        """Become or stay the study's planner; returns the term."""
        with self._tx() as tx:
            return plans.elect(tx, me, self.ttl)

    def open_trial(self, me: str, term: int, number: int, trial_id: int) -> None:
        """Put a new Optuna trial on the table."""
        with self._tx("open_trial") as tx:
            plans.open_trial(tx, me, term, number, trial_id)

    def write_plan(
        self, me: str, term: int, changes: Sequence[Assignment], seconds: float | None = None
    ) -> int:
        """Write what has changed in the plan; returns the epoch."""
        with self._tx("write_plan") as tx:
            return plans.write(tx, me, term, changes, seconds)

    def conclude(
        self,
        me: str,
        term: int,
        number: int,
        state: str,
        reason: str,
        value: float | None = None,
        *,
        untold: bool = False,
    ) -> bool:
        """End a trial that nobody trains."""
        with self._tx("conclude") as tx:
            return plans.conclude(tx, me, term, number, state, reason, value, untold=untold)

    def retire(self, me: str, term: int, reasons: Mapping[int, str]) -> int:
        """End trials that nobody trains as retired."""
        with self._tx("retire") as tx:
            return plans.retire(tx, me, term, reasons)

    def mark_told(self, *numbers: int) -> None:
        """Optuna knows the ends of these trials."""
        with self._tx("mark_told") as tx:
            plans.mark_told(tx, numbers)

    def set_gate(self, me: str, term: int, is_open: bool) -> None:
        """Open or close the gate."""
        with self._tx() as tx:
            plans.set_gate(tx, me, term, is_open)

    def resize_pool(
        self,
        me: str,
        term: int,
        slots: int,
        funds_end: float,
        types: Mapping[str, int] | None = None,
        seen: tuple[int | None, float | None] | None = None,
    ) -> bool:
        """Say how many slots the study pays for; see :func:`plans.resize_pool`."""
        with self._tx("resize_pool") as tx:
            return plans.resize_pool(tx, me, term, slots, funds_end, types, seen)

    def settle(self, me: str, term: int, seen: float | None = None) -> bool:
        """Close the study."""
        with self._tx("settle") as tx:
            return plans.settle(tx, me, term, seen)

    # What people ask for.

    def hold(self, number: int, held: bool) -> bool:
        """Keep a trial from slots, or let it go on; see :mod:`requests`."""
        with self._tx() as tx:
            return requests.hold(tx, number, held)

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a trial's gang, or leave it to the policy."""
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
        """Tell what a slot of a host type costs from now on; see :mod:`requests`."""
        with self._tx() as tx:
            return requests.set_price(tx, host_type, per_hour, slots, funds_end, seen, types)

    def drain(self, host: str, drained: bool) -> int:
        """Drain the pool's live workers on a host, or undo it."""
        with self._tx() as tx:
            return requests.drain(tx, host, drained)

    # Readings.

    def orders(self, me: str) -> Orders:
        """What the plan wants of one worker."""
        with self._tx.glancing() as (connection, now):
            return reads.orders(connection, self.pool, self.study_id, me, now)

    def hands(self, me: str) -> list[Hand]:
        """The parts that a worker gives, and those of the gangs that it was granted."""
        with self._tx.reading() as tx:
            return gangs.hands(tx, me)

    def trials(self) -> list[Desired]:
        """Every trial on the table."""
        with self._tx.reading() as tx:
            return reads.trials(tx)

    def untold(self) -> list[Desired]:
        """The trials that live, or whose end Optuna does not know yet."""
        with self._tx.reading() as tx:
            return reads.untold(tx)

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

    def homes(self, after: int = 0, number: int | None = None) -> list[Home]:
        """Where checkpoints were written, of one trial or of all."""
        with self._tx.reading() as tx:
            return reads.homes(tx, after, number)

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's earlier segments."""
        with self._tx.reading() as tx:
            return reads.trained_before(tx, number, fence)

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The audit from a row id on, of some kinds or of all."""
        with self._tx.reading() as tx:
            return reads.events(tx, after, kinds)

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The audit of all studies of the pool from a row id on, of some kinds or of all."""
        with self._tx.reading() as tx:
            return reads.pool_events(tx, after, kinds)


_promises: type[AllocationStore] = AllocationTable  # checked by mypy
