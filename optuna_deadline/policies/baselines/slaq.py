"""SLAQ (Zhang et al., SoCC 2017): slots to those whose loss is predicted to fall most.

The loss of each trial is extrapolated from a weighted fit of its history, and the slots go
greedily to the largest fall within the next turn. Losses of different kinds are made comparable
by the largest fall that the trial has shown. The paper shares CPU cores between Spark jobs and
gives one to each; with more trials than slots a trial gets one slot or none, which is our
reconstruction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan
from optuna_deadline.policies.baselines.decay import Decay, fit_decay
from optuna_deadline.policies.baselines.time_sharing import TimeShared, step_seconds
from optuna_deadline.policies.baselines.turns import serve
from optuna_deadline.policies.single import Claim, alive
from optuna_deadline.policies.snapshot import Report, Snapshot, TrialView
from optuna_deadline.policies.trial_index import Overview

#: Reports from which a curve can be extrapolated.
_FEWEST = 3


@dataclass(frozen=True)
class Slaq(TimeShared):
    """The policy of SLAQ.

    Args:
        normalised: Divide the predicted fall by the largest of the trial's fit in one turn.
        memory: Reports until a report weighs half as much in the fit.
    """

    normalised: bool = True
    memory: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory > 0:
            raise DeadlineError(f"memory must be above 0, but got {self.memory!r}.")

    def plan(self, snapshot: Snapshot) -> Plan:
        """Who cannot be predicted yet, newcomers, then the largest predicted fall."""
        unknown = [trial for trial in alive(snapshot) if len(trial.reports) < _FEWEST]
        known = [trial for trial in alive(snapshot) if len(trial.reports) >= _FEWEST]
        turn, middle = self.quantum_seconds(snapshot), step_seconds(snapshot)
        view = self.overview(snapshot.trials)
        falls = {trial.number: self._fall(view, trial, turn, middle) for trial in known}
        known.sort(key=lambda trial: (-falls[trial.number], not trial.running, trial.number))
        unknown.sort(key=lambda trial: (not trial.running, trial.number))
        return serve(
            self,
            snapshot,
            [Claim(trial, "too few reports to predict its loss") for trial in unknown],
            [Claim(trial, "its loss is predicted to fall most") for trial in known],
            self.in_time(snapshot),
        )

    def _fall(self, view: Overview, trial: TrialView, turn: float, middle: float | None) -> float:
        """How far the loss falls in a turn of so many seconds."""
        if not math.isfinite(trial.last_score):
            return -math.inf
        pace = trial.step_seconds or middle
        steps = turn / pace if pace else 1.0
        fit = view.of_trial(trial, self.memory, lambda trial: _fit(trial.reports, self.memory))
        if fit is None:
            return 0.0
        fall = fit.fall(trial.step, steps)
        if not self.normalised:
            return fall
        first = next(r.step for r in trial.reports if math.isfinite(r.score))
        largest = fit.fall(first, steps)
        return fall / largest if largest > 0 else 0.0


def _fit(reports: tuple[Report, ...], memory: float) -> Decay | None:
    points = [(report.step, -report.score) for report in reports if math.isfinite(report.score)]
    return fit_decay([k for k, _ in points], [loss for _, loss in points], memory)
