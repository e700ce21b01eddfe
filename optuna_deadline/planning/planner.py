"""The planning loop: read, plan, place, write. One planner per study, elected by a lease."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from optuna_deadline._garbage import collecting_later
from optuna_deadline.allocation.records import Orders, StudyClaim
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.errors import DeadlineError, LeaseLost
from optuna_deadline.forecasting.throughput import (
    PRIOR_EXPONENT,
    closing_seconds,
    distant_database_seconds,
)
from optuna_deadline.planning.best_model import BestModel
from optuna_deadline.planning.billing.budget import BudgetAccount, PoolBudget
from optuna_deadline.planning.demand import ClaimEstimator, idle_plan, unconstrained_plan
from optuna_deadline.planning.placement.bound_plans import BoundPlanner
from optuna_deadline.planning.placement.gangs import (
    assign_workers,
    changed_assignments,
    fit_to_batches,
    spread_rules,
)
from optuna_deadline.planning.pool_leader import batches
from optuna_deadline.planning.reading import Reading
from optuna_deadline.planning.sampling import FiniteSearchPolicy
from optuna_deadline.planning.settlement import EndReporter, StudyEnd
from optuna_deadline.planning.snapshot import SnapshotReader
from optuna_deadline.planning.trials import TrialOpener, Trials, with_parameters
from optuna_deadline.policies.api import Order, Pause, Plan, Policy, Retire, Run, Snapshot
from optuna_deadline.policies.diverged import DivergedPolicy
from optuna_deadline.policies.first_step import FirstStepPolicy
from optuna_deadline.policies.unpausable import UnpausablePolicy, cannot_pause, stopping_policy
from optuna_deadline.policies.wrappers import BatchDivisorPolicy, RequestPolicy
from optuna_deadline.values.deadlines import clock_words

_logger = logging.getLogger("optuna_deadline")

#: This many failures without any report mean that the objective is broken.
MAX_FAILURES = 5


@dataclass
class _Term:
    """What a planner remembers of one term; after that, another one may have written."""

    number: int
    claim: StudyClaim | None = None  #: as it was written last
    claim_again_at: float = 0.0
    written: tuple[Reading, Plan] | None = None  #: the last plan, and what it was made of
    idle_plans: int = 0  #: in a row
    gate: bool | None = None  #: as it was written last
    gate_changes_at: float = math.inf


class Planner:
    """Plans one study within the slots that its pool lends to it, while it is elected.

    Args:
        trials: Opens and ends the study's trials.
        table: The allocation table.
        policy: Decides; it sees snapshots only and no requests of users.
        direction: "minimize" or "maximize".
        worker_id: The worker that this planner belongs to.
        clock: A monotonic clock in seconds, for the time between two elections.
        is_intact: Whether a checkpoint can be loaded.
        budget_account: Tracks what was spent, if slots cost money.
        max_pool_slots: The most slots that the study can buy.
        max_slots: The most slots of a trial; no limit by default.
        exponent: Of the speed of gangs that were not measured.
        interval: Seconds between two ticks, at most.
        keep_all: Whether all checkpoints stay after the study, not only the best model's.
    """

    def __init__(
        self,
        trials: Trials,
        table: AllocationTable,
        policy: Policy,
        *,
        direction: str,
        worker_id: str,
        clock: Callable[[], float] = time.monotonic,
        is_intact: Callable[[Checkpoint], bool] = intact,
        budget_account: BudgetAccount | None = None,
        max_pool_slots: int = 0,
        max_slots: int | None = None,
        exponent: float = PRIOR_EXPONENT,
        interval: float = 0.0,
        keep_all: bool = False,
    ) -> None:
        self._pool_budget = (
            None if budget_account is None else PoolBudget(table, budget_account, max_pool_slots)
        )
        self._max_pool_slots = max_pool_slots
        self._opener = TrialOpener(trials, table, worker_id)
        self._reads_parameters = getattr(policy, "reads_parameters", False)
        self._trials = trials
        self._table = table
        unpausable = UnpausablePolicy(policy, stopping_policy(policy))
        self._policy = FiniteSearchPolicy(
            DivergedPolicy(FirstStepPolicy(RequestPolicy(BatchDivisorPolicy(unpausable)))),
            self._opener.exhausted,
        )
        self._worker_id = worker_id
        self._clock = clock
        self._best_model = BestModel(
            table, direction, is_intact, lambda: self._reader.best_reports, trials.feasibility
        )
        self._end_reporter = EndReporter(
            trials, table, self._best_model, clock, self._stay_elected
        )
        self._end = StudyEnd(
            trials, table, worker_id, self._best_model, self._end_reporter, interval=interval,
            keep_all=keep_all,
        )  # fmt: skip
        self._reader = SnapshotReader(table, direction, max_slots, exponent)
        self._bound_planner = BoundPlanner(table)
        self._claim_estimator = ClaimEstimator(policy)
        self._logged_limit: int | None = None
        self._warned_unpausable = False
        self._failed: set[int] = set()
        self._failed_before: int | None = None
        self._term: _Term | None = None
        self.next_election = 0.0  #: in seconds of the clock
        self._reap_next = False  # plan at the next tick: the planner was just elected
        self._poll_trips: tuple[float, ...] = ()  # seconds of the newest round trips to the table
        self.quiet_until = -math.inf
        self.closes_at = math.inf  #: when training must stop, in seconds of the clock
        #: By trial the step of the next report that decides about it, as the objective counts.
        self.looks: Mapping[int, int] = {}

    def tick(self) -> bool:
        """Plan once if this planner is elected; returns whether anything changed.

        Sets ``quiet_until``: if no process writes to the table, no tick before that instant has
        any work except to stay elected.

        Raises:
            StudyGone: The study was deleted.
            DeadlineError: All trials fail.
        """
        self.try_elect()
        self.quiet_until = -math.inf
        if (term := self._term) is None:
            return False
        if self._reap_next:
            self._table.reap()
            self._reap_next = False
        asked = self._clock()
        orders, began = self._table.orders(self._worker_id), self._clock()
        self._poll_trips = (*self._poll_trips[-4:], began - asked)
        if orders.settled:
            return False
        try:
            if orders.clock_step:
                return self._follow_clock(term, orders)
            if term.written is not None:
                return self._tick(term, orders, began)
            with collecting_later():  # it reads the whole study
                return self._tick(term, orders, began)
        except LeaseLost:
            _logger.info("Another worker plans this study now.")
            self.next_election = 0.0
            return False

    def _follow_clock(self, term: _Term, orders: Orders) -> bool:
        """Move the deadline for all, and for processes that start later."""
        step, stored = orders.clock_step, orders.deadline - orders.clock_step
        if self._table.follow_clock(self._worker_id, term.number, step, stored):
            _logger.warning("%s.", clock_words(step).capitalize())
        return True

    def _tick(self, term: _Term, orders: Orders, began: float) -> bool:
        """Read the study once and act on it, in one term."""
        self._opener.register_strays(term.number)
        reading = self._reader.read(orders)
        if reading.overdue and self._table.reap():
            reading = self._reader.read(orders)
        snapshot = reading.snapshot
        end = orders.end if self._pool_budget is None else self._pool_budget.training_end(orders)
        closing = self._closing_seconds(reading)
        closes_in = end - snapshot.now - closing
        self.closes_at = self._clock() + closes_in
        if self._end.retire_excess(
            term.number, reading, closes_in, self._reader.best_reports, self._poll_trips[-1]
        ):
            reading = self._reader.read(orders)
        if self._pool_budget is not None:
            reading = self._pool_budget.limit_to_paid_slots(reading, orders)
        self._log_learned_limit()
        self._warn_of_unpausable(reading)
        self._fail_if_hopeless(reading)
        reported = self._end_reporter.report(reading.ended)
        if closes_in <= 0:
            return self._close(term.number, reading, orders)
        if not reading.workers:
            return (
                reported > 0
            )  # its own lease has expired, so the table counts no worker as alive
        if self._reads_parameters:
            reading = with_parameters(reading, self._trials.parameters())
        if self._pool_budget is None:  # else policies subtract what it takes to give slots back
            snapshot = replace(reading.snapshot, deadline=orders.deadline - closing)
            reading = replace(reading, snapshot=snapshot)
        plan, unconstrained = self._plan(reading)
        self.looks = {number: self._reader.own_step(step) for number, step in plan.looks.items()}
        size = 0
        if self._pool_budget is not None:
            size = self._pool_budget.wanted_slots(reading, orders, plan)
            if less := self._pool_budget.shrink_to_paid_slots(reading, plan, size):
                reading = less
                plan = unconstrained = replace(self._plan(less)[0], pool_slots=plan.pool_slots)
        if self._is_finished(term, reading, unconstrained):
            return self._close(term.number, reading, orders)
        self._set_claim(term, reading, unconstrained)
        self._write_gate(term, plan.gate_open, reading.snapshot)
        changed = False
        if not self._is_unchanged(term, reading, plan):
            changed = self._write(term, reading, plan, self._clock() - began)
        elif not reported and plan is unconstrained and self._pool_budget is None:
            self.quiet_until = self._quiet_until(term, reading, plan)
        if self._pool_budget is not None:
            changed |= self._pool_budget.write_pool_size(
                self._worker_id, term.number, reading, orders, size
            )
        return changed or reported > 0

    def _closing_seconds(self, reading: Reading) -> float:
        """Seconds before the end at which all training must stop."""
        snapshot = reading.snapshot
        far = distant_database_seconds(
            self._poll_trips, snapshot.capacity, snapshot.deadline - snapshot.started
        )
        return closing_seconds(snapshot.overhead.stop) + far

    def _log_learned_limit(self) -> None:
        """Log once what was learned from trials that cannot train on many slots."""
        learned = self._reader.limits.learned
        if learned != self._logged_limit and learned is not None:
            _logger.warning("From here on %s.", self._reader.limits.describe())
        self._logged_limit = learned

    def _warn_of_unpausable(self, reading: Reading) -> None:
        if not self._warned_unpausable and cannot_pause(reading.snapshot.trials):
            self._warned_unpausable = True
            _logger.warning(
                "The objective never uses its segment, so its trials cannot be paused or "
                "resized: each keeps its slot until it ends, is pruned by its rank, or the "
                "deadline comes. To let trials pause, save and resume them by "
                "optuna_deadline.segment(trial), DeadlineCallback or ElasticLoop."
            )

    def _fail_if_hopeless(self, reading: Reading) -> None:
        """Raise an error if all trials fail, instead of starting new ones for ever."""
        self._failed.update([row.number for row in reading.ended if row.state == "failed"])
        if self._failed_before is None:
            self._failed_before = len(self._failed)
        new = len(self._failed) - self._failed_before
        if new >= MAX_FAILURES and not any(view.reports for view in reading.snapshot.trials):
            raise DeadlineError(
                f"{new} trials failed and none has reported: fix the objective (the errors are "
                "above) and start the worker again; the study continues."
            )

    @property
    def is_elected(self) -> bool:
        """Whether the last election succeeded."""
        return self._term is not None

    def try_elect(self) -> int | None:
        """The current term if this planner is elected; it asks the table a few times in a lease.

        An old term does no harm in between, because every write checks it.
        """
        now = self._clock()
        if now >= self.next_election:
            elected = self._table.elect_planner(self._worker_id)
            self.next_election = now + self._table.ttl / 6
            self._reap_next = elected is not None
            if elected is None:
                self._term = None
            elif self._term is None or self._term.number != elected:
                self._term = _Term(elected)
                self._opener.begin_term()
                self._reader.begin_term()
        return None if self._term is None else self._term.number

    def _stay_elected(self) -> None:
        """Stay elected in a tick that takes long.

        Raises:
            LeaseLost: Another term has begun.
        """
        before = self._term
        self.try_elect()
        if self._term is not before:
            raise LeaseLost("Another planner was elected.")

    def _quiet_until(self, term: _Term, reading: Reading, plan: Plan) -> float:
        """Until when a plan that was carried out stays the same if nothing but time changes."""
        if plan.holds_until is None or term.idle_plans:
            return -math.inf
        closes = reading.snapshot.deadline
        leases = [worker.lease for worker in reading.workers]
        return min(plan.holds_until, closes, reading.reap_from, term.gate_changes_at, *leases)

    def _plan(self, reading: Reading) -> tuple[Plan, Plan]:
        """The study's plan for its slots, and its plan for all slots in reach."""
        snapshot = reading.snapshot
        self._bound_planner.update(reading)
        reach = sum(reading.reach.values())
        alone = reach == snapshot.capacity > 0 and reach >= self._max_pool_slots
        if alone or snapshot.money is not None:  # a study with a budget sizes its pool itself
            plan = self._bound_planner.plan(self._policy, reading)
            return plan, plan
        unconstrained = unconstrained_plan(self._policy, reading, self._max_pool_slots)
        if snapshot.capacity == 0:
            return idle_plan(snapshot, unconstrained), unconstrained
        return self._bound_planner.plan(self._policy, reading), unconstrained

    def _set_claim(self, term: _Term, reading: Reading, unconstrained: Plan) -> None:
        """Write the study's claim: when it changes, and a few times in a lease."""
        now, claim = self._clock(), self._claim_estimator.estimate(reading, unconstrained)
        before = term.claim
        same = before is not None and (before.live, before.most) == (claim.live, claim.most)
        if not same or now >= term.claim_again_at:
            self._table.set_claim(self._worker_id, term.number, claim)
            term.claim, term.claim_again_at = claim, now + self._table.ttl / 6

    def _write(self, term: _Term, reading: Reading, plan: Plan, seconds: float) -> bool:
        current = reading.trials
        orders = {
            number: order
            for number, order in plan.orders.items()
            if not isinstance(order, Pause) or current[number].mode != "pause"
        }
        for given_up in current.values():  # the worker died in between
            if given_up.mode == "stop" and given_up.owner is None and given_up.alive:
                orders[given_up.number] = Retire(given_up.reason)
        self._keep_the_best(orders)
        slots = sum(reading.capacities.values())  # a policy may ask for more
        for opening in plan.openings[:slots]:
            if opening.parent is not None and opening.parent not in current:
                raise DeadlineError(
                    f"The policy's new trial is to start from trial {opening.parent}, which the "
                    "study does not have: give Opening the number of a trial in the snapshot."
                )
            number = self._opener.open(term.number, opening.params, opening.parent)
            orders[number] = Run(1, f"starts: {opening.reason}")
        for opened in range(min(plan.start, slots - len(plan.openings))):
            if opened > 0 and self._opener.exhausted():
                break
            number = self._opener.open(term.number)
            orders[number] = Run(1, f"starts: {plan.start_reason}")
        reasons = {
            number: order.reason
            for number, order in orders.items()
            if isinstance(order, Retire) and number in current and current[number].owner is None
        }
        self._end.retire(term.number, reasons)
        for number in reasons:
            del orders[number]
        bounds = self._bound_planner.bindings
        placed = assign_workers(orders, reading.capacities, current, bounds, spread_rules(reading))
        rows = changed_assignments(fit_to_batches(placed, current), current)
        rows += self._bound_planner.reason_changes(current)
        for part in batches(rows):
            self._table.write_plan(self._worker_id, term.number, part, seconds)
        term.written = reading, plan
        return bool(rows)

    def _write_gate(self, term: _Term, is_open: bool, snapshot: Snapshot) -> None:
        """Write whether new trials may start, once that has held for as long as a start takes.

        It is shown to users; plans change their minds more often.
        """
        now = snapshot.now
        if is_open == term.gate:
            term.gate_changes_at = math.inf
            return
        takes = 0.0 if term.gate is None else snapshot.overhead.total
        term.gate_changes_at = min(term.gate_changes_at, now + takes)
        if now >= term.gate_changes_at:
            self._table.set_gate(self._worker_id, term.number, is_open)
            term.gate, term.gate_changes_at = is_open, math.inf

    def _is_unchanged(self, term: _Term, reading: Reading, plan: Plan) -> bool:
        """Whether this same plan wrote nothing before and no process has written since."""
        if term.written is None:
            return False
        before, followed = term.written
        return (
            (plan is followed or plan == followed)
            and plan.new_trials == 0
            and before.trials == reading.trials
            and before.capacities == reading.capacities
        )

    def _keep_the_best(self, orders: dict[int, Order]) -> None:
        """Keep the trial with the best model, whatever its rank."""
        for number, order in orders.items():
            if isinstance(order, Retire) and self._best_model.belongs_to(number):
                orders[number] = Pause("holds the best model so far")

    def _is_finished(self, term: _Term, reading: Reading, plan: Plan) -> bool:
        """Whether the study is over before its deadline; it must hold in two readings.

        Judged by its plan with all slots: a study that only waits for a slot is not over, even if
        all hosts are drained, nor is a study with a held trial that may resume.
        """
        busy = plan.slots > 0 or plan.gate_open or bool(plan.pool_slots)
        busy = busy or bool(reading.snapshot.requests) or not any(reading.reach.values())
        busy = busy or bool(self._bound_planner.wait_reasons)  # their host may come back
        term.idle_plans = 0 if busy else term.idle_plans + 1
        return term.idle_plans >= 2

    def _close(self, term: int, reading: Reading, orders: Orders) -> bool:
        """Stop paying for unused slots and end all trials."""
        if self._pool_budget is not None and orders.pool_slots:
            seen = orders.pool_slots, orders.funds_end
            if not self._table.resize_pool(self._worker_id, term, 0, orders.end, seen=seen):
                return False  # a user has just extended it, or its price has changed
        return self._end.settle(term, reading, orders.deadline)
