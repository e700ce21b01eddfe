"""Starts a segment for a line of the plan: its checkpoint, its slots, its ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from optuna_deadline.allocation.records import CheckpointOrigin, PlannedTrial, Rendezvous
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import CheckpointFetcher, CheckpointSweeper
from optuna_deadline.rank.rendezvous import RankServer
from optuna_deadline.worker.devices import free_port
from optuna_deadline.worker.fork import LocalRanks, RankForker
from optuna_deadline.worker.inbox import TrialInbox
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.rules import is_to_start, own_slots
from optuna_deadline.worker.sampling import SamplerTooSlow, TrialSampler
from optuna_deadline.worker.segment import Gang, SegmentKey, busy_slots
from optuna_deadline.worker.warm_processes import WarmProcesses

_logger = logging.getLogger("optuna_deadline")


class SegmentLauncher:
    """Starts the segments that the plan assigns to this worker.

    Args:
        sampler: Makes the Optuna trials.
        table: The allocation table.
        worker_id: The worker.
        forker: Forks the ranks.
        fetcher: Finds the checkpoint to resume from.
        sweeper: Deletes checkpoints that no row names.
        hang_timeout: Seconds without a message after which ranks count as hung.
        reaches: Whether this worker can read files of an origin.
        warm: The warm processes.
        rank_server: Accepts ranks of other hosts; None if the worker is in no gang with them.
    """

    def __init__(
        self,
        sampler: TrialSampler,
        table: AllocationTable,
        worker_id: str,
        forker: RankForker,
        fetcher: CheckpointFetcher,
        sweeper: CheckpointSweeper,
        hang_timeout: float,
        reaches: Callable[[CheckpointOrigin], bool],
        warm: WarmProcesses,
        rank_server: RankServer | None,
    ) -> None:
        self._sampler = sampler
        self._table = table
        self._worker_id = worker_id
        self._forker = forker
        self._fetcher = fetcher
        self._sweeper = sweeper
        self._hang_timeout = hang_timeout
        self._reaches = reaches
        self._warm = warm
        self._rank_server = rank_server
        self._saving = Outage()

    def start(self, row: PlannedTrial, gangs: dict[SegmentKey, Gang]) -> None:
        """Start a trial's segment if that is possible now, and add it to the gangs."""
        running = (gang.number for gang in gangs.values() if gang.leads)
        if not is_to_start(row, self._worker_id, running):
            return
        free = self._free_slots(gangs.values())
        own = own_slots(row)
        if len(free) < own:
            return
        # All reads come first: a failure after the grant would hold idle slots.
        warm = self._warm.slot_for(row, free)
        saved = self._table.checkpoints_to_start(row) if warm is None else []
        if warm is None and not self._can_resume(row, saved):
            return
        others = self._free_member_slots(row)
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
        if grant is None or not self._forker.may_fork:
            return  # this worker was frozen in between: another trial may have the slots
        if grant.fence == row.fence + 1:
            self._sweeper.sweep_unnamed(row.number, row.fence)
        gang = Gang(
            grant, row.failures, trained, granted_at=sent, hang_timeout=self._hang_timeout,
            known_limit=row.slot_limit, call_soon=self._forker.event_loop.call_soon,
        )  # fmt: skip
        gang.inbox = TrialInbox(
            self._table, self._worker_id, gang, trial, self._sweeper.sweep, self._sampler,
            self._saving,
        )  # fmt: skip
        gangs[gang.key] = gang
        if warm is not None:
            self._warm.wake(row.number, gang)
            return
        resume = gang.resume = self._fetcher.result(row.number)
        inherits = all(one.number != row.number for one in saved)
        if resume is None and inherits and row.parent is not None:
            _logger.warning(
                "Trial %d starts anew: trial %d has no checkpoint that it could start from.",
                row.number,
                row.parent,
            )
        self._forker.fork(gang, self._open_rendezvous(gang, resume, saved), resume)

    def _can_resume(self, row: PlannedTrial, saved: list[Checkpoint]) -> bool:
        """Whether the trial's checkpoint is here, or its warm process can go on."""
        self._warm.end(row.number)
        if saved:
            origins = self._table.checkpoint_origins(number=saved[0].number)
            if not origins or not self._reaches(origins[-1]):
                return False  # it was saved elsewhere, or dropped; the next plan or pass knows
        own = [one for one in saved if one.number == row.number]
        self._sweeper.scan(row.number, row.fence, own)
        return self._fetcher.request(row.number, row.fence, saved)

    def _free_slots(self, gangs: Iterable[Gang]) -> list[int]:
        busy = busy_slots(gangs)
        return [slot for slot in self._table.free_slots(self._worker_id) if slot not in busy]

    def _free_member_slots(self, row: PlannedTrial) -> dict[str, list[int]] | None:
        """Free slots of the other workers in a plan's line; None if too few are free."""
        found = {}
        for name, count in row.others:
            free = self._table.free_slots(name)
            if len(free) < count or self._rank_server is None:
                return None
            found[name] = free[:count]
        return found

    def _open_rendezvous(
        self, gang: Gang, resume: Path | None, saved: Collection[Checkpoint]
    ) -> LocalRanks:
        """Open the rendezvous of a granted gang; returns the ranks to fork here.

        It is written to the table once the database answers, again if necessary.
        """
        grant = gang.grant
        if self._rank_server is None or not grant.others:
            return LocalRanks(0, grant.size, 0, ("127.0.0.1", free_port()))
        door = self._rank_server.endpoint
        where = Rendezvous(
            door.address, free_port(door.address), door.port, door.key,
            None if resume is None else _location_of(resume, saved),
        )  # fmt: skip
        gang.pending_writes.add(
            lambda: self._table.publish_rendezvous(self._worker_id, grant, where)
        )
        return LocalRanks(0, grant.size, 0, (where.address, where.port), door.address)


def _location_of(resume: Path, saved: Collection[Checkpoint]) -> str:
    """The local path of the fetched checkpoint, for the ranks on other hosts."""
    return next(str(one.path) for one in saved if Path(str(one.path)).name == resume.name)
