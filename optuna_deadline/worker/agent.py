"""The worker: holds slots, runs the segments that the plan assigns to it, sends directives."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

from optuna.study import Study

from optuna_deadline._threads import BackgroundQueue, PeriodicThread
from optuna_deadline.allocation.records import ALIVE, MachineInfo, Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.restore import (
    CheckpointFetcher,
    CheckpointFolders,
    CheckpointSweeper,
)
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.directives import Directive
from optuna_deadline.errors import LeaseLost
from optuna_deadline.forecasting.throughput import closing_seconds, distant_database_seconds
from optuna_deadline.planning.leftovers import delete_needless
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.worker.cross_host import CrossHostGangs
from optuna_deadline.worker.database_errors import DATABASE_ERRORS
from optuna_deadline.worker.devices import Offer, host_name, threads_of
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.fork import RankForker
from optuna_deadline.worker.launcher import SegmentLauncher
from optuna_deadline.worker.lease_clock import IDLE_GONE_SECONDS, LeaseClock
from optuna_deadline.worker.outbox import Outbox
from optuna_deadline.worker.registration import PoolMembership
from optuna_deadline.worker.rules import LAST_MOMENT, directive_for, in_force
from optuna_deadline.worker.sampling import TrialSampler
from optuna_deadline.worker.segment import HANG_TIMEOUT, Gang, busy_slots
from optuna_deadline.worker.slot_health import SlotHealth
from optuna_deadline.worker.time_limit import TIME_LIMIT_REACHED, WorkerTimeLimit
from optuna_deadline.worker.warm_processes import WarmProcesses
from optuna_deadline.worker.watchdog import Watchdog

_logger = logging.getLogger("optuna_deadline")

#: Seconds to wait for killed ranks at the exit.
_KILL_SECONDS = 3.0
#: Seconds to wait for the database at the exit.
_GOODBYE_SECONDS = 5.0
_POLL_SECONDS = 0.2  # seconds between two readings of the clock
#: A round of the main loop that lasts longer means that this process was stopped.
_SLEEP_SECONDS = 5.0
#: Seconds after the deadline for which a worker without trials waits for the study's end.
_END_SECONDS = 10.0
#: The reason of a worker that has waited so long.
END_IS_LATE = "the study's end takes too long"


class Agent:
    """The loop of one worker process.

    Two threads share the work. The caller's thread has the ranks: it forks them, receives and
    sends their messages, enforces time limits and never uses the database. The table thread has
    the rows, and lets the other one act on ranks by `EventLoop.call_soon`. So a stalled database
    neither blocks the ranks' pipes nor delays the end at the deadline.

    Args:
        study: The Optuna study; only this process and the planner use it.
        table: The allocation table.
        source: The objective for the ranks.
        offer: The slots that this worker offers.
        folder: The checkpoint store of the study: a folder or a URL.
        machine_info: The description of this host.
        poll: Seconds between two readings of the plan.
        weight: The study's weight in the pool; None leaves it unchanged.
        hang_timeout: Seconds without a message after which ranks count as hung.
        keep_warm: The most paused trials in this host's memory.
        replan: Called after events that the planner should read.
        time_limit: When it leaves by itself; never by default.
        fork_server: A fork server that has loaded the objective and knows the worker's id.

    Attributes:
        leaving: Why it leaves; None until it does.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationTable,
        source: ObjectiveSource,
        offer: Offer,
        folder: Location,
        *,
        machine_info: MachineInfo | None = None,
        poll: float = 1.0,
        weight: float | None = None,
        hang_timeout: float = HANG_TIMEOUT,
        keep_warm: int = 0,
        replan: Callable[[], None] = lambda: None,
        time_limit: WorkerTimeLimit | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.id = str(uuid.uuid4()) if fork_server is None else fork_server.worker
        self._table = table
        self._poll = poll
        self._gangs: dict[int, Gang] = {}
        self._plan: tuple[float, Mapping[int, int]] = (-math.inf, {})
        self._warm = WarmProcesses(keep_warm, any_slot=not offer.gpus)
        self._slots = offer.size
        self._began_at = self._awake_at = time.monotonic()
        self._poll_trips: tuple[float, ...] = ()  # seconds of the newest readings of the plan
        self._deadline = float("inf")  # on the monotonic clock
        self.leaving: str | None = None
        # when it was asked to leave, on the monotonic clock
        self._leave_requested_at = float("inf")
        self.left_without_database = False  #: whether it left because the database does not answer
        self._time_limit = time_limit or WorkerTimeLimit()
        self._settled = False
        self._next_poll = 0.0
        self._watchdog = Watchdog(self.id)
        self._lease_clock = LeaseClock(table, self.id, self._watchdog)
        self._event_loop = EventLoop(
            source, threads_of(offer), self._watchdog, self.id, fork_server
        )
        self._folder, self._study_name = folder, study.study_name
        self._folders = CheckpointFolders(folder)
        self._fetcher = CheckpointFetcher(self._folders, self.wake)
        self._member_fetcher = CheckpointFetcher(self._folders, self.wake)  # for others' gangs
        self._sweeper = CheckpointSweeper(self._folders)
        machine_info = machine_info or MachineInfo()
        self._membership = PoolMembership(
            table, self.id, offer, machine_info, self._lease_clock, weight
        )
        direction = study.direction.name.lower()

        forker = RankForker(self._event_loop, self._lease_clock, table, self._folders, direction)
        self._cross_host = CrossHostGangs(
            table, self.id, forker, self._member_fetcher, machine_info.address, self._gangs
        )
        self._sampler = TrialSampler(study, self._keep_leases, self._is_open)
        self._launcher = SegmentLauncher(
            self._sampler,
            table,
            self.id,
            forker,
            self._fetcher,
            self._sweeper,
            hang_timeout,
            self._membership.reaches,
            self._warm,
            self._cross_host.rank_server,
        )
        self._slot_health = SlotHealth(table, self.id, offer.size)
        self._outbox = Outbox(table, self.id, self._warm, self._note_change, self._slot_health)
        self._replan, self._plan_outdated = replan, False
        self._table_thread = PeriodicThread("table", self._table_pass)

    @property
    def ready(self) -> bool:
        """Whether the objective is loaded."""
        return self._event_loop.fork_server.ready

    @property
    def closing(self) -> bool:
        """Whether the study's trials must end, by the deadline in the last reading."""
        left = self._deadline - time.monotonic()
        return self._settled or left <= closing_seconds(self._outbox.slowest_stop) + _POLL_SECONDS

    def wake(self) -> None:
        """Read the plan now; callable from any thread or signal handler."""
        self._event_loop.wake()

    def plan_made(self, since: float, looks: Mapping[int, int]) -> None:
        """Report a plan of this process; callable from any thread.

        Args:
            since: When it began to read the table.
            looks: By trial the step of the next report that decides about it.
        """
        self._plan = since, looks
        if any(gang.unplanned is not None for gang in list(self._gangs.values())):
            self.wake()

    def leave(self, reason: str) -> None:
        """Save and release everything, and return from :meth:`run`."""
        self._leave_requested_at = min(self._leave_requested_at, time.monotonic())
        self.leaving = reason
        self.wake()

    def give_up_on_end(self, planning: float) -> None:
        """Leave a late end of the study to the next process: a sampler or many rows take long.

        Args:
            planning: For how many seconds the planner of this process has worked without a pause.
                One that waits for the leases of a dead worker does not work.
        """
        late = time.monotonic() - max(self._deadline, self._began_at)
        patience = _END_SECONDS
        if planning < _END_SECONDS / 2:
            patience += self._table.ttl + self._table.grace
        if late < patience or self._settled or self.leaving is not None:
            return
        if self._lease_clock.is_answering:
            _logger.warning(
                "The study's end is not stored %.0f s after the deadline, and this worker does "
                "not wait for it: start the same command again to store the rest.", late,
            )  # fmt: skip
            self.leave(END_IS_LATE)

    def register(self) -> None:
        """Join the pool; the leases start."""
        self._membership.register()
        self._membership.warn_of_unshared_checkpoints()

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Train until the study is settled or the worker is stopped.

        Args:
            check: Called in each round; its exceptions end the worker.

        Raises:
            DeadlineError: The objective cannot be loaded, or the sampler fails again and again.
            StudyGone: The study was deleted.
            DatabaseGone: The worker must leave, and the database stays unreachable.
        """
        self._table_thread.start()
        self._awake_at = time.monotonic()
        try:
            while not self._finished():
                self._discount_sleep()
                self._event_loop.replace_dead(self._all_gangs)
                self._poll_pipes()
                self._discount_sleep()
                self._enforce_time_limits()
                self._lease_clock.note_silence()
                self._give_up_on_database()
                self._table_thread.check()
                check()
        finally:
            idle = self._table_thread.stop(0.0 if self.left_without_database else _KILL_SECONDS)
            self._kill_all()
            if idle and not self.left_without_database:  # otherwise its slots are reaped
                self._leave_pool()
        if self._sampler.errors.error is not None and not self._settled:
            raise self._sampler.errors.error

    def close(self) -> None:
        """End every process of this worker."""
        self._event_loop.close()
        self._watchdog.close()
        self._fetcher.close()
        self._member_fetcher.close()
        self._cross_host.close()
        self._sampler.close()
        self._sweeper.close(_KILL_SECONDS)
        self._folders.close()

    def _discount_sleep(self) -> None:
        """If this process was stopped (SIGSTOP, a suspended machine), others were not silent."""
        slept = time.monotonic() - self._awake_at
        self._awake_at += slept
        if slept > _SLEEP_SECONDS:
            self._lease_clock.discount(slept)
            for gang in self._all_gangs():
                gang.discount(slept)

    def _kill_all(self) -> None:
        """Stop all ranks when the worker exits on an error."""
        self._event_loop.run_soon()
        gangs = self._all_gangs()
        for gang in gangs:
            gang.kill()
        end = time.monotonic() + _KILL_SECONDS
        while any(not gang.exited for gang in gangs) and time.monotonic() < end:
            self._event_loop.poll(lambda: gangs, 0.05)

    def _own_gangs(self) -> list[Gang]:
        """The gangs that hold slots of this worker."""
        return [*self._cross_host.gangs, *self._gangs.values()]

    def _all_gangs(self) -> list[Gang]:
        """All gangs, warm ones first: a process that is woken sends in its new gang."""
        return [*self._warm.gangs, *self._own_gangs()]

    def _release_all(self) -> None:
        """Release all slots."""
        for gang in self._gangs.values():
            if gang.exited and not gang.lost:
                self._table.release(self.id, gang.grant, "paused", ended="abandoned")
        self._cross_host.release_finished()

    def _leave_pool(self) -> None:
        """Leave the pool; if the database is locked, the leases expire instead."""

        def leave() -> None:
            with suppress(LeaseLost, *DATABASE_ERRORS):
                self._release_all()
                if self._settled:
                    delete_needless(
                        self._table, self._folder, self._study_name, host_name(), _KILL_SECONDS
                    )
                    self._sweep_all_ended()
                self._table.leave(self.id)

        goodbye = BackgroundQueue("optuna-deadline-goodbye").submit(leave)
        if wait([goodbye], _GOODBYE_SECONDS).done:
            goodbye.result()

    def _finished(self) -> bool:
        busy = self._gangs or self._cross_host.busy
        return not busy and (self._settled or self.leaving is not None)

    def _poll_pipes(self) -> None:
        was_ready = self._event_loop.fork_server.ready
        news = self._event_loop.poll(self._all_gangs, _POLL_SECONDS)
        self._conclude()
        if news or self._event_loop.fork_server.ready != was_ready:
            self._next_poll = 0.0
            self._table_thread.wake()
        elif any(gang.pending_writes for gang in self._own_gangs()):
            self._table_thread.wake()

    def _table_pass(self) -> float:
        """One pass: renew the leases, reconcile with the plan, write what ranks sent.

        The leases come first, before each gang's turn and each start: a healthy database may be so
        slow that messages of ranks pile up.
        """
        try:
            self._keep_leases()
            for gang in list(self._gangs.values()):
                if self._outbox.flush(gang, leaving=self.leaving is not None):
                    self._lease_clock.record_progress()  # one of many gangs
                    del self._gangs[gang.number]
                    self._next_poll = 0.0
                    if gang.outcome is not None and gang.outcome.state == "complete":
                        self._sampler.errors.record_success(gang.number)
                    self._sweep_after(gang)
                self._keep_leases()
            self._slot_health.reconcile()  # before anything starts on a slot that fails
            if self._cross_host.release_finished():
                self._next_poll = 0.0
            now = time.monotonic()
            if now >= self._next_poll:
                self._next_poll = now + self._poll
                since, looks = self._plan
                orders = self._table.orders(self.id)
                self._poll_trips = (*self._poll_trips[-4:], time.monotonic() - now)
                self._deadline = now + orders.end - orders.now
                self._settled = orders.settled
                self._apply_drain(orders.drained)
                self._reconcile(orders)
                for gang in self._gangs.values():  # after the directives of that plan
                    self._tell_planned(gang, since, looks.get(gang.number, 0))
                self._cross_host.reconcile(orders, self._renew, open=self._is_open())
            self._lease_clock.record_database_answer()
            if self._plan_outdated:  # now, so that plans do not delay what starts in this pass
                self._plan_outdated = False
                self._replan()
        except DATABASE_ERRORS as error:
            self._lease_clock.record_database_error(error)
            self._next_poll = time.monotonic() + 0.5
            time.sleep(0.1)
        return max(0.0, min(self._next_poll - time.monotonic(), _POLL_SECONDS))

    def _note_change(self) -> None:
        self._plan_outdated = True

    def _sweep_after(self, gang: Gang) -> None:
        """Delete files of trials that have ended here, except those that rows name."""
        if not gang.lost and gang.outcome is not None and gang.outcome.state not in ALIVE:
            self._sweeper.sweep_ended(gang.number, self._table.checkpoints(gang.number))

    def _sweep_all_ended(self) -> None:
        """Delete the same of trials that ended elsewhere or while they waited, after the study."""
        ended = [row.number for row in self._table.trials() if not row.alive and row.fence]
        self._sweeper.sweep_all_ended(ended, self._table.checkpoints())

    def _keep_leases(self) -> None:
        if self._lease_clock.renewal_due:
            self._renew()

    def _renew(self) -> None:
        mine = [gang for gang in self._gangs.values() if not gang.lost]
        held = [pair for gang in mine for pair in gang.grant.slots]
        renewal = self._lease_clock.renew([*held, *self._cross_host.held_slots])
        self._cross_host.apply_renewal(renewal.kept)
        if self._membership.check_offers(renewal.offers, self._slot_health.withdrawn):
            self._slot_health.note_registration()
        for gang in mine:
            if not renewal.kept.issuperset(gang.grant.slots):
                _logger.warning("Trial %d lost its slots; its ranks are killed.", gang.number)
                gang.lose()
        self._event_loop.call_soon(self._extend_trust)

    def _extend_trust(self) -> None:
        for gang in self._all_gangs():
            if not gang.abandoned:
                gang.extend_trust(self._lease_clock.trusted_until)

    def _reconcile(self, orders: Orders) -> None:
        wanted = {row.number: row for row in orders.trials}
        for gang in self._gangs.values():
            row = wanted.get(gang.number)
            if row is None or row.owner != self.id or row.fence != gang.grant.fence:
                if gang.outcome is None:
                    gang.lose()
                continue
            planned = directive_for(row, self.id, gang.size, gang.others)
            if planned.leave:
                gang.call_soon(partial(self._follow, gang, planned))
        for row in orders.trials:
            if row.owner == self.id and row.number not in self._gangs:
                # The grant's answer was lost, so no rank runs under this fence.
                self._table.cancel_grant(self.id, row.number, row.fence)
        if self.leaving is not None or self._membership.drained or not self._may_start():
            self._warm.clear()
            return
        self._warm.reconcile(orders.trials)
        if self._event_loop.fork_server.ready:
            for row in orders.trials:
                self._keep_leases()
                self._launcher.start(row, self._gangs, busy_slots(self._cross_host.gangs))

    def _is_open(self) -> bool:
        return self.leaving is None and self._may_start()

    def _may_start(self) -> bool:
        left, stop = self._deadline - time.monotonic(), self._outbox.slowest_stop
        return left > self._closing_seconds() and not self._time_limit.accepts_no_segments(stop)

    def _closing_seconds(self) -> float:
        """Seconds before the deadline at which ranks must stop."""
        far = distant_database_seconds(
            self._poll_trips, self._slots, self._deadline - self._began_at
        )
        return closing_seconds(self._outbox.slowest_stop) + far

    def _apply_drain(self, drained: bool) -> None:
        """Leave once the plan has moved all trials of a drained worker."""
        self._membership.set_drained(drained, self.leaving is not None)
        busy = self._gangs or self._cross_host.busy
        if drained and not busy and self.leaving is None:
            self.leave("the host is drained")

    def _tell_planned(self, gang: Gang, since: float, next_look: int) -> None:
        """Tell a trial that a plan, which began to read at a time, has seen its last report."""
        if gang.unplanned is not None and gang.unplanned[1] < since:
            (step, _), gang.unplanned = gang.unplanned, None
            gang.call_soon(partial(gang.send_planned, step, next_look))

    def _follow(self, gang: Gang, planned: Directive) -> None:
        """Send a directive of the plan, in which a process may stay warm if there is room."""
        others = list(self._gangs.values())
        self._direct(gang, self._warm.allow_keeping_warm(planned, gang, others))

    def _direct(self, gang: Gang, planned: Directive) -> None:
        """Send the directive in force: of the deadline, of this worker's end, or the planned."""
        closing = time.monotonic() >= self._deadline - self._closing_seconds()
        why = self.leaving
        if why is None and self._lease_clock.expiring_soon(self._outbox.slowest_stop):
            why = "the database does not answer"
        gang.send_directive(in_force(gang.directive, planned, closing=closing, why=why))

    def _conclude(self) -> None:
        """Let the table thread release what has ended."""
        for gang in self._own_gangs():
            gang.conclude()

    def _give_up_on_database(self) -> None:
        """A stopped worker does not wait for an unreachable database."""
        gangs = self._all_gangs()
        idle = self._lease_clock.database_gone(self._leave_requested_at, IDLE_GONE_SECONDS)
        gone = self._lease_clock.database_gone(min(self._deadline, self._leave_requested_at))
        if not gangs:
            gone = gone or idle
        if gone is not None and all(gang.exited for gang in gangs):
            self.left_without_database = True
            raise gone

    def _enforce_time_limits(self) -> None:
        """Enforce what must happen even while the database does not answer."""
        now, stop = time.monotonic(), self._outbox.slowest_stop
        gangs = list(self._gangs.values())
        fading = self._lease_clock.expiring_soon(stop)
        self._time_limit.observe_silence(gangs)
        if self.leaving is None and self._time_limit.must_leave(stop, self._deadline):
            _logger.warning("This worker's time limit is near: its trials save and leave.")
            self.leave(TIME_LIMIT_REACHED)
        if self.leaving is None and self._sampler.errors.error is not None:
            self.leave("the sampler fails")
        for gang in gangs:
            self._direct(gang, gang.directive)
        if self.leaving is not None or fading:
            self._cross_host.announce_leaving(self.leaving or "another host's database is away")
        self._cross_host.enforce_time_limits(over=now >= self._deadline - LAST_MOMENT)
        for gang in gangs:
            gang.kill_stragglers()
            gang.kill_hung()
            gang.worker_leaving |= self.leaving is not None
            if gang.kill_overdue(stop):
                _logger.warning(
                    "Trial %d has not left in time and its ranks are killed: it resumes from its "
                    "last checkpoint.",
                    gang.number,
                )
            if gang.directive.deadline and now >= self._deadline - LAST_MOMENT:
                gang.kill()
