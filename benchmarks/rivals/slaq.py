"""SLAQ (Zhang et al., SoCC 2017): slots for the trials with the largest predicted fall of loss.

The loss of each trial is extrapolated from a weighted fit of its history, and the slots go
greedily to the largest fall within the next turn. Losses of different kinds are compared by the
largest fall that the trial has shown. The paper shares CPU cores between Spark jobs with at least
one each; with more trials than slots a trial gets one slot or none, which is our reconstruction.

The model is that of sublinearly converging methods: ``loss(k) = 1 / (a k^2 + b k + c) + d`` with
``a`` and ``b`` not negative, fitted by weighted least squares in ``1 / (loss - d)``, in which it
is linear, for several floors ``d``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan, Report, Snapshot, TrialView
from optuna_deadline.policies.base import SlotCandidate
from optuna_deadline.policies.baselines.time_sharing import TimeShared, serve, step_seconds
from optuna_deadline.policies.trial_index import TrialIndex

#: Floors to try: how many ranges of the losses they are below the lowest loss.
_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Decay:
    """A fitted loss."""

    a: float
    b: float
    c: float
    d: float

    def __call__(self, step: float) -> float:
        """The loss at a step."""
        return 1.0 / (self.a * step * step + self.b * step + self.c) + self.d

    def fall(self, step: float, more: float) -> float:
        """How far the loss falls in ``more`` steps from a step on."""
        return self(step) - self(step + more)


def fit_decay(steps: Sequence[float], losses: Sequence[float], memory: float) -> Decay | None:
    """The fit with the smallest squared error; None if nothing falls.

    Args:
        steps: Rising.
        losses: Finite.
        memory: Points from the end at which a point weighs half as much as the last.
    """
    if len(losses) < 3:
        return None
    k, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    low, reach = float(y.min()), float(y.max() - y.min())
    if reach <= 0:
        return None
    weights = 0.5 ** (np.arange(len(y))[::-1] / memory)
    floors = low - np.array(_FLOORS)[:, None] * reach  # a row for each from here on
    with np.errstate(all="ignore"):  # a loss may fall by less than a float can invert
        inverse = 1.0 / (y - floors)
        # An error of the loss weighs as the square of what it does to the inverse.
        emphasis = np.sqrt(weights) / inverse**2
        shapes = _solve(k, inverse * emphasis, emphasis)
        a, b, c = shapes.T[:, :, None]
        missed = 1.0 / (a * k * k + b * k + c) + floors - y
        errors = np.sum(weights * missed**2, axis=1)
        positive = shapes @ (k[0] ** 2, k[0], 1.0) > 0  # and then on all steps
    errors = np.where(positive & np.isfinite(errors), errors, np.inf)
    best = int(np.argmin(errors))
    if np.isinf(errors[best]):
        return None
    a, b, c = map(float, shapes[best])
    return Decay(a, b, c, float(floors[best, 0]))


def _solve(
    k: NDArray[np.float64], wanted: NDArray[np.float64], emphasis: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``a``, ``b``, ``c``, none negative, for each row; NaN if there are none."""
    columns = np.stack([k * k, k, np.ones_like(k)], axis=1)
    matrices = columns * emphasis[:, :, None]
    found = np.full((len(wanted), 3), np.nan)
    finite = np.isfinite(matrices).all(axis=(1, 2)) & np.isfinite(wanted).all(axis=1)
    for row in np.flatnonzero(finite):
        found[row] = nnls(matrices[row], wanted[row])[0]
    return found


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
        """Trials without a prediction, new trials, then the largest predicted fall."""
        unknown = [trial for trial in snapshot.alive if len(trial.reports) < _FEWEST]
        known = [trial for trial in snapshot.alive if len(trial.reports) >= _FEWEST]
        turn, middle = self.quantum_seconds(snapshot), step_seconds(snapshot)
        view = self.index_of(snapshot.trials)
        falls = {trial.number: self._fall(view, trial, turn, middle) for trial in known}
        known.sort(key=lambda trial: (-falls[trial.number], not trial.running, trial.number))
        unknown.sort(key=lambda trial: (not trial.running, trial.number))
        return serve(
            self,
            snapshot,
            [SlotCandidate(trial, "too few reports to predict its loss") for trial in unknown],
            [SlotCandidate(trial, "its loss is predicted to fall most") for trial in known],
            self.in_time(snapshot),
        )

    def _fall(
        self, view: TrialIndex, trial: TrialView, turn: float, middle: float | None
    ) -> float:
        """How far the loss falls in a turn of so many seconds."""
        if not math.isfinite(trial.last_score):
            return -math.inf
        pace = trial.step_seconds or middle
        steps = turn / pace if pace else 1.0
        fit = view.cached_by_reports(
            trial, self.memory, lambda trial: _fit(trial.reports, self.memory)
        )
        if fit is None:
            return 0.0
        fall = fit.fall(trial.step, steps)
        if not self.normalised:
            return fall
        first = next(r.step for r in trial.reports if math.isfinite(r.score))
        largest = fit.fall(first, steps)
        return fall / largest if largest > 0 else 0.0


def _fit(reports: Sequence[Report], memory: float) -> Decay | None:
    points = [(report.step, -report.score) for report in reports if math.isfinite(report.score)]
    return fit_decay([k for k, _ in points], [loss for _, loss in points], memory)
