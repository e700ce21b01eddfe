"""The worker: holds slots, runs the segments that the plan wants here, obeys its directives."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from optuna.study import Study

from optuna_deadline._threads import Ticker
from optuna_deadline.allocation.records import ALIVE, About, Desired, Orders
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.restore import Folders, Resuming, Sweeping
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.directives import Directive, Kind, directive_for
from optuna_deadline.errors import LeaseLost
from optuna_deadline.forecasting.throughput import closing_seconds, far_seconds
from optuna_deadline.planning.sampling import Sampling
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.worker.devices import Offer
from optuna_deadline.worker.event_loop import Switchboard
from optuna_deadline.worker.fork import Terms
from optuna_deadline.worker.gang_member import Across, busy_slots
from optuna_deadline.worker.launcher import Starting
from optuna_deadline.worker.lease_clock import DATABASE_AWAY, Trust
from optuna_deadline.worker.outbox import Writing
from optuna_deadline.worker.parking import Parking
from optuna_deadline.worker.registration import Joining
from optuna_deadline.worker.segment import PATIENCE, Gang
from optuna_deadline.worker.time_limit import TIME_IS_OVER, Until
from optuna_deadline.worker.watchdog import Watchdog

_logger = logging.getLogger("optuna_deadline")

#: Seconds to wait for killed ranks on the way out.
_FAREWELL = 3.0
_LISTEN = 0.2  # seconds between two looks at the clock


class Agent:
    """One worker process's loop.

    Two threads share the work. The caller's hears the ranks and minds the time, and never touches
    the database; the clerk's carries out passes that do. So a stalled database neither blocks the
    ranks' pipes nor lets the deadline pass unseen.

    Args:
        study: The Optuna study; only this process and the planner touch it.
        table: The allocation table.
        source: The objective for the ranks.
        offer: The slots that this worker brings.
        folder: Where the study's checkpoints go: a folder or a URL.
        about: What is said of this machine.
        poll: Seconds between two looks at the plan.
        weight: The study's weight in the pool; None leaves it.
        patience: Seconds without a word after which ranks are taken for hung.
        park: How many paused trials may wait in this machine's memory.
        replan: Called when something happened that the planner should see.
        until: When it leaves by itself; never, by default.

    Attributes:
        leaving: Why it leaves, once it does.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationStore,
        source: ObjectiveSource,
        offer: Offer,
        folder: Location,
        *,
        about: About | None = None,
        poll: float = 1.0,
        weight: float | None = None,
        patience: float = PATIENCE,
        park: int = 0,
        replan: Callable[[], None] = lambda: None,
        until: Until | None = None,
    ) -> None:
        self.id = str(uuid.uuid4())
        self._table = table
        self._poll = poll
        self._gangs: dict[int, Gang] = {}
        self._parking = Parking(park, alike=not offer.gpus)
        self._slots = offer.size
        self._began = time.monotonic()
        self._trips: tuple[float, ...] = ()  # seconds of the last looks at the plan
        self._deadline = float("inf")  # on the monotonic clock
        self.leaving: str | None = None
        self._asked = float("inf")  # when it was asked to leave, on the monotonic clock
        self.stranded = False  #: whether it left a database that does not answer
        self._until = until or Until()
        self._settled = False
        self._next_poll = 0.0
        self._watchdog = Watchdog()
        self._trust = Trust(table, self.id, self._watchdog)
        self._board = Switchboard(source, None if offer.gpus else 1, self._watchdog, self.id)
        self._folders = Folders(folder)
        self._resuming = Resuming(self._folders, self.wake)
        self._fetching = Resuming(self._folders, self.wake)  # for others' gangs
        self._sweeping = Sweeping(self._folders)
        about = about or About()
        self._joining = Joining(table, self.id, offer, about, self._trust, weight)
        direction = study.direction.name.lower()

        def terms() -> Terms:
            return Terms(self._folders, direction, table.grace)

        self._across = Across(
            table, self.id, self._board, self._fetching, self._trust, terms, about.address,
            self._gangs,
        )  # fmt: skip
        self._helping = self._across.helping
        self._sampling = Sampling()
        self._starting = Starting(
            study, table, self.id, self._board, terms, self._resuming, self._sweeping,
            self._trust, patience, self._joining.reaches, self._parking, self._across.meetings,
            self._sampling,
        )  # fmt: skip
        self._writing = Writing(table, self.id, self._parking, replan)
        self._clerk = Ticker("clerk", self._carry_out)

    @property
    def ready(self) -> bool:
        """Whether the objective is loaded."""
        return self._board.zygote.ready

    @property
    def closing(self) -> bool:
        """Whether the study's trials are ending, by the deadline as it was read last."""
        left = self._deadline - time.monotonic()
        return self._settled or left <= closing_seconds(self._writing.slowest_stop) + _LISTEN

    def wake(self) -> None:
        """Look at the plan now; callable from any thread or signal handler."""
        self._board.wake()

    def leave(self, why: str) -> None:
        """Checkpoint everything, release it, and return from :meth:`run`."""
        self._asked = min(self._asked, time.monotonic())
        self.leaving = why
        self.wake()

    def register(self) -> None:
        """Join the pool; from now on the leases tick."""
        self._joining.register()
        self._joining.tell_who_is_apart()

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Train until the study is settled or somebody asks to leave.

        Args:
            check: Called in each round; what it raises ends the worker.

        Raises:
            DeadlineError: The objective cannot be loaded, or the sampler fails again and again.
            StudyGone: The study was deleted.
            DatabaseGone: It has to leave, and the database stays away.
        """
        self._clerk.start()
        try:
            while not self._finished():
                self._board.replace_dead(self._all_gangs())
                self._listen()
                self._mind_the_time()
                self._mind_the_database()
                self._clerk.check()
                check()
        finally:
            idle = self._clerk.end(0.0 if self.stranded else _FAREWELL)
            self._kill_all()
            if idle and not self.stranded:  # else what we hold is reaped
                with suppress(LeaseLost, *DATABASE_AWAY):
                    self._abandon()
                    if self._settled:
                        self._sweep_at_the_end()
                    self._table.leave(self.id)
        if self._sampling.error is not None and not self._settled:
            raise self._sampling.error

    def close(self) -> None:
        """End every process of this worker."""
        self._board.close()
        self._watchdog.close()
        self._resuming.close()
        self._fetching.close()
        self._across.close()
        self._sweeping.close(_FAREWELL)
        self._folders.close()

    def _kill_all(self) -> None:
        """On the way out by an error: nobody trains on."""
        gangs = self._all_gangs()
        for gang in gangs:
            gang.kill()
        end = time.monotonic() + _FAREWELL
        while any(not gang.over for gang in gangs) and time.monotonic() < end:
            self._board.listen(lambda: gangs, 0.05)

    def _all_gangs(self) -> list[Gang]:
        """Those in flight last: a process that is just being unparked speaks in its new one."""
        return [*self._parking.gangs, *self._helping.gangs, *self._gangs.values()]

    def _abandon(self) -> None:
        """The slots are free for others."""
        for gang in self._gangs.values():
            if gang.over and not gang.lost:
                self._table.release(self.id, gang.grant, "paused", ended="abandoned")
        self._helping.write()

    def _finished(self) -> bool:
        busy = self._gangs or self._helping.busy
        return not busy and (self._settled or self.leaving is not None)

    def _listen(self) -> None:
        was_ready = self._board.zygote.ready
        news = self._board.listen(self._all_gangs, _LISTEN)
        if news or self._board.zygote.ready != was_ready:
            self._next_poll = 0.0
            self._clerk.wake()
        elif any(gang.backlog or gang.over for gang in self._all_gangs()):
            self._clerk.wake()

    def _carry_out(self) -> float:
        """One pass: keep the leases, follow the plan, write down what the ranks said.

        The leases come first, before each gang's turn and each start: a database may be healthy
        and yet so slow that what the ranks say piles up.
        """
        try:
            self._keep_leases()
            for gang in list(self._gangs.values()):
                if self._writing.write(gang, leaving=self.leaving is not None):
                    self._trust.back()  # a pass over many may take long
                    del self._gangs[gang.number]
                    self._next_poll = 0.0
                    if gang.verdict is not None and gang.verdict.state == "complete":
                        self._sampling.worked(gang.number)
                    self._sweep_after(gang)
                self._keep_leases()
            if self._helping.write():
                self._next_poll = 0.0
            now = time.monotonic()
            if now >= self._next_poll:
                self._next_poll = now + self._poll
                orders = self._table.orders(self.id)
                self._trips = (*self._trips[-4:], time.monotonic() - now)
                self._deadline = now + orders.end - orders.now
                self._settled = orders.settled
                self._mind_the_drain(orders.drained)
                self._follow(orders)
                is_open = self.leaving is None and self._in_time()
                self._across.follow(orders, self._renew, open=is_open)
            self._trust.back()
        except DATABASE_AWAY as error:
            self._trust.away(error)
            self._next_poll = time.monotonic() + 0.5
            time.sleep(0.1)
        return max(0.0, min(self._next_poll - time.monotonic(), _LISTEN))

    def _sweep_after(self, gang: Gang) -> None:
        """A trial that has ended here leaves nothing but what its rows name."""
        if not gang.lost and gang.verdict is not None and gang.verdict.state not in ALIVE:
            self._sweeping.sweep_ended(gang.number, self._table.checkpoints(gang.number))

    def _sweep_at_the_end(self) -> None:
        """Nor do those that ended elsewhere, or while they waited, once the study is over."""
        ended = [line.number for line in self._table.trials() if not line.alive and line.fence]
        self._sweeping.sweep_all_ended(ended, self._table.checkpoints())

    def _keep_leases(self) -> None:
        if self._trust.due:
            self._renew()

    def _renew(self) -> None:
        mine = [gang for gang in self._gangs.values() if not gang.lost]
        held = [pair for gang in mine for pair in gang.grant.slots]
        renewal = self._trust.renew([*held, *self._helping.slots])
        self._helping.hear(renewal.kept, self._trust.until)
        self._joining.hear(renewal.offers)
        for gang in mine:
            if not renewal.kept.issuperset(gang.grant.slots):
                _logger.warning("Trial %d lost its slots; its ranks are killed.", gang.number)
                gang.lost = True
                gang.kill()
            else:
                gang.trust(self._trust.until)
        self._parking.trust(self._trust.until)

    def _follow(self, orders: Orders) -> None:
        wanted = {line.number: line for line in orders.desired}
        for gang in self._gangs.values():
            line = wanted.get(gang.number)
            if line is None or line.owner != self.id or line.fence != gang.grant.fence:
                if gang.verdict is None:
                    gang.lost = True
                    gang.kill()
                continue
            gang.direct(self._directive(gang, line))
        for line in orders.desired:
            if line.owner == self.id and line.number not in self._gangs:
                # Granted, but the answer was lost: no rank of ours runs under this fence.
                self._table.disown(self.id, line.number, line.fence)
        if self.leaving is not None or self._joining.drained or not self._in_time():
            self._parking.clear()
            return
        self._parking.follow(orders.desired)
        if self._board.zygote.ready:
            for line in orders.desired:
                self._keep_leases()
                self._starting.start(line, self._gangs, busy_slots(self._helping.gangs))

    def _in_time(self) -> bool:
        left, stop = self._deadline - time.monotonic(), self._writing.slowest_stop
        return left > self._closing() and not self._until.is_closing(stop)

    def _closing(self) -> float:
        """How long before the deadline ranks are told to stop."""
        far = far_seconds(self._trips, self._slots, self._deadline - self._began)
        return closing_seconds(self._writing.slowest_stop) + far

    def _mind_the_drain(self, drained: bool) -> None:
        """A drained worker leaves once the plan has taken its trials elsewhere."""
        self._joining.mind_the_drain(drained, self.leaving is not None)
        busy = self._gangs or self._helping.busy
        if drained and not busy and self.leaving is None:
            self.leave("the host is drained")

    def _directive(self, gang: Gang, line: Desired) -> Directive:
        if self.leaving is not None:
            return Directive(Kind.PAUSE, self.leaving)
        if gang.directive.leave:
            return gang.directive  # on its way out already
        asked = directive_for(line, self.id, gang.size, gang.others)
        if not asked.leave:
            return gang.directive
        return self._parking.permit(asked, gang, self._gangs.values())

    def _mind_the_database(self) -> None:
        """Whoever stops a worker waits for it: a database that is away is not waited for."""
        gone = self._trust.gone(min(self._deadline, self._asked))
        if gone is not None and all(gang.over for gang in self._all_gangs()):
            self.stranded = True
            raise gone

    def _mind_the_time(self) -> None:
        """What must happen even while the database does not answer."""
        now, stop = time.monotonic(), self._writing.slowest_stop
        gangs = list(self._gangs.values())
        fading = self._trust.fading(stop)
        self._until.hear(gangs)
        if self.leaving is None and self._until.is_over(stop, self._deadline):
            _logger.warning("This worker's own time is almost over: its trials save and leave.")
            self.leave(TIME_IS_OVER)
        if self.leaving is None and self._sampling.error is not None:
            self.leave("the sampler fails")
        if now >= self._deadline - self._closing():
            for gang in gangs:
                gang.direct(Directive(Kind.STOP, "the deadline", deadline=True))
        elif fading or self.leaving is not None:
            why = self.leaving or "the database does not answer"
            for gang in gangs:
                if not gang.directive.leave:
                    gang.direct(Directive(Kind.PAUSE, why))
        if self.leaving is not None or fading:
            self._helping.tell_leaving(self.leaving or "another host's database is away")
        self._helping.mind_the_time(over=now >= self._deadline - 0.4)
        for gang in gangs:
            gang.kill_stragglers()
            gang.kill_hung()
            gang.hurried |= self.leaving is not None
            if gang.kill_overdue(stop):
                _logger.warning(
                    "Trial %d has not left in time and its ranks are killed: it goes on from its "
                    "last checkpoint.",
                    gang.number,
                )
            if gang.directive.deadline and now >= self._deadline - 0.4:
                gang.kill()
