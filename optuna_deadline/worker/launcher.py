"""Starts a segment for a line of the plan: its checkpoint, its slots, its ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from optuna_deadline.allocation.records import CheckpointOrigin, PlannedTrial
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import CheckpointFetcher, CheckpointSweeper
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.fork import RankSettings, fork_ranks
from optuna_deadline.worker.gang_leader import GangLeader
from optuna_deadline.worker.inbox import TrialInbox
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.rules import is_to_start, own_slots
from optuna_deadline.worker.sampling import SamplerTooSlow, TrialSampler
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.warm_processes import WarmProcesses


class SegmentLauncher:
    """Starts the segments that the plan assigns to this worker.

    Args:
        sampler: Makes the Optuna trials.
        table: The allocation table.
        worker_id: The worker.
        event_loop: Has the fork server.
        settings: Settings of all ranks of the worker.
        fetcher: Finds the checkpoint to resume from.
        sweeper: Deletes checkpoints that no row names.
        lease_clock: Until when the leases are trusted.
        hang_timeout: Seconds without a message after which ranks count as hung.
        reaches: Whether this worker can read files of an origin.
        warm: The warm processes.
        gang_leader: Connects ranks on several hosts.
    """

    def __init__(
        self,
        sampler: TrialSampler,
        table: AllocationTable,
        worker_id: str,
        event_loop: EventLoop,
        settings: Callable[[], RankSettings],
        fetcher: CheckpointFetcher,
        sweeper: CheckpointSweeper,
        lease_clock: LeaseClock,
        hang_timeout: float,
        reaches: Callable[[CheckpointOrigin], bool],
        warm: WarmProcesses,
        gang_leader: GangLeader,
    ) -> None:
        self._sampler = sampler
        self._table = table
        self._worker_id = worker_id
        self._event_loop = event_loop
        self._settings = settings
        self._fetcher = fetcher
        self._sweeper = sweeper
        self._lease_clock = lease_clock
        self._hang_timeout = hang_timeout
        self._reaches = reaches
        self._warm = warm
        self._gang_leader = gang_leader
        self._saving = Outage()

    def start(
        self, row: PlannedTrial, gangs: dict[int, Gang], occupied: Collection[int] = ()
    ) -> None:
        """Start a trial's segment if that is possible now, and add it to the gangs.

        Slots in ``occupied`` have ranks of other workers' gangs and are not free.
        """
        if not is_to_start(row, self._worker_id, gangs):
            return
        free = [slot for slot in self._free_slots(gangs) if slot not in occupied]
        own = own_slots(row)
        if len(free) < own:
            return
        # All reads come first: a failure after the grant would hold idle slots.
        warm = self._warm.slot_for(row, free)
        saved = self._table.checkpoints(row.number) if warm is None else []
        if warm is None and not self._can_resume(row, saved):
            return
        others = self._gang_leader.free_member_slots(row)
        if others is None:
            return
        try:
            trial = self._sampler.open_trial(row.trial_id)
        except SamplerTooSlow:
            return
        trained = self._table.trained_before(row.number, row.fence + 1)
        sent = time.monotonic()
        slots = self._warm.least_missed_first(free)[:own] if warm is None else [warm]
        grant = self._table.acquire(self._worker_id, row.number, slots, others)
        if grant is None or time.monotonic() >= self._lease_clock.trusted_until:
            return  # this worker was frozen in between: another trial may have the slots
        if grant.fence == row.fence + 1:
            self._sweeper.sweep_unnamed(row.number, row.fence)
        gang = Gang(
            grant, row.failures, trained, granted_at=sent, hang_timeout=self._hang_timeout,
            known_limit=row.slot_limit, call_soon=self._event_loop.call_soon,
        )  # fmt: skip
        gang.inbox = TrialInbox(
            self._table, self._worker_id, gang, trial, self._sweeper.sweep, self._sampler,
            self._saving,
        )  # fmt: skip
        gangs[row.number] = gang
        if warm is not None:
            self._warm.wake(row.number, gang)
            return
        resume = gang.resume = self._fetcher.result(row.number)
        local_ranks = self._gang_leader.open_rendezvous(gang, resume, saved)
        settings, until = self._settings(), self._lease_clock.trusted_until
        gang.call_soon(
            lambda: fork_ranks(
                self._event_loop.fork_server, gang, local_ranks, resume, settings, until
            )
        )

    def _can_resume(self, row: PlannedTrial, saved: list[Checkpoint]) -> bool:
        """Whether the trial's checkpoint is here, or its warm process can go on."""
        self._warm.end(row.number)
        if saved and not self._reaches(self._table.checkpoint_origins(number=row.number)[-1]):
            return False  # it was saved elsewhere since the plan; the next plan knows
        self._sweeper.scan(row.number, row.fence, saved)
        return self._fetcher.request(row.number, row.fence, saved)

    def _free_slots(self, gangs: Mapping[int, Gang]) -> list[int]:
        busy = {slot for gang in gangs.values() for slot, _ in gang.grant.slots}
        return [slot for slot in self._table.free_slots(self._worker_id) if slot not in busy]
