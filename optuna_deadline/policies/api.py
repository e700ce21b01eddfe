"""The interface of a policy: a snapshot of the study goes in, a plan for every trial comes out.

All are immutable values. The snapshot has the trials, the slots and the money at one instant; the
plan has an order for every live trial. Workers carry it out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from optuna_deadline._numbers import is_count, plain_number
from optuna_deadline.forecasting.regimes import seconds_between
from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies.curve import NO_REPORTS, ReportCurve
from optuna_deadline.policies.curve import WORST as WORST
from optuna_deadline.policies.curve import Report as Report

_ROUNDING = 1e-9
_NUMBER = attrgetter("number")


@dataclass(frozen=True)
class Money:
    """A study's budget, and how slots are billed.

    Slots come in nodes. A node is billed from its request, including its start-up, until it
    has been returned, in whole units of the granularity.

    Attributes:
        budget: The amount that may be spent.
        spent: The amount billed so far, including started units.
        price: Price of one slot for one second.
        granularity: Seconds of a billing unit.
        startup: Billed seconds from the request of a node until its slots can be used.
        minimum: Minimum number of billed seconds of a node.
        node: Slots that are bought together.
        offer: Maximum number of slots.
        held: Slots that are paid for now, including nodes that still start.
        ahead: The part of ``spent`` that pays for future time: started units and minimum charges.
    """

    budget: float
    spent: float
    price: float
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1
    offer: int = 1024
    held: int = 0
    ahead: float = 0.0

    @property
    def left(self) -> float:
        """The amount that may still be spent, never negative."""
        return max(0.0, self.budget - self.spent)

    @property
    def entrance(self) -> float:
        """The cost of a node before its first step."""
        return self.charge(self.startup)

    def charge(self, seconds: float) -> float:
        """The cost of one node held for some seconds, with the provider's rounding."""
        held = max(seconds, self.minimum, 0.0)
        if self.granularity > 0:
            held = max(1, math.ceil(held / self.granularity - _ROUNDING)) * self.granularity
        return self.price * self.node * held

    def nodes(self, slots: int) -> int:
        """The number of nodes for some slots."""
        return -(-slots // self.node)

    @property
    def affordable(self) -> int:
        """The maximum number of slots, in whole nodes, that can be held from now on.

        Held nodes cost nothing more at this moment; each further node costs its entrance.
        """
        have = self.nodes(self.held)
        if self.left <= 0:
            return 0
        most = self.offer // self.node
        if self.entrance > 0:
            most = min(most, have + math.floor(self.left / self.entrance + _ROUNDING))
        return most * self.node


@dataclass(frozen=True)
class TrialView:
    """What a policy knows about one trial."""

    number: int
    #: ready, running, paused, retired, failed, complete; placed: its order is given, by a request
    #: or since it has just started, and its slots are not among those to plan
    state: str
    slots: int = 0  #: its slots in the last plan; 0 while paused
    reports: ReportCurve = NO_REPORTS  #: any sequence of reports becomes one
    changed: float = 0.0  #: when its plan last changed
    horizon: int | None = None  #: the last step of the objective
    step_seconds: float | None = None  #: seconds of a step on one slot
    batch: int | None = None  #: the batch that its gang size must divide; None for any size
    slot_limit: int | None = None  #: the most slots that it can train on; applied to every policy
    pausable: bool | None = None  #: False once it has reported without its segment
    starting: bool = False  #: whether it has its slots and has not made a step there
    #: after which steps a step takes how many times as long as before, as other trials have shown
    changes_ahead: Sequence[tuple[float, float]] = ()
    #: its parameters and user attributes, for a policy with ``reads_parameters = True``
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    user_attrs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.reports, ReportCurve):
            object.__setattr__(self, "reports", ReportCurve(self.reports))

    def seconds_to(self, step: float, pace: float | None = None) -> float | None:
        """Seconds until a step on one slot, with the changes of pace that are ahead.

        Args:
            step: The step.
            pace: Seconds of a step of a trial whose pace is not known.

        Returns:
            None if no pace is known.
        """
        pace = self.step_seconds or pace
        if pace is None:
            return None
        return seconds_between(self.step, step, pace, self.changes_ahead)

    @property
    def alive(self) -> bool:
        """Whether it can still be trained."""
        return self.state in ("ready", "running", "paused")

    @property
    def running(self) -> bool:
        """Whether the last plan gives it slots."""
        return self.alive and self.slots > 0

    @property
    def step(self) -> int:
        """The last reported step, 0 before the first report."""
        return self.reports.last.step

    @property
    def trained(self) -> float:
        """Seconds of training until the last report."""
        return self.reports.last.trained

    @property
    def last_score(self) -> float:
        """The last report; the worst score before the first."""
        return self.reports.last.score

    @property
    def best_score(self) -> float:
        """The best report."""
        return self.reports.best_score


class Request(NamedTuple):
    """What a user asks for a trial; :class:`~optuna_deadline.policies.wrappers.RequestPolicy`."""

    number: int
    held: bool = False  #: it is to have no slots
    pinned: int | None = None  #: it is to have this many slots
    why: str = ""  #: if the request is not a user's


@dataclass(frozen=True)
class Snapshot:
    """The study at one instant. Times are the database's seconds."""

    now: float
    started: float
    deadline: float  #: when training must stop: the study's, less what its end takes
    capacity: int  #: slots of the pool that live workers offer
    largest_gang: int  #: slots of the largest worker, or of workers that can share a gang
    trials: tuple[TrialView, ...] = ()  #: by their numbers
    speedup: Speedup = field(default_factory=Speedup)
    overhead: Overhead = field(default_factory=Overhead)
    money: Money | None = None  #: None if slots are free; then the capacity is given
    requests: tuple[Request, ...] = ()  #: applied to every policy, which sees none
    exhausted: bool = False  #: the search is exhausted: no new trial is opened
    max_slots: int | None = None  #: of any trial; policies see it as the largest gang

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - self.now)

    @cached_property
    def alive(self) -> tuple[TrialView, ...]:
        """The trials that need an order."""
        return tuple([trial for trial in self.trials if trial.alive])


@dataclass(frozen=True)
class Run:
    """Train on this many slots."""

    slots: int
    reason: str


@dataclass(frozen=True)
class Pause:
    """Save and leave the slots; the trial may resume."""

    reason: str


@dataclass(frozen=True)
class Retire:
    """End the trial: it can no longer win."""

    reason: str


Order = Run | Pause | Retire


@dataclass(frozen=True)
class Opening:
    """A new trial with parameters that the policy has chosen, on one slot.

    The objective gets them from ``trial.suggest_...``, as it does those of
    :meth:`optuna.study.Study.enqueue_trial`; the sampler chooses those that are missing.
    """

    params: Mapping[str, Any] = field(hash=False)
    reason: str
    #: the trial whose newest checkpoint it starts from, at that step; None starts at step 0
    parent: int | None = None


@dataclass(frozen=True)
class Plan:
    """An order for each live trial, the number of new trials, and the gate.

    With a budget, the pool grows and shrinks: orders are for the present slots, and ``pool_slots``
    is the wanted number, to be bought or returned.

    ``holds_until`` saves plans: before that instant, the policy gives the same orders (except for
    their reasons) for a study in which only the time has changed.

    ``looks`` saves waiting: by trial, the step of the next report that decides about it, such as
    the one at its next rung. After that report, and after each one of a trial without an entry,
    the trial waits for a moment until a plan has seen the report.
    """

    orders: Mapping[int, Order] = field(default_factory=dict)
    start: int = 0  #: new trials, one slot each
    start_reason: str = "a free slot, and enough time to matter"
    gate_open: bool = True
    pool_slots: int | None = None  #: the wanted number of slots; None keeps the present one
    holds_until: float | None = field(default=None, compare=False)  #: None: until any change
    looks: Mapping[int, int] = field(default_factory=dict, compare=False)
    openings: tuple[Opening, ...] = ()  #: new trials with given parameters, before the others

    @property
    def new_trials(self) -> int:
        """The number of trials to open."""
        return self.start + len(self.openings)

    @cached_property
    def slots(self) -> int:
        """Slots that the plan uses."""
        return self.new_trials + sum([o.slots for o in self.orders.values() if isinstance(o, Run)])


def checked(plan: object, name: str, snapshot: Snapshot) -> Plan:
    """What a policy of this name has returned for a snapshot, which may be a user's.

    Raises:
        TypeError: It is no plan.
        ValueError: It cannot be carried out.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"The policy {name} returned {type(plan).__name__}; return a Plan for all trials."
        )
    trials = snapshot.trials
    words = ""
    if not isinstance(plan.orders, Mapping):
        words = f"orders={plan.orders!r}; give a mapping from the numbers of trials"
    elif not _is_whole(plan.start, 0):
        words = f"start={plan.start!r}; give a whole number of new trials"
    for number, order in () if words else plan.orders.items():
        place = bisect_left(trials, number, key=_NUMBER) if _is_whole(number, 0) else len(trials)
        if place == len(trials) or trials[place].number != number:
            words = f"an order for {number!r}; the snapshot has no such trial"
        elif not isinstance(order, (Run, Pause, Retire)):
            words = f"{order!r} for trial {number}; give Run, Pause or Retire"
        elif isinstance(order, Run) and not _is_whole(order.slots, 1):
            words = f"{order!r} for trial {number}; give a whole number of slots"
    if words:
        raise ValueError(f"The policy {name} returned a plan with {words}.")
    runs = [order.slots for order in plan.orders.values() if isinstance(order, Run)]
    numbers = (plan.start, *plan.orders, *runs, *plan.looks, *plan.looks.values())
    return plan if set(map(type, numbers)) <= {int} else _with_ints(plan)


def _with_ints(plan: Plan) -> Plan:
    """The same plan without NumPy's numbers, which databases do not take."""
    return replace(
        plan,
        orders={
            int(number): replace(order, slots=int(order.slots))
            if isinstance(order, Run)
            else order
            for number, order in plan.orders.items()
        },
        start=int(plan.start),
        pool_slots=plain_number(plan.pool_slots),
        looks={int(number): int(step) for number, step in plan.looks.items()},
    )


def _is_whole(value: object, least: int) -> bool:
    return is_count(plain_number(value), least)


class Policy(Protocol):
    """Anything with ``plan``: a pure, deterministic function of the snapshot.

    With an attribute ``reads_parameters = True``, it sees the parameters and user attributes of
    the trials.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return an order for every live trial."""
