"""The interface of the allocation table for planner, agent and views, with its guarantees.

Every method is one transition: it happens as a whole or not at all, together with its event. A
call whose answer was lost may be repeated; each method documents the effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

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
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location

TTL = 30.0  #: seconds that a lease lasts without renewal
GRACE = 15.0  #: seconds after its end before it may be reaped
KEPT_CHECKPOINTS = 2  #: newest checkpoints of a trial that stay, beside the best


class AllocationStore(Protocol):
    """The table of one pool for one study.

    The suite in ``tests/allocation/suite`` checks every guarantee.
    """

    @property
    def pool(self) -> str:
        """The pool's name; studies that name the same pool share its slots."""

    @property
    def study_id(self) -> int:
        """The study's id in the table."""

    def follow_study(self) -> None:
        """Read the pool that a worker of the study joined last from now on.

        If a worker of the study is in this pool, nothing changes. For readers, which may start
        before the first worker.
        """

    @property
    def ttl(self) -> float:
        """Seconds that a lease lasts without renewal; the pool's value once it exists."""

    @property
    def grace(self) -> float:
        """Seconds after a lease's end before it may be reaped."""

    def now(self) -> float:
        """The store's time; leases and deadlines are compared with this clock only."""

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
        """Join the pool with devices by name and a number of CPU shares.

        A slot belongs to its host. Live workers of several studies of the pool may offer it, one
        per study; CPU shares are numbered accordingly. A slot that no other live worker offers is
        lent to this study, with its holder unchanged. A repeated call by the same worker, after a
        lost answer or a long silence, keeps the slots that no rival has taken, and keeps the
        worker drained.

        Args:
            worker_id: The worker.
            host: Its host.
            pid: Its process id.
            devices: Devices by name.
            cpus: CPU shares.
            weight: The study's weight in the pool from now on; None leaves it, 1 at first.
            machine_info: Its host and software.

        Raises:
            DeadlineError: Another live worker of this study or of another pool offers a device,
                the store serves one host only and another host uses it, or a rule of
                :mod:`optuna_deadline.allocation.admission` forbids it.
        """

    def leave(self, worker_id: str) -> None:
        """Leave the pool: its elected roles end at once, and the leases of its slots expire.

        It offers nothing any more, except held slots until they are reaped.

        With the last live worker, a study stops paying: its pool has no slots, and the end of its
        money is open until its next plan. The same holds if a worker joins, or is reaped by
        :meth:`reap`, and no other one is alive: then since the end of the last lease, as the event
        says.
        """

    def workers(self) -> list[Worker]:
        """The pool's live workers, whose lease has not expired."""

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that are live or hold slots, dead ones included."""

    def slots(self) -> list[Slot]:
        """All slots of the pool; a drained worker offers none."""

    def roster(self) -> Roster:
        """The study's live workers and their slots; the cost does not grow with other studies."""

    def free_slots(self, worker_id: str) -> list[int]:
        """Free slots that this worker offers and that are lent to its study.

        None if it is drained.
        """

    def elect_leader(self, worker_id: str) -> int | None:
        """Become or stay the pool's leader for ttl seconds; returns the term.

        Terms are as in :meth:`elect_planner`, but per pool: its leader divides the slots.
        """

    def tenants(self) -> list[Tenant]:
        """The pool's unsettled studies by id, with or without live workers."""

    def lend(
        self,
        worker_id: str,
        term: int,
        lent: Mapping[int, int],
        shares: Mapping[int, int],
        fair: Mapping[int, float],
    ) -> None:
        """Lend slots to studies, and update the accounts of unsettled studies.

        No holder changes: a slot held by another study is acquired once that has released it.

        Args:
            worker_id: The leader.
            term: Its term.
            lent: The study of each slot that changes.
            shares: Slots that each study has had since the last update; 0 for other studies.
            fair: The fair share of each study in that time; likewise.

        Raises:
            LeaseLost: Another term has begun.
        """

    def set_claim(self, worker_id: str, term: int, claim: StudyClaim) -> None:
        """Set the study's claim, as its planner.

        Raises:
            LeaseLost: Another term has begun.
        """

    def acquire(
        self,
        worker_id: str,
        number: int,
        slot_ids: Sequence[int],
        others: Mapping[str, Sequence[int]] | None = None,
    ) -> Grant | None:
        """Acquire a gang's slots, all or none, for a trial that the plan assigns to this worker.

        A gang may span workers if the plan names them. Then all its slots are acquired at once:
        each is held by the worker that offers it, and this worker owns the trial. The others'
        leases must be valid. They find their parts in :meth:`memberships` and release them
        themselves.

        The fences of the trial and of each slot rise by one. No slot and no trial ever has two
        holders, whatever the callers do. After a lost answer, a repeated call returns None, and
        :meth:`cancel_grant` releases the lost grant.

        Args:
            worker_id: The worker.
            number: The trial.
            slot_ids: Slots that this worker offers.
            others: By member, the slots that it offers.

        Returns:
            The grant. None if the plan has changed, a slot or the trial is held, a slot is not
            offered by this worker or is lent to another study, the study is settled or past its
            deadline, a user holds the trial, or the worker is drained.
        """

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Renew the worker's lease and those of its slots until now + ttl.

        A slot is renewed if this worker holds it under this fence, even after the lease's end.
        """

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
        """Release the slots after the last rank has exited, and record how the segment ended.

        Slots of members stay with them until they release them.

        If the process ``stays`` parked and the plan still has the trial paused, the plan names
        this worker: orders contain the trial until it is wanted elsewhere or ends.

        Returns:
            False if this worker no longer owns the trial under this fence; then nothing changes,
            so a repeated call returns False.
        """

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        """Release a grant whose answer was lost.

        The caller must run no rank under that fence. The trial is paused; its failures stay. Slots
        of members are freed too, unless the rendezvous was published.

        Returns:
            False if the worker does not own the trial under this fence; then nothing changes.
        """

    def publish_rendezvous(self, worker_id: str, grant: Grant, rendezvous: Rendezvous) -> None:
        """Publish where the ranks of a gang meet; repeating it changes nothing.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def memberships(self, worker_id: str) -> list[GangMembership]:
        """The parts that a worker gives to gangs, and those of the gangs that it was granted.

        A part exists until it is released or one of its slots is reaped. No rank may be forked for
        it before the rendezvous is known and its worker has renewed its slots.
        """

    def release_part(self, worker_id: str, number: int, fence: int) -> bool:
        """Free the slots of a part after its last rank has exited.

        Returns:
            False if this worker gives no part to that segment, and so for a repeated call.
        """

    def reap(self) -> int:
        """Free every slot of the pool whose lease ended more than the pool's grace ago.

        A trial whose owner holds none of its slots any more is paused, in every study of the pool.
        This is the only transition that compares clocks.

        Returns:
            The number of freed slots.
        """

    def reap_ended(self, names: Collection[str]) -> int:
        """Free at once, in any pool, the slots of workers that are known to have ended.

        The caller has verified that their processes and ranks are gone. They become lost, their
        trials are paused, and their elected roles end.

        Returns:
            The number of freed slots.
        """

    def add_reports(self, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports in their order in one statement; a step keeps its first value.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints, the newest last; committing a file again changes nothing.

        The newest ones stay, and those with the best value in each direction. Several at once have
        the same effect as one after the other; those that would not stay get no row. Their reports
        are recorded in the same transaction.

        Returns:
            The files that no row names any more.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def drop_checkpoints(self, *paths: Location) -> list[Location]:
        """Delete checkpoints of ended trials; those of others stay.

        Returns:
            The files that no row names any more.
        """

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
        """Record the progress and speed of a segment.

        None keeps the trial's known values: its horizon, the batch that its gang size must divide,
        and whether its objective can be paused.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def limit_slots(self, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
        """Record the most slots on which the trial can train, and why, in one sentence.

        From now on it is granted no more; slots above the limit are released through the plan. A
        limit only falls: the same or a larger one changes nothing.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner for ttl seconds; returns the term.

        Terms only rise. The same planner after a gap has a new term, since another may have
        planned in between. None while another one is elected, and for a worker that has left.
        """

    def open_trial(self, worker_id: str, term: int, number: int, trial_id: int) -> None:
        """Add an Optuna trial to the table; one that is there already stays as it is.

        Raises:
            LeaseLost: Another term has begun.
        """

    def write_plan(
        self,
        worker_id: str,
        term: int,
        changes: Sequence[Assignment],
        seconds: float | None = None,
    ) -> int:
        """Write the changes of the plan; ended trials are left alone.

        Args:
            worker_id: The planner.
            term: Its term.
            changes: Lines of trials.
            seconds: The time of reading and planning; the plan's first event keeps it.

        Returns:
            The plan's epoch, higher than any before.

        Raises:
            LeaseLost: Another term has begun.
        """

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
        """End a trial without a worker; False if a worker trains it, or it has ended.

        Args:
            worker_id: The planner.
            term: Its term.
            number: The trial.
            state: Its end: retired, failed or complete.
            reason: The reason, in words.
            value: The value for Optuna of a complete trial.
            unreported: Whether to replace the end of a retired or failed trial if Optuna does not
                know it yet.

        Raises:
            LeaseLost: Another term has begun.
        """

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        """Retire those of the trials that have no worker, in one transaction.

        Args:
            worker_id: The planner.
            term: Its term.
            reasons: By trial number, why.

        Returns:
            The number of trials that this call ended.

        Raises:
            LeaseLost: Another term has begun.
        """

    def mark_ends_reported(self, *numbers: int) -> None:
        """Record that Optuna knows the ends of these trials."""

    def set_gate(self, worker_id: str, term: int, is_open: bool) -> None:
        """Open or close the gate for every process of the study.

        Raises:
            LeaseLost: Another term has begun.
        """

    def resize_pool(
        self,
        worker_id: str,
        term: int,
        slots: int,
        funds_end: float,
        types: Mapping[str, int] | None = None,
        seen: tuple[int | None, float | None] | None = None,
    ) -> bool:
        """Set the number of slots that the study pays for, and until when its money lasts with it.

        A change of either is an event, with the slots by host type if given. Nothing is granted
        from ``funds_end`` on, nor beyond so many slots. If the stored slots and end differ from
        ``seen``, the price has changed in between, and nothing is written.

        Returns:
            False if nothing was written for that reason.

        Raises:
            LeaseLost: Another term has begun.
        """

    def settle(self, worker_id: str, term: int, seen: float | None = None) -> bool:
        """Close the study: nothing is granted from now on.

        Args:
            worker_id: The planner.
            term: Its term.
            seen: The deadline at which it closes the study; None for any.

        Returns:
            False if the stored deadline differs from ``seen``; then the study continues.

        Raises:
            LeaseLost: Another term has begun.
        """

    def set_price(
        self,
        host_type: str,
        per_hour: float,
        slots: int,
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the price of a slot of a host type from now on, at a user's request.

        The end of the study's money moves to ``funds_end`` in the same transaction, so that the
        budget holds without a planner. It always moves a little, so that a plan with the former
        price is refused.

        Args:
            host_type: The type.
            per_hour: The price of one slot for an hour.
            slots: Slots that are bought together, for a new type.
            funds_end: Until when the money lasts at the new price.
            seen: The pool's size and end that were used to compute this.
            types: The pool's slots by host type, if the prices depend on it.

        Returns:
            False if the stored ones differ: read again.
        """

    def hold(self, number: int, held: bool) -> bool:
        """Hold a live trial without slots at a user's request, or release the hold.

        It is granted nothing; its slots are released through the plan. A repeated call keeps the
        time of the first one.

        Returns:
            False if the trial has ended or is not in the table.
        """

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a live trial's gang at a user's request; None removes the pin.

        Returns:
            False if the trial has ended or is not in the table.
        """

    def drain(self, host: str, drained: bool) -> int:
        """Drain the live workers on a host, or undo it.

        This concerns the workers of every study of the pool. They offer no slots, are granted
        none, and release theirs through the plan. Workers that register later are not drained.

        Returns:
            The number of live workers of the pool on the host, drained before or not.
        """

    def orders(self, worker_id: str) -> Orders:
        """The orders of one worker: the live trials that it owns or is to own.

        Raises:
            StudyGone: The study was deleted.
        """

    def trials(self) -> list[PlannedTrial]:
        """Every trial of the study, by number."""

    def unreported_trials(self) -> list[PlannedTrial]:
        """Trials that live, or whose end Optuna does not know yet, by number."""

    def segments(self, since: float = 0.0) -> list[SegmentRow]:
        """Segments that run, or ended at or after ``since``."""

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        """Reports of one trial or of all with a row id above ``after``, by id."""

    def checkpoints(self, number: int | None = None) -> list[Checkpoint]:
        """Committed checkpoints of one trial or of all, newest first."""

    def checkpoint_origins(
        self, after: int = 0, number: int | None = None
    ) -> list[CheckpointOrigin]:
        """Where checkpoints with a row id above ``after`` were written, by id."""

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's segments before ``fence``."""

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The study's events in all pools from a row id on, at most 10,000."""

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The events of all studies of the pool from a row id on, at most 10,000."""
