"""The planning loop: read, plan, place, write. One planner per study, elected by a lease."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from optuna_deadline.allocation.records import Claim, Orders
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.errors import DeadlineError, LeaseLost
from optuna_deadline.forecasting.throughput import closing_seconds, far_seconds
from optuna_deadline.planning.billing.budget import Funds, Purse
from optuna_deadline.planning.demand import Claims, wait, wish
from optuna_deadline.planning.placement.bound_plans import Binding
from optuna_deadline.planning.placement.gangs import changed, evenly, place, spreading
from optuna_deadline.planning.pool_leader import portions
from optuna_deadline.planning.reading import Reading
from optuna_deadline.planning.sampling import Finite
from optuna_deadline.planning.settlement import Champion, Ends
from optuna_deadline.planning.snapshot import SnapshotReader
from optuna_deadline.planning.trials import Openings, Trials
from optuna_deadline.policies.api import Order, Pause, Plan, Policy, Retire, Run
from optuna_deadline.policies.wrappers import Fitting, Obliging

_logger = logging.getLogger("optuna_deadline")

#: Of the time that ends take to be told, what is set aside for them: a tick does more than that.
_UNHURRIED = 2
#: So many failures, and not one report, mean that the objective is broken.
HOPELESS = 5


class Planner:
    """Plans one study, within the slots that the pool lends to it, while it rules.

    Args:
        trials: Opens and ends the study's trials.
        table: The allocation table.
        policy: Decides; sees snapshots only, and nothing of what people ask for.
        direction: "minimize" or "maximize".
        started: When the study began, in the database's seconds.
        me: The worker that this planner belongs to.
        clock: Seconds that only ever rise, for the time between two elections.
        whole: Whether a checkpoint can be loaded.
        purse: Knows what was spent, where slots cost money.
        ceiling: Slots that could be had if the study wants them.
        max_slots: The most that a trial may have; any number, if not given.
    """

    def __init__(
        self,
        trials: Trials,
        table: AllocationStore,
        policy: Policy,
        *,
        direction: str,
        started: float,
        me: str,
        clock: Callable[[], float] = time.monotonic,
        whole: Callable[[Checkpoint], bool] = intact,
        purse: Purse | None = None,
        ceiling: int = 0,
        max_slots: int | None = None,
    ) -> None:
        self._funds = None if purse is None else Funds(table, purse, ceiling)
        self._ceiling = ceiling
        self._openings = Openings(trials, table, me)
        self._trials = trials
        self._table = table
        self._policy = Finite(Obliging(Fitting(policy)), self._openings.exhausted)
        self._me = me
        self._clock = clock
        self._champion = Champion(table, direction, whole, lambda: self._reader.best_reports)
        self._ends = Ends(trials, table, self._champion, clock)
        self._reader = SnapshotReader(table, direction, started, max_slots)
        self._binding = Binding(table)
        self._claims = Claims()
        self._said: Claim | None = None
        self._learned: int | None = None
        self._say_again = 0.0
        self._idle_plans = 0
        self._failed: set[int] = set()
        self._failed_before: int | None = None
        self._followed: tuple[Reading, Plan] | None = None
        self._term: int | None = None
        self.next_election = 0.0  #: of the clock's seconds
        self._reaps = False  # at the next tick: it was just elected
        self._trips: tuple[float, ...] = ()  # seconds of the last ones to the table
        self._started = started
        self.quiet_until = -math.inf

    def tick(self) -> bool:
        """Plan once if this planner rules; returns whether anything was changed.

        Sets ``quiet_until``: while nobody writes to the table, no tick before that instant finds
        anything to do but to stay elected.

        Raises:
            StudyGone: The study was deleted.
            DeadlineError: Trials only fail.
        """
        term = self.stand()
        self.quiet_until = -math.inf
        if term is None:
            return False
        if self._reaps:
            self._table.reap()
            self._reaps = False
        asked = self._clock()
        orders, began = self._table.orders(self._me), self._clock()
        self._trips = (*self._trips[-4:], began - asked)
        if orders.settled:
            return False
        try:
            return self._tick(term, orders, began)
        except LeaseLost:
            _logger.info("Another worker plans this study now.")
            self.next_election = 0.0
            return False

    def _tick(self, term: int, orders: Orders, began: float) -> bool:
        """One look and what follows from it, in one term."""
        self._openings.adopt(term)
        reading = self._reader.read(orders.deadline)
        if reading.overdue and self._table.reap():
            reading = self._reader.read(orders.deadline)
        snapshot = reading.snapshot
        end = orders.end if self._funds is None else self._funds.end(orders)
        closes_in = end - snapshot.now - self._closing(reading)
        if self._thin_out(term, reading, closes_in):
            reading = self._reader.read(orders.deadline)
        if self._funds is not None:
            reading = self._funds.see(reading, orders)
        self._tell_the_limit()
        self._refuse_the_hopeless(reading)
        told = self._ends.tell(reading.ended)
        if closes_in <= 0:
            return self._close(term, reading, orders)
        if not reading.workers:
            return told > 0  # its own lease is over: the table takes nobody for alive
        plan, wished = self._plan(reading)
        size = 0
        if self._funds is not None:
            size = self._funds.size(reading, orders, plan)
            if less := self._funds.shrunk(reading, plan, size):
                reading = less
                plan = wished = replace(self._plan(less)[0], pool_slots=plan.pool_slots)
        if self._nothing_left(reading, wished):
            return self._close(term, reading, orders)
        self._claim(term, reading, wished)
        changed = False
        if not self._is_followed(reading, plan):
            changed = self._write(term, reading, plan, self._clock() - began)
        elif not told and plan is wished and self._funds is None:
            self.quiet_until = self._quiet_until(reading, orders, plan)
        if self._funds is not None:
            changed |= self._funds.resize(self._me, term, reading, orders, size)
        return changed or told > 0

    def _closing(self, reading: Reading) -> float:
        """How long before the end nothing is trained any more."""
        snapshot = reading.snapshot
        far = far_seconds(self._trips, snapshot.capacity, snapshot.deadline - self._started)
        return closing_seconds(snapshot.overhead.stop) + far

    def _tell_the_limit(self) -> None:
        """Say once what is learned from trials that cannot train on many slots."""
        learned = self._reader.limits.learned
        if learned != self._learned and learned is not None:
            _logger.warning("From here on %s.", self._reader.limits.words())
        self._learned = learned

    def _refuse_the_hopeless(self, reading: Reading) -> None:
        """An objective that only fails would be started again and again until the deadline."""
        self._failed.update([line.number for line in reading.ended if line.state == "failed"])
        if self._failed_before is None:
            self._failed_before = len(self._failed)
        new = len(self._failed) - self._failed_before
        if new >= HOPELESS and not any(view.reports for view in reading.snapshot.trials):
            raise DeadlineError(
                f"{new} trials failed and none has reported: mend the objective (the errors are "
                "above) and start the worker again; the study goes on."
            )

    @property
    def rules(self) -> bool:
        """Whether it was elected when it stood last."""
        return self._term is not None

    def stand(self) -> int | None:
        """The term while this planner rules; asked of the table a few times in a lease.

        An old term does no harm meanwhile: every write is guarded by it.
        """
        now = self._clock()
        if now >= self.next_election:
            before, self._term = self._term, self._table.elect(self._me)
            self.next_election = now + self._table.ttl / 6
            self._reaps = self._term is not None
            if self._term not in (None, before):
                self._begin_term()
        return self._term

    def _begin_term(self) -> None:
        """What was known before may have been changed by another planner since."""
        self._openings.begin_term()
        self._reader.begin_term()
        self._followed = self._said = None
        self._idle_plans = 0

    def _quiet_until(self, reading: Reading, orders: Orders, plan: Plan) -> float:
        """Until when a plan that is followed stays as it is, by the time alone."""
        if plan.holds_until is None or self._idle_plans:
            return -math.inf
        closes = orders.end - self._closing(reading)
        leases = [worker.lease for worker in reading.workers]
        return min(plan.holds_until, closes, reading.reap_from, *leases)

    def _plan(self, reading: Reading) -> tuple[Plan, Plan]:
        """What the study shall do with its slots, and what it would do with all in reach."""
        snapshot = reading.snapshot
        self._binding.look(reading)
        reach = sum(reading.reach.values())
        alone = reach == snapshot.capacity > 0 and reach >= self._ceiling
        if alone or snapshot.money is not None:  # who pays says itself how many slots it wants
            plan = self._binding.decide(self._policy, reading)
            return plan, plan
        wished = wish(self._policy, reading, self._ceiling)
        if snapshot.capacity == 0:
            return wait(snapshot, wished), wished
        return self._binding.decide(self._policy, reading), wished

    def _claim(self, term: int, reading: Reading, wished: Plan) -> None:
        """Tell the pool what the study needs: when that changes, and a few times in a lease."""
        now, said = self._clock(), self._claims.make(reading, wished)
        before = self._said
        same = before is not None and (before.live, before.most) == (said.live, said.most)
        if not same or now >= self._say_again:
            self._table.claim(self._me, term, said)
            self._said, self._say_again = said, now + self._table.ttl / 6

    def _write(self, term: int, reading: Reading, plan: Plan, seconds: float) -> bool:
        current = reading.trials
        orders = {
            number: order
            for number, order in plan.orders.items()
            if not isinstance(order, Pause) or current[number].mode != "pause"
        }
        for given_up in current.values():  # and died meanwhile
            if given_up.mode == "stop" and given_up.owner is None and given_up.alive:
                orders[given_up.number] = Retire(given_up.reason)
        self._keep_the_best(orders)
        for opened in range(plan.start):
            if opened > 0 and self._openings.exhausted():
                break
            number = self._openings.open(term)
            orders[number] = Run(1, f"starts: {plan.start_reason}")
        reasons = {
            number: order.reason
            for number, order in orders.items()
            if isinstance(order, Retire) and number in current and current[number].owner is None
        }
        self._retire(term, reasons)
        for number in reasons:
            del orders[number]
        bounds = self._binding.bounds
        placed = place(orders, reading.capacities, current, bounds, spreading(reading))
        lines = changed(evenly(placed, current), current)
        lines += self._binding.reworded(current)
        for part in portions(lines):
            self._table.write_plan(self._me, term, part, seconds)
        self._table.set_gate(self._me, term, plan.gate_open)
        self._followed = reading, plan
        return bool(lines)

    def _is_followed(self, reading: Reading, plan: Plan) -> bool:
        """Whether nothing was to write for this very plan, and nobody has written since."""
        if self._followed is None:
            return False
        before, followed = self._followed
        return (
            (plan is followed or plan == followed)
            and plan.start == 0
            and before.trials == reading.trials
            and before.capacities == reading.capacities
        )

    def _keep_the_best(self, orders: dict[int, Order]) -> None:
        """The model in hand is never given up, however its trial stands on the rungs."""
        for number, order in orders.items():
            if isinstance(order, Retire) and self._champion.is_(number):
                orders[number] = Pause("holds the best model so far")

    def _nothing_left(self, reading: Reading, plan: Plan) -> bool:
        """Whether the study is over before its deadline: seen twice, to be sure.

        Judged by what it would do with all slots: who only waits for one is not over, be all hosts
        drained, nor is a study in which somebody has a trial held that may go on yet.
        """
        busy = plan.slots > 0 or plan.gate_open or bool(plan.pool_slots)
        busy = busy or bool(reading.snapshot.requests) or not any(reading.reach.values())
        busy = busy or bool(self._binding.stuck)  # their host may come back
        self._idle_plans = 0 if busy else self._idle_plans + 1
        return self._idle_plans >= 2

    def _close(self, term: int, reading: Reading, orders: Orders) -> bool:
        """Pay for nothing any more but what is still held, and end the trials."""
        if self._funds is not None and orders.pool_slots:
            seen = orders.pool_slots, orders.funds_end
            if not self._table.resize_pool(self._me, term, 0, orders.end, seen=seen):
                return False  # it was extended just now, or its price has changed
        return self._settle(term, reading, orders.deadline)

    def _settle(self, term: int, reading: Reading, deadline: float) -> bool:
        """End every trial that nobody trains; close the study once none is left."""
        living = {worker.id for worker in reading.workers}
        alive = [line for line in reading.trials.values() if line.alive]
        if any(line.owner in living for line in alive):
            return False  # a trial still on its slots may bring a better model
        # Where an owner has died the trial is reaped soon.
        waiting = [line.number for line in alive if line.owner is None]
        self._ends.crown(self._me, term)
        self._give_up(term, waiting)
        lines = self._table.trials()
        self._ends.tell_all(lines)
        if any(line.alive for line in lines):
            return True
        self._trials.adopt_strays({line.number for line in lines})
        self._table.settle(self._me, term, deadline)  # unless it was extended since
        return True

    def _thin_out(self, term: int, reading: Reading, closes_in: float) -> bool:
        """Give up the worst of those that wait, where too many wait to be told their end in time.

        Once the others are told to stop, it is all but the best one. Returns whether any was.
        """
        waiting = [
            line.number
            for line in reading.trials.values()
            if line.alive and line.owner is None and (line.mode != "run" or closes_in <= 0)
        ]
        each = _UNHURRIED * self._ends.seconds(self._trips[-1])
        if len(waiting) < 2 or len(waiting) * each < closes_in:
            return False
        excess = len(waiting) - 1 - (int(closes_in / each) if closes_in > 0 else 0)
        best = self._champion.find()
        worst = self._reader.best_reports.worst_first(waiting)
        losers = [number for number in worst if best is None or number != best.number]
        return excess > 0 and self._give_up(term, losers[:excess]) > 0

    def _give_up(self, term: int, numbers: Iterable[int]) -> int:
        return self._retire(term, dict.fromkeys(numbers, "others were better"))

    def _retire(self, term: int, reasons: Mapping[int, str]) -> int:
        parts = portions(sorted(reasons.items()))
        return sum([self._table.retire(self._me, term, dict(part)) for part in parts])
