"""The measured halving of :class:`~optuna_deadline.DeadlinePruner` as a policy of workers.

It retires trials and never pauses one, so it suits objectives that cannot be paused. Each trial
has one slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.policies.api import Plan, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, retire_beaten
from optuna_deadline.policies.measured_halving import Rungs, TimeLeft
from optuna_deadline.policies.trial_index import TrialIndex


@dataclass(frozen=True)
class MeasuredHalving(Resources):
    """Halving by stopping, with a cut that is measured.

    The rungs are counted in reports; ``min_resource`` and ``reduction_factor`` have no part in it.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Retire trials that would not reach the top of their rung even with the usual gain.

        The rule is in :mod:`optuna_deadline.policies.measured_halving`.
        """
        view = self.index_of(snapshot.trials)
        rungs = view.cached_object("measured", Rungs)
        rungs.update(snapshot.trials, view.take_changed())
        newcomers = self.trials_left_to_open(snapshot)

        def beaten(trial: TrialView) -> str | None:
            reports = len(trial.reports)
            if not reports:
                return None
            stride = max(1.0, trial.step / reports)  # steps may begin at 0
            left = self._met_by_a_new_trial(snapshot, view, stride, newcomers)
            reason = rungs.judge(trial.number, reports, left)
            return None if reason is None else str(reason)

        return retire_beaten(snapshot, beaten, "not beaten at its rung", newcomers)

    def _met_by_a_new_trial(
        self, snapshot: Snapshot, view: TrialIndex, stride: float, newcomers: int | None
    ) -> TimeLeft:
        """The time that a new trial would have if it reports each ``stride`` steps."""
        last = self.last_step_of(view.horizon)
        return TimeLeft.at_pace(
            (view.step_seconds or 0.0) * stride,
            left=snapshot.time_left,
            startup=snapshot.overhead.startup,
            horizon=None if last is None else max(1, round(last / stride)),
            to_start=newcomers,
            slots=snapshot.capacity,
        )
