"""Policies that share slots in turns: the length of a turn, and round robin.

The end of a turn costs a start and a stop without training. With turns of ``(1 - x) / x`` such
costs, the share ``x`` of the time is lost, 5 % by default (our choice; Hermes' paper names a
minimal time-sharing overhead and gives no length).

*Round robin* gives every open trial a turn; the one that has waited longest is first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from optuna_deadline.errors import DeadlineError, check_counts
from optuna_deadline.policies.api import Plan, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, SlotCandidate, one_slot_each

#: The share of the time that switching may cost if the quantum is not given.
OVERHEAD_SHARE = 0.05
_SAFETY = 1.1  # times the time that a newcomer is expected to need


@dataclass(frozen=True)
class TimeShared(Resources):
    """The parameters of every policy with turns.

    Args:
        quantum: Seconds that a trial trains before it may be preempted; None keeps the measured
            cost of switching below 5 %, with one step at least.
        open_per_slot: Maximum number of open trials per slot.
    """

    quantum: float | None = None
    open_per_slot: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantum is not None and not 0 < self.quantum < math.inf:
            raise DeadlineError(
                f"quantum must be a number of seconds above 0, but got {self.quantum!r}."
            )
        check_counts(open_per_slot=self.open_per_slot)

    def quantum_seconds(self, snapshot: Snapshot) -> float:
        """Seconds of training in one turn."""
        if self.quantum is not None:
            return self.quantum
        affordable = snapshot.overhead.total * (1 - OVERHEAD_SHARE) / OVERHEAD_SHARE
        return max(affordable, step_seconds(snapshot) or 0.0)

    def in_turn(self, snapshot: Snapshot) -> set[int]:
        """The running trials whose turn is not over, not counting start-ups."""
        turn = snapshot.overhead.startup + self.quantum_seconds(snapshot)
        since = snapshot.now - turn
        return {t.number for t in snapshot.alive if t.running and t.changed > since}

    def in_time(self, snapshot: Snapshot, least_seconds: float = 0.0) -> bool:
        """Whether a trial that starts now can still matter.

        It must be able to come within one reduction factor of the furthest trial, where the next
        rung would still compare the two, with a tenth of the time to spare.

        Args:
            snapshot: The study.
            least_seconds: Seconds that a newcomer must train before it can be compared.
        """
        paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
        if not paces:
            return snapshot.time_left > 0
        reached = [trial.step for trial in snapshot.trials if trial.state != "failed"]
        furthest = max(reached, default=0)
        if (last := self.last_step(snapshot.trials)) is not None:
            furthest = min(furthest, last)
        steps = max(
            self.min_resource, furthest / self.reduction_factor, least_seconds / median(paces)
        )
        needed = _SAFETY * (snapshot.overhead.startup + steps * median(paces))
        return snapshot.time_left > 0 and needed <= snapshot.time_left

    def room(self, snapshot: Snapshot) -> int:
        """The number of new trials that may be opened."""
        open_now = len(snapshot.alive)
        room = max(0, self.open_per_slot * snapshot.capacity - open_now)
        newcomers = self.trials_left_to_open(snapshot)
        return room if newcomers is None else min(room, newcomers)


def step_seconds(snapshot: Snapshot) -> float | None:
    """Seconds of a step on one slot, the median of the trials; None before the first."""
    paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
    return median(paces) if paces else None


def waited(snapshot: Snapshot, trial: TrialView) -> float:
    """Seconds that a trial has been without a slot."""
    return 0.0 if trial.running else max(0.0, snapshot.now - trial.changed)


def serve(
    policy: TimeShared,
    snapshot: Snapshot,
    first: Sequence[SlotCandidate],
    after: Sequence[SlotCandidate],
    in_time: bool,
) -> Plan:
    """Trials in their turn, then the first candidates, newcomers, and the other candidates."""
    claims = [*first, *after]
    held = policy.in_turn(snapshot)
    in_turn = [claim for claim in claims if claim.trial.number in held]
    first, after = (
        [claim for claim in some if claim.trial.number not in held] for some in (first, after)
    )
    newcomers = policy.room(snapshot) if in_time else 0
    plan = one_slot_each(snapshot, [*in_turn, *first], newcomers=newcomers, leftovers=after)
    return replace(plan, gate_open=in_time and policy.trials_left_to_open(snapshot) != 0)


@dataclass(frozen=True)
class RoundRobin(TimeShared):
    """Turns of equal length for all trials."""

    ends_no_trial = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Trials that never ran first, then those that have waited longest."""
        queue = sorted(
            snapshot.alive,
            key=lambda trial: (-waited(snapshot, trial), not trial.running, trial.number),
        )
        claims = [SlotCandidate(trial, "its turn") for trial in queue]
        return serve(self, snapshot, [], claims, self.in_time(snapshot))
