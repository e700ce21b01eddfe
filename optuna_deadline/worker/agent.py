"""The worker: its ranks, from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress

from optuna.study import Study

from optuna_deadline._threads import BackgroundQueue, PeriodicThread
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.directives import Directive
from optuna_deadline.errors import LeaseLost
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.worker.database_errors import DATABASE_ERRORS
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.lease_clock import IDLE_GONE_SECONDS, LeaseClock
from optuna_deadline.worker.reconciler import PASS_SECONDS, Reconciler, WorkerSettings
from optuna_deadline.worker.rules import LAST_MOMENT, in_force
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.time_limit import TIME_LIMIT_REACHED, WorkerTimeLimit
from optuna_deadline.worker.watchdog import Watchdog

_logger = logging.getLogger("optuna_deadline")

#: Seconds to wait for killed ranks at the exit.
_KILL_SECONDS = 3.0
#: Seconds to wait for the database at the exit.
_GOODBYE_SECONDS = 5.0
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
    the rows (see :class:`Reconciler`), and lets the other one act on ranks by
    `EventLoop.call_soon`. So a stalled database neither blocks the ranks' pipes nor delays the end
    at the deadline.

    Args:
        study: The Optuna study; only this process and the planner use it.
        table: The allocation table.
        fork_server: Loads the objective and forks the ranks; it knows the worker's id.
        settings: What the worker offers.
        time_limit: When it leaves by itself; never by default.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationTable,
        fork_server: ForkServer,
        settings: WorkerSettings,
        time_limit: WorkerTimeLimit | None = None,
    ) -> None:
        self.id = fork_server.worker
        self._table = table
        self._began_at = self._awake_at = time.monotonic()
        # when it was asked to leave, on the monotonic clock
        self._leave_requested_at = float("inf")
        self.left_without_database = False  #: whether it left because the database does not answer
        self._time_limit = time_limit or WorkerTimeLimit()
        self._watchdog = Watchdog(self.id)
        self._lease_clock = LeaseClock(table, self.id, self._watchdog)
        self._event_loop = EventLoop(fork_server, self._watchdog)
        self._reconciler = Reconciler(
            study,
            table,
            settings,
            self._event_loop,
            self._lease_clock,
            self._time_limit,
            self._direct,
        )
        self._table_thread = PeriodicThread("table", self._reconciler.run_pass)

    @property
    def ready(self) -> bool:
        """Whether the objective is loaded."""
        return self._event_loop.fork_server.ready

    @property
    def leaving(self) -> str | None:
        """Why this worker leaves; None until it does."""
        return self._reconciler.leaving

    @property
    def closing(self) -> bool:
        """Whether the study's trials must end, by the deadline in the last reading."""
        view = self._reconciler.view
        return view.settled or view.closing

    def wake(self) -> None:
        """Read the plan now; callable from any thread or signal handler."""
        self._event_loop.wake()

    def replan_by(self, replan: Callable[[], None]) -> None:
        """Call a function after events that the planner should read."""
        self._reconciler.replan = replan

    def plan_made(self, since: float, looks: Mapping[int, int]) -> None:
        """Report a plan of this process; callable from any thread.

        Args:
            since: When it began to read the table.
            looks: By trial the step of the next report that decides about it.
        """
        if self._reconciler.plan_made(since, looks):
            self.wake()

    def leave(self, reason: str) -> None:
        """Save and release everything, and return from :meth:`run`."""
        self._leave_requested_at = min(self._leave_requested_at, time.monotonic())
        self._reconciler.leaving = reason
        self.wake()

    def give_up_on_end(self, planning: float) -> None:
        """Leave a late end of the study to the next process: a sampler or many rows take long.

        Args:
            planning: For how many seconds the planner of this process has worked without a pause.
                One that waits for the leases of a dead worker does not work.
        """
        view = self._reconciler.view
        late = time.monotonic() - max(view.deadline, self._began_at)
        patience = _END_SECONDS
        if planning < _END_SECONDS / 2:
            patience += self._table.ttl + self._table.grace
        if late < patience or view.settled or self.leaving is not None:
            return
        if self._lease_clock.is_answering:
            _logger.warning(
                "The study's end is not stored %.0f s after the deadline, and this worker does "
                "not wait for it: start the same command again to store the rest.", late,
            )  # fmt: skip
            self.leave(END_IS_LATE)

    def register(self) -> None:
        """Join the pool; the leases start."""
        self._reconciler.register()

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
                self._leave_if_due()
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
        error = self._reconciler.sampler.errors.error
        if error is not None and not self._reconciler.view.settled:
            raise error

    def close(self) -> None:
        """End every process of this worker."""
        self._event_loop.close()
        self._watchdog.close()
        self._reconciler.close(_KILL_SECONDS)

    def _finished(self) -> bool:
        over = self._reconciler.view.settled or self.leaving is not None
        return over and not self._reconciler.busy

    def _discount_sleep(self) -> None:
        """If this process was stopped (SIGSTOP, a suspended machine), others were not silent."""
        slept = time.monotonic() - self._awake_at
        self._awake_at += slept
        if slept > _SLEEP_SECONDS:
            self._lease_clock.discount(slept)
            for gang in self._all_gangs():
                gang.discount(slept)

    def _poll_pipes(self) -> None:
        """Wait for messages, and let the table thread write what came."""
        was_ready = self.ready
        woken = self._event_loop.poll(self._all_gangs, PASS_SECONDS)
        gangs = list(self._reconciler.gangs.values())
        for gang in gangs:
            gang.conclude()
        if woken or self.ready != was_ready:
            self._reconciler.read_soon()
            self._table_thread.wake()
        elif any(gang.pending_writes for gang in gangs):
            self._table_thread.wake()

    def _leave_if_due(self) -> None:
        """Leave at the end of this worker's time, and where it can do nothing more."""
        view = self._reconciler.view
        if self.leaving is not None:
            return
        if self._time_limit.must_leave(view.slowest_stop, view.deadline):
            _logger.warning("This worker's time limit is near: its trials save and leave.")
            self.leave(TIME_LIMIT_REACHED)
        elif self._reconciler.sampler.errors.error is not None:
            self.leave("the sampler fails")
        elif view.drained and not self._reconciler.busy:  # the plan has moved all of its trials
            self.leave("the host is drained")

    def _enforce_time_limits(self) -> None:
        """Enforce what must happen even while the database does not answer."""
        view, gangs = self._reconciler.view, list(self._reconciler.gangs.values())
        last_moment = time.monotonic() >= view.deadline - LAST_MOMENT
        self._time_limit.observe_silence(gang for gang in gangs if gang.leads)
        why = self._why_all_leave()
        for gang in gangs:
            gang.kill_stragglers()
            if gang.leads:
                self._direct(gang, gang.directive)
                self._end_late(gang)
            elif why is not None:
                gang.announce_leaving(self.leaving or "another host's database is away")
            if last_moment and (gang.directive.deadline or not gang.leads):
                gang.kill()

    def _end_late(self, gang: Gang) -> None:
        """Kill ranks that hang, or do not leave though this worker has to."""
        gang.kill_hung()
        gang.worker_leaving |= self.leaving is not None
        if gang.kill_overdue(self._reconciler.view.slowest_stop):
            _logger.warning(
                "Trial %d has not left in time and its ranks are killed: it resumes from its "
                "last checkpoint.",
                gang.number,
            )

    def _direct(self, gang: Gang, planned: Directive) -> None:
        """Send the directive in force: of the deadline, of this worker's end, or the planned."""
        closing, why = self._reconciler.view.closing, self._why_all_leave()
        gang.send_directive(in_force(gang.directive, planned, closing=closing, why=why))

    def _why_all_leave(self) -> str | None:
        """Why all trials have to save and leave this worker; None if they need not."""
        if self.leaving is None and self._lease_clock.expiring_soon(
            self._reconciler.view.slowest_stop
        ):
            return "the database does not answer"
        return self.leaving

    def _give_up_on_database(self) -> None:
        """A stopped worker does not wait for an unreachable database."""
        gangs, asked = self._all_gangs(), self._leave_requested_at
        gone = self._lease_clock.database_gone(min(self._reconciler.view.deadline, asked))
        if not gangs:
            gone = gone or self._lease_clock.database_gone(asked, IDLE_GONE_SECONDS)
        if gone is not None and all(gang.exited for gang in gangs):
            self.left_without_database = True
            raise gone

    def _all_gangs(self) -> list[Gang]:
        """All gangs, warm ones first: a process that is woken sends in its new gang."""
        return [*self._reconciler.warm.gangs, *self._reconciler.gangs.values()]

    def _kill_all(self) -> None:
        """Stop all ranks when the worker exits on an error."""
        self._event_loop.run_soon()
        gangs = self._all_gangs()
        for gang in gangs:
            gang.kill()
        end = time.monotonic() + _KILL_SECONDS
        while any(not gang.exited for gang in gangs) and time.monotonic() < end:
            self._event_loop.poll(lambda: gangs, 0.05)

    def _leave_pool(self) -> None:
        """Leave the pool; if the database is locked, the leases expire instead."""

        def leave() -> None:
            with suppress(LeaseLost, *DATABASE_ERRORS):
                self._reconciler.leave_pool(_KILL_SECONDS)

        goodbye = BackgroundQueue("optuna-deadline-goodbye").submit(leave)
        if wait([goodbye], _GOODBYE_SECONDS).done:
            goodbye.result()
