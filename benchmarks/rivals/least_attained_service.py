"""Least attained service: the discretised 2D-LAS of Tiresias.

Follows Gu et al., NSDI 2019, and the simulator of its authors. A trial's service is its training
time by its slots. A trial starts in the first queue and moves to the next when its service passes
a limit. Queues are served in order, each first in, first out. A trial that has waited long returns
to the first queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan, Snapshot, TrialView
from optuna_deadline.policies.base import SlotCandidate
from optuna_deadline.policies.baselines.time_sharing import TimeShared, serve, waited


@dataclass(frozen=True)
class LeastAttainedService(TimeShared):
    """Trials with the least service first, in queues.

    Args:
        limits: The service, in slot-seconds, at which a trial moves to the next queue; None for
            4 and 16 turns, our choice (the authors' hour and two hours suit a cluster's jobs).
        patience: A trial returns to the first queue once it has waited this many times as long as
            it was trained. The authors then reset its service; here a plan sees only the wait, so
            it returns for one turn.
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
        queues = {t.number: self._queue(snapshot, t, limits) for t in snapshot.alive}
        ranked = sorted(snapshot.alive, key=lambda trial: (queues[trial.number], trial.number))
        claims = [SlotCandidate(t, f"the service of queue {queues[t.number]}") for t in ranked]
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
