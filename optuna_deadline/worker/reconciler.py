"""The table thread: keeps the leases, writes what ranks sent, and follows the plan."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from optuna.study import Study

from optuna_deadline.allocation.records import ALIVE, MachineInfo, Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.restore import (
    CheckpointFetcher,
    CheckpointFolders,
    CheckpointSweeper,
)
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.directives import Directive
from optuna_deadline.forecasting.throughput import closing_seconds, distant_database_seconds
from optuna_deadline.planning.leftovers import delete_needless
from optuna_deadline.worker.cross_host import CrossHostGangs
from optuna_deadline.worker.database_errors import DATABASE_ERRORS
from optuna_deadline.worker.devices import Offer, host_name
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.fork import RankForker
from optuna_deadline.worker.launcher import SegmentLauncher
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.outbox import Outbox
from optuna_deadline.worker.registration import PoolMembership
from optuna_deadline.worker.rules import FIRST_STOP, directive_for
from optuna_deadline.worker.sampling import TrialSampler
from optuna_deadline.worker.segment import HANG_TIMEOUT, Gang, SegmentKey
from optuna_deadline.worker.slot_health import SlotHealth
from optuna_deadline.worker.time_limit import WorkerTimeLimit
from optuna_deadline.worker.warm_processes import WarmProcesses

_logger = logging.getLogger("optuna_deadline")

#: The most seconds between two passes.
PASS_SECONDS = 0.2
#: Seconds until the plan is read again after a database error.
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a worker offers, where it saves, and its habits.

    Attributes:
        offer: The slots that it offers.
        folder: The checkpoint store of the study: a folder or a URL.
        machine_info: The description of its host.
        poll: Seconds between two readings of the plan.
        weight: The study's weight in the pool; None leaves it unchanged.
        hang_timeout: Seconds without a message after which ranks count as hung.
        keep_warm: The most paused trials in this host's memory.
    """

    offer: Offer
    folder: Location
    machine_info: MachineInfo = field(default_factory=MachineInfo)
    poll: float = 1.0
    weight: float | None = None
    hang_timeout: float = HANG_TIMEOUT
    keep_warm: int = 0


@dataclass(frozen=True)
class TableView:
    """What the table has said last, as far as it matters to the event loop.

    Attributes:
        deadline: The study's deadline on the monotonic clock.
        settled: Whether the study has ended.
        drained: Whether this worker is to leave once its trials are elsewhere.
        slowest_stop: Seconds that the slowest gang took to leave.
        closing_seconds: Seconds before the deadline at which ranks must stop.
    """

    deadline: float = math.inf
    settled: bool = False
    drained: bool = False
    slowest_stop: float = FIRST_STOP
    closing_seconds: float = closing_seconds(FIRST_STOP)

    @property
    def closing(self) -> bool:
        """Whether the study's trials must end now."""
        return time.monotonic() >= self.deadline - self.closing_seconds


class Reconciler:
    """Makes a worker's segments what the table says, and the table what its segments do.

    Args:
        study: The Optuna study; only this process and the planner use it.
        table: The allocation table.
        settings: What the worker offers.
        event_loop: Has the ranks.
        lease_clock: Until when the leases are trusted.
        time_limit: When the worker leaves by itself.
        direct: Sends a directive of the plan to a gang, unless another one is in force; called in
            the event loop's thread.

    Attributes:
        view: What the table has said last; replaced as a whole.
        gangs: The segments with ranks of this worker.
        warm: Its warm processes.
        cross_host: Its parts of other workers' gangs, and their ranks in its own.
        sampler: Makes the Optuna trials.
        leaving: Why the worker leaves, as its owner says; None until it does.
        replan: Called after events that the planner should read.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationTable,
        settings: WorkerSettings,
        event_loop: EventLoop,
        lease_clock: LeaseClock,
        time_limit: WorkerTimeLimit,
        direct: Callable[[Gang, Directive], None],
    ) -> None:
        offer, worker_id = settings.offer, event_loop.worker_id
        self._table = table
        self._worker_id = worker_id
        self._settings = settings
        self._study_name = study.study_name
        self._event_loop = event_loop
        self._lease_clock = lease_clock
        self._time_limit = time_limit
        self._direct = direct
        self._began_at = time.monotonic()
        self._next_poll = 0.0
        self._poll_trips: tuple[float, ...] = ()  # seconds of the newest readings of the plan
        self._plan: tuple[float, Mapping[int, int]] = (-math.inf, {})
        self._plan_outdated = False
        self.view = TableView()
        self.gangs: dict[SegmentKey, Gang] = {}
        self.leaving: str | None = None
        self.replan: Callable[[], None] = lambda: None

        folders = self._folders = CheckpointFolders(settings.folder)
        self._fetcher = CheckpointFetcher(folders, event_loop.wake)
        self._member_fetcher = CheckpointFetcher(folders, event_loop.wake)  # for others' gangs
        self._sweeper = CheckpointSweeper(folders)
        self._membership = PoolMembership(
            table, worker_id, offer, settings.machine_info, lease_clock, settings.weight
        )
        forker = RankForker(event_loop, lease_clock, table, folders, study.direction.name.lower())
        self.cross_host = CrossHostGangs(
            table,
            worker_id,
            forker,
            self._member_fetcher,
            settings.machine_info.address,
            self.gangs,
        )
        self.sampler = TrialSampler(study, self._keep_leases, self._is_open)
        self.warm = WarmProcesses(settings.keep_warm, any_slot=not offer.gpus)
        self._launcher = SegmentLauncher(
            self.sampler,
            table,
            worker_id,
            forker,
            self._fetcher,
            self._sweeper,
            settings.hang_timeout,
            self._membership.reaches,
            self.warm,
            self.cross_host.rank_server,
        )
        self._slot_health = SlotHealth(table, worker_id, offer.size)
        self._outbox = Outbox(table, worker_id, self.warm, self._note_change, self._slot_health)

    def register(self) -> None:
        """Join the pool; the leases start."""
        self._membership.register()
        self._membership.warn_of_unshared_checkpoints()

    @property
    def busy(self) -> bool:
        """Whether this worker holds any slot."""
        return bool(self.gangs or self.cross_host.accepted_slots)

    def read_soon(self) -> None:
        """Let the next pass read the plan."""
        self._next_poll = 0.0

    def plan_made(self, since: float, looks: Mapping[int, int]) -> bool:
        """Note a plan of this process; returns whether a trial waits for that news.

        Args:
            since: When it began to read the table.
            looks: By trial the step of the next report that decides about it.
        """
        self._plan = since, looks
        return any(gang.unplanned is not None for gang in list(self.gangs.values()))

    def run_pass(self) -> float:
        """One pass: renew the leases, write what ranks sent, follow the plan.

        The leases come first, before each gang's turn and each start: a healthy database may be so
        slow that messages of ranks pile up.

        Returns:
            Seconds until the next pass.
        """
        try:
            self._keep_leases()
            for gang in list(self.gangs.values()):
                if self._outbox.flush(gang, leaving=self.leaving is not None):
                    self._forget(gang)
                self._keep_leases()
            self._slot_health.reconcile()  # before anything starts on a slot that fails
            if time.monotonic() >= self._next_poll:
                self._follow(self._read_plan())
            self._lease_clock.record_database_answer()
            if self._plan_outdated:  # now, so that plans do not delay what starts in this pass
                self._plan_outdated = False
                self.replan()
        except DATABASE_ERRORS as error:
            self._lease_clock.record_database_error(error)
            self._next_poll = time.monotonic() + _RETRY_SECONDS
            time.sleep(0.1)
        return max(0.0, min(self._next_poll - time.monotonic(), PASS_SECONDS))

    def _forget(self, gang: Gang) -> None:
        """Forget a gang that has ended and is written."""
        self._lease_clock.record_progress()  # one of many gangs
        del self.gangs[gang.key]
        self.read_soon()
        if gang.outcome is not None and gang.outcome.state == "complete":
            self.sampler.errors.record_success(gang.number)
        if not gang.lost and gang.outcome is not None and gang.outcome.state not in ALIVE:
            # Its files have no further use, except those that rows name.
            self._sweeper.sweep_ended(gang.number, self._table.checkpoints(gang.number))

    def _keep_leases(self) -> None:
        if self._lease_clock.renewal_due:
            self._renew()

    def _renew(self) -> None:
        mine = [gang for gang in self.gangs.values() if not gang.lost]
        held = [pair for gang in mine for pair in gang.grant.slots]
        renewal = self._lease_clock.renew([*held, *self.cross_host.accepted_slots])
        self.cross_host.apply_renewal(renewal.kept)
        if self._membership.check_offers(renewal.offers, self._slot_health.withdrawn):
            self._slot_health.note_registration()
        for gang in mine:
            if not renewal.kept.issuperset(gang.grant.slots):
                _logger.warning("Trial %d lost its slots; its ranks are killed.", gang.number)
                gang.lose()
        self._event_loop.call_soon(self._extend_trust)

    def _extend_trust(self) -> None:
        for gang in (*self.warm.gangs, *self.gangs.values()):
            if not gang.abandoned:
                gang.extend_trust(self._lease_clock.trusted_until)

    def _read_plan(self) -> Orders:
        """Read the plan and what else the table says to this worker."""
        now = time.monotonic()
        self._next_poll = now + self._settings.poll
        orders = self._table.orders(self._worker_id)
        self._poll_trips = (*self._poll_trips[-4:], time.monotonic() - now)
        self._membership.set_drained(orders.drained, self.leaving is not None)
        deadline, stop = now + orders.end - orders.now, self._outbox.slowest_stop
        far = distant_database_seconds(
            self._poll_trips, self._settings.offer.size, deadline - self._began_at
        )
        self.view = TableView(
            deadline, orders.settled, orders.drained, stop, closing_seconds(stop) + far
        )
        return orders

    def _follow(self, orders: Orders) -> None:
        """Follow the plan, and then tell trials that wait for it which reports it has seen."""
        since, looks = self._plan
        self._post_directives(orders)
        self._start(orders)
        for gang in self.gangs.values():
            if gang.unplanned is not None and gang.unplanned[1] < since:
                (step, _), gang.unplanned = gang.unplanned, None
                gang.call_soon(partial(gang.send_planned, step, looks.get(gang.number, 0)))
        self.cross_host.reconcile(orders, self._renew, open=self._is_open())

    def _post_directives(self, orders: Orders) -> None:
        """Post the plan's directives, and give up what the table has given to others."""
        rows = {row.number: row for row in orders.trials}
        for gang in [gang for gang in self.gangs.values() if gang.leads]:
            row = rows.get(gang.number)
            if row is None or row.owner != self._worker_id or row.fence != gang.grant.fence:
                if gang.outcome is None:
                    gang.lose()
                continue
            planned = directive_for(row, self._worker_id, gang.size, gang.others)
            if planned.leave:
                gang.call_soon(partial(self._plan_leaving, gang, planned))
        for row in orders.trials:
            if row.owner == self._worker_id and (row.number, row.fence) not in self.gangs:
                # The grant's answer was lost, so no rank runs under this fence.
                self._table.cancel_grant(self._worker_id, row.number, row.fence)

    def _plan_leaving(self, gang: Gang, planned: Directive) -> None:
        """Send a directive to leave, after which a process may stay warm if there is room."""
        others = list(self.gangs.values())
        self._direct(gang, self.warm.allow_keeping_warm(planned, gang, others))

    def _start(self, orders: Orders) -> None:
        """Start the trials that the plan gives to this worker."""
        if self._membership.drained or not self._is_open():
            self.warm.clear()
            return
        self.warm.reconcile(orders.trials)
        if self._event_loop.fork_server.ready:
            for row in orders.trials:
                self._keep_leases()
                self._launcher.start(row, self.gangs)

    def _is_open(self) -> bool:
        """Whether trials may still start."""
        view = self.view
        return (
            self.leaving is None
            and not view.closing
            and not self._time_limit.accepts_no_segments(view.slowest_stop)
        )

    def _note_change(self) -> None:
        self._plan_outdated = True

    def leave_pool(self, patience: float) -> None:
        """Release all slots, delete what an ended study needs no more, and leave the pool."""
        for gang in self.gangs.values():
            if gang.exited and not gang.lost and gang.leads:
                self._table.release(self._worker_id, gang.grant, "paused", ended="abandoned")
            elif gang.exited and not gang.lost:
                self._table.release_part(self._worker_id, *gang.key)
        if self.view.settled:
            delete_needless(
                self._table, self._settings.folder, self._study_name, host_name(), patience
            )
            # Files of trials that ended elsewhere or while they waited.
            ended = [row.number for row in self._table.trials() if not row.alive and row.fence]
            self._sweeper.sweep_all_ended(ended, self._table.checkpoints())
        self._table.leave(self._worker_id)

    def close(self, patience: float) -> None:
        """End what works beside the passes."""
        self._fetcher.close()
        self._member_fetcher.close()
        self.cross_host.close()
        self.sampler.close()
        self._sweeper.close(patience)
        self._folders.close()
