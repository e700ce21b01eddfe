"""What planner, agent and views ask of the allocation table, and what it promises them.

Every method is one transition: it happens whole or not at all, and its audit line with it. A call
whose answer was lost may be made again; what each method does then is part of its promise.
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

TTL = 30.0  #: seconds that a lease lives without renewal
GRACE = 15.0  #: seconds after its end before it may be reaped
KEPT_CHECKPOINTS = 2  #: newest checkpoints of a trial that stay, beside the best


class AllocationStore(Protocol):
    """One pool's table for one study.

    :class:`~optuna_deadline.testing.allocation.AllocationStoreTestCase` checks every promise.
    """

    @property
    def pool(self) -> str:
        """The pool's name; studies that name the same pool share its slots."""

    @property
    def study_id(self) -> int:
        """The study's id in the table."""

    def follow_study(self) -> None:
        """Read, from now on, the pool that a worker of the study joined last.

        Where a worker of the study is in this pool, that stays. For readers, which may come before
        the first worker.
        """

    @property
    def ttl(self) -> float:
        """Seconds that a lease lives without renewal; the pool's own once registered."""

    @property
    def grace(self) -> float:
        """Seconds after a lease's end before it may be reaped."""

    def now(self) -> float:
        """The store's time: the only one that leases and deadlines are compared with."""

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

        A slot belongs to its host. Live workers of several studies of the pool may offer it, but
        one of each study only; CPU shares are numbered accordingly. A slot that no other live
        worker offers is lent to this study, its holder unchanged. Called again by the same worker,
        after a lost answer or a long silence, it keeps the slots that no rival took meanwhile, and
        is drained still if it was.

        Args:
            worker_id: The worker.
            host: Its host.
            pid: Its process.
            devices: Devices by name.
            cpus: CPU shares.
            weight: The study's weight in the pool from now on; None leaves it, 1 at first.
            machine_info: Its machine, and what it runs.

        Raises:
            DeadlineError: A device is offered by another live worker of this study or of another
                pool, the store serves one host only and another one uses it, or a rule of
                :mod:`optuna_deadline.allocation.rules` forbids it.
        """

    def leave(self, worker_id: str) -> None:
        """Leave the pool: what it led and planned passes at once, slots held run out by lease.

        It offers nothing any more but those, until they are reaped.

        With the last live worker a study stops paying: its pool has no slots, and the end of its
        money is open until its next plan. The same holds where a worker comes, or is buried by
        :meth:`reap`, and no other one lives: then since the end of the last lease, as the event
        says.
        """

    def workers(self) -> list[Worker]:
        """The pool's workers whose lease has not run out."""

    def on_host(self, host: str) -> list[Worker]:
        """Workers of any pool on a host that count as live or hold slots, dead ones among them."""

    def slots(self) -> list[Slot]:
        """All slots of the pool; a drained worker offers none."""

    def roster(self) -> Roster:
        """The study's live workers and their slots, however many others the pool has."""

    def free_slots(self, worker_id: str) -> list[int]:
        """Slots that this worker offers, that are lent to its study, and that are free.

        None where it is drained.
        """

    def elect_leader(self, worker_id: str) -> int | None:
        """Become or stay the pool's leader for ttl seconds; returns the term.

        Terms are as in :meth:`elect_planner`, but of the pool: its leader divides the slots.
        """

    def tenants(self) -> list[Tenant]:
        """The pool's studies that are not settled, by their ids, with or without live workers."""

    def lend(
        self,
        worker_id: str,
        term: int,
        lent: Mapping[int, int],
        shares: Mapping[int, int],
        fair: Mapping[int, float],
    ) -> None:
        """Lend slots to studies, and bring the accounts of those that are not settled up to now.

        No holder is changed: a slot held for another study is acquired once that has released it.

        Args:
            worker_id: The leader.
            term: Its term.
            lent: The study for each slot that changes.
            shares: Slots that each study has had since the last accounting; 0 for a study that
                is not named.
            fair: The fair share of each study in that time, likewise.

        Raises:
            LeaseLost: Another term has begun.
        """

    def set_claim(self, worker_id: str, term: int, claim: StudyClaim) -> None:
        """Say what the study needs, as its planner.

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
        """Take a gang's slots, all or none, for a trial that the plan wants on this worker.

        A gang may cross workers, where the plan names them: all its slots are taken at once, each
        is held by the worker that offers it, and this one owns the trial. The others' leases must
        run. They find their parts by :meth:`memberships`, and give them back themselves.

        Fences of the trial and of each slot rise by one. No slot and no trial ever has two
        holders, for every caller and at every call. After a lost answer, a second call returns
        None, and :meth:`cancel_grant` gives back what the lost grant took.

        Args:
            worker_id: The worker.
            number: The trial's.
            slot_ids: Slots that this worker offers.
            others: By the further workers, slots that these offer.

        Returns:
            The grant, or None if the plan wants something else, a slot is held or the
            trial, a slot is not offered by this worker or lent to another study, the study is
            settled or past its deadline, the trial is held, or the worker is drained.
        """

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        """Move the worker's lease and those of its slots to now + ttl.

        A slot is renewed if this worker holds it under this fence, be the lease over or not.
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
        """Give the slots back after the last rank has exited, and say how the segment ended.

        Further workers' slots stay with them until they give them back.

        Where the rank ``stays``, parked, and the plan still has the trial paused, the plan names
        this worker from now on: orders show it the trial, until it is wanted elsewhere or ends.

        Returns:
            False where this worker no longer owns the trial under this fence: then nothing is
            changed, and so a second call returns False.
        """

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        """Give back a segment that this worker was granted and never heard of.

        The caller must run no rank under that fence. The trial is paused; its failures stay. What
        further workers were to give is freed too, unless it was said where the ranks meet.

        Returns:
            False where the worker does not own the trial under this fence; nothing is changed.
        """

    def publish_rendezvous(self, worker_id: str, grant: Grant, rendezvous: Rendezvous) -> None:
        """Say where the ranks of a gang that crosses workers meet; said again, nothing changes.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def memberships(self, worker_id: str) -> list[GangMembership]:
        """The parts that a worker gives to gangs, and those of the gangs that it was granted.

        A part is there until it is given back or one of its slots is reaped. No rank may be forked
        for it before it is known where they meet, nor before its worker has renewed its slots.
        """

    def release_part(self, worker_id: str, number: int, fence: int) -> bool:
        """Free the slots of a part after its last rank has exited.

        Returns:
            False where this worker gives no part to that segment, and so in a second call.
        """

    def reap(self) -> int:
        """Free every slot of the pool whose lease ended more than the pool's grace ago.

        A trial whose owner holds none of its slots any more is paused, in every study of the
        pool. This is the only transition that compares clocks.

        Returns:
            The number of slots freed.
        """

    def reap_ended(self, names: Collection[str]) -> int:
        """Free at once, in any pool, what workers hold that are known to have ended.

        The caller has seen that neither their processes nor their ranks are there any more. They
        are lost, their trials are paused, and what they led and planned is up for election.

        Returns:
            The number of slots freed.
        """

    def add_reports(self, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports in their order, at the cost of one; a step keeps its first value.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def add_report(
        self, worker_id: str, grant: Grant, step: int, value: float, trained: float
    ) -> None:
        """Record one report; see :meth:`add_reports`."""

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints, the newest last; the same file committed again changes nothing.

        The newest ones stay, and that with the best value in either direction. Several at once
        leave what one after the other would; those among them that do not stay get no row.
        Reports that come with them are recorded in the same transaction.

        Returns:
            The files that no row names any more.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def drop_checkpoints(self, *paths: Location) -> list[Location]:
        """Forget checkpoints of trials that have ended; those of others stay.

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
        """Say how far and how fast a segment has come.

        None leaves what is known of the trial: its horizon, the batch that the size of its gang is
        to divide, and whether its objective can be paused.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def limit_slots(self, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
        """Say on how many slots the trial can train at most, and why, in one sentence.

        From now on it is granted no more; what it holds above that it gives back as the plan has
        it. A limit is lowered, and never raised: the same or a larger one changes nothing.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner for ttl seconds; returns the term.

        Terms only rise. The same planner after a gap has a new term, since others may have ruled
        meanwhile. None while another one rules, and for a worker that has left.
        """

    def open_trial(self, worker_id: str, term: int, number: int, trial_id: int) -> None:
        """Put an Optuna trial on the table; one that is there already stays as it is.

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
        """Write what has changed in the plan; trials that have ended are left alone.

        Args:
            worker_id: The planner.
            term: Its term.
            changes: Of trials.
            seconds: How long it took to read and to plan; the first event of the plan keeps it.

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
            number: The trial's.
            state: Its end: retired, failed or complete.
            reason: Why, in words.
            value: What is to be told to Optuna, for a complete trial.
            unreported: Whether a trial that was retired or has failed has this end instead, where
                Optuna does not know the other.

        Raises:
            LeaseLost: Another term has begun.
        """

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        """End those of these trials that have no worker as retired, in one transaction.

        Args:
            worker_id: The planner.
            term: Its term.
            reasons: By the trials' numbers, why.

        Returns:
            How many have ended by that; others are trained, or had ended before.

        Raises:
            LeaseLost: Another term has begun.
        """

    def mark_ends_reported(self, *numbers: int) -> None:
        """Optuna knows the ends of these trials."""

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
        """Say how many slots the study pays for from now on, and how long its money lasts so.

        A change of either is audited, and so are the slots by the type of their host where these
        are given; nothing is granted from ``funds_end`` on, nor beyond so many slots. Where other
        slots and another end than those ``seen`` stand by now, a price was told meanwhile, and
        nothing is written.

        Returns:
            False where nothing was written for that reason.

        Raises:
            LeaseLost: Another term has begun.
        """

    def settle(self, worker_id: str, term: int, seen: float | None = None) -> bool:
        """Close the study: nothing is granted from now on.

        Args:
            worker_id: The planner.
            term: Its term.
            seen: The deadline that it closes the study at; None for any.

        Returns:
            False where another deadline than the one ``seen`` stands by now: the study goes on.

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
            per_hour: Of one slot for an hour.
            slots: Bought at once, where the type is new.
            funds_end: Until when the money lasts by the new price.
            seen: The pool's size and its end that this was reckoned with.
            types: The pool's slots by host type, where the prices go by it.

        Returns:
            False where others stand by now: read again.
        """

    def hold(self, number: int, held: bool) -> bool:
        """Keep a living trial from slots, at a person's request, or let it go on.

        From now on it is granted nothing; what it holds it gives back as the plan has it. Asked
        again, it stays held since the first time.

        Returns:
            False where the trial has ended or is not on the table.
        """

    def pin(self, number: int, slots: int | None) -> bool:
        """Say what size a living trial's gang is to have, at a person's request; None: any.

        Returns:
            False where the trial has ended or is not on the table.
        """

    def drain(self, host: str, drained: bool) -> int:
        """Let the live workers on a host release their slots and leave, or undo it.

        This concerns workers of every study of the pool. They offer no slots and are granted
        none from now on, and release those that they hold by the plan. A worker that registers
        later is not drained.

        Returns:
            How many live workers of the pool the host has, drained before or not.
        """

    def orders(self, worker_id: str) -> Orders:
        """What the plan wants of one worker: the living trials that it owns or shall own.

        Raises:
            StudyGone: The study was deleted.
        """

    def trials(self) -> list[PlannedTrial]:
        """Every trial of the study, by number."""

    def unreported_trials(self) -> list[PlannedTrial]:
        """The trials that live, or whose end Optuna does not know yet, by number."""

    def segments(self, since: float = 0.0) -> list[SegmentRow]:
        """Segments that run, or ended at or after ``since``."""

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        """Reports of one trial or of all with a row id above ``after``, by their ids."""

    def checkpoints(self, number: int | None = None) -> list[Checkpoint]:
        """Committed checkpoints of one trial or of all, newest first."""

    def checkpoint_origins(
        self, after: int = 0, number: int | None = None
    ) -> list[CheckpointOrigin]:
        """Where checkpoints with a row id above ``after`` were written, by their ids."""

    def trained_before(self, number: int, fence: int) -> float:
        """Seconds of training in the trial's segments before ``fence``."""

    def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The study's audit, in whatever pool, from a row id on, 10,000 lines at most."""

    def pool_events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
        """The audit of all studies of the pool from a row id on, 10,000 lines at most."""
