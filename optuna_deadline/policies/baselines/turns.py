"""Two ways of taking turns that do not look at the curves: round robin and least attained service.

*Round robin* gives every open trial a turn, who has waited longest first.

*Least attained service* is the discretised 2D-LAS of Tiresias (Gu et al., NSDI 2019, and the
simulator of its authors): a trial's service is its training time by its slots; it begins in the
first queue and sinks to the next whenever its service passes a limit. Queues are served in their
order and each first in, first out; who has waited for long is lifted to the first queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan
from optuna_deadline.policies.baselines.time_sharing import TimeShared, waited
from optuna_deadline.policies.single import Claim, alive, one_slot_each
from optuna_deadline.policies.snapshot import Snapshot, TrialView


def serve(
    policy: TimeShared,
    snapshot: Snapshot,
    first: Sequence[Claim],
    after: Sequence[Claim],
    in_time: bool,
) -> Plan:
    """Turns in hand, then the first claims, then newcomers, then the other claims."""
    claims = [*first, *after]
    held = policy.in_turn(snapshot)
    in_turn = [claim for claim in claims if claim.trial.number in held]
    first, after = (
        [claim for claim in some if claim.trial.number not in held] for some in (first, after)
    )
    newcomers = policy.room(snapshot) if in_time else 0
    plan = one_slot_each(snapshot, [*in_turn, *first], newcomers=newcomers, leftovers=after)
    return replace(plan, gate_open=in_time and policy.newcomers(snapshot) != 0)


@dataclass(frozen=True)
class RoundRobin(TimeShared):
    """Turns of equal length for everybody."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Trials that were never served first, then who has waited longest."""
        queue = sorted(
            alive(snapshot),
            key=lambda trial: (-waited(snapshot, trial), not trial.running, trial.number),
        )
        claims = [Claim(trial, "its turn") for trial in queue]
        return serve(self, snapshot, [], claims, self.in_time(snapshot))


@dataclass(frozen=True)
class LeastAttainedService(TimeShared):
    """Those first that had least, in queues.

    Args:
        limits: The service, in slot-seconds, at which a trial sinks to the next queue; None for
            4 and 16 turns, our choice (the authors' hour and two hours suit a cluster's jobs).
        patience: A trial is lifted to the first queue once it has waited this many times as long
            as it was trained. The authors then forget its service; here a plan sees no more than
            the wait, so it is lifted for one turn.
    """

    limits: tuple[float, ...] | None = None
    patience: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = self.limits or ()
        if list(limits) != sorted(limits) or any(limit <= 0 for limit in limits):
            raise DeadlineError(f"limits must rise from above 0, but got {self.limits!r}.")
        if not self.patience > 0:
            raise DeadlineError(f"patience must be above 0, but got {self.patience!r}.")

    def plan(self, snapshot: Snapshot) -> Plan:
        """The first queue, newcomers, then the other queues."""
        turn = self.quantum_seconds(snapshot)
        limits = (4 * turn, 16 * turn) if self.limits is None else self.limits
        queues = {t.number: self._queue(snapshot, t, limits) for t in alive(snapshot)}
        ranked = sorted(alive(snapshot), key=lambda trial: (queues[trial.number], trial.number))
        claims = [Claim(t, f"the service of queue {queues[t.number]}") for t in ranked]
        return serve(
            self,
            snapshot,
            [claim for claim in claims if queues[claim.trial.number] == 0],
            [claim for claim in claims if queues[claim.trial.number] > 0],
            self.in_time(snapshot),
        )

    def _queue(self, snapshot: Snapshot, trial: TrialView, limits: Sequence[float]) -> int:
        if trial.reports and waited(snapshot, trial) >= self.patience * trial.trained:
            return 0
        return bisect_right(limits, trial.trained)
