"""Optuna's own pruners in the simulator, in virtual time.

Each trial of the simulation is a trial of an Optuna study in memory, gets every report, and
ends if ``should_prune`` returns True. As in ``study.optimize``, each slot trains one trial at a
time to its end, whatever the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import optuna
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    PatientPruner,
    SuccessiveHalvingPruner,
)
from optuna.trial import Trial, TrialState

from optuna_deadline.policies.api import WORST, Plan, Snapshot, TrialView
from optuna_deadline.policies.base import retire_beaten

#: By the steps of a whole training. The pruners have their defaults, and the length of a training
#: if they take it; the patience is a tenth of it.
PEERS: dict[str, Callable[[int], BasePruner]] = {
    "optuna_median": lambda _: MedianPruner(),
    "optuna_halving": lambda _: SuccessiveHalvingPruner(),
    "optuna_hyperband": lambda steps: HyperbandPruner(max_resource=steps),
    "optuna_patient": lambda steps: PatientPruner(MedianPruner(), max(1, steps // 10)),
}


class OptunaPruner:
    """A policy that asks one of Optuna's pruners; each study needs its own object.

    Args:
        pruner: The pruner.
        seed: The seed of the study's name, by which Hyperband assigns trials to brackets.
        n_trials: The number of trials, as in ``study.optimize``.
    """

    def __init__(self, pruner: BasePruner, seed: int, n_trials: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            study_name=f"study {seed}", direction="maximize", pruner=pruner
        )
        self._n_trials = n_trials
        self._trials: list[Trial] = []
        self._last_step: dict[int, int] = {}  # the last reported step by trial
        self._ended: set[int] = set()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Report new values, and retire the trials that the pruner prunes."""
        while len(self._trials) < len(snapshot.trials):
            self._trials.append(self._study.ask())
        for trial in snapshot.trials:
            if trial.state == "complete" and trial.number not in self._ended:
                self._tell(trial)
                self._ended.add(trial.number)
                self._study.tell(trial.number, trial.last_score)

        def beaten(trial: TrialView) -> str | None:
            number = trial.number
            if number not in self._ended and self._tell(trial):
                self._ended.add(number)
                self._study.tell(number, state=TrialState.PRUNED)
            return "pruned" if number in self._ended else None

        left = max(0, self._n_trials - len(snapshot.trials))
        return retire_beaten(snapshot, beaten, "not pruned", left)

    def _tell(self, trial: TrialView) -> bool:
        """Report new values; return whether the pruner prunes after one of them."""
        theirs, last = self._trials[trial.number], self._last_step.get(trial.number, 0)
        self._last_step[trial.number] = trial.step
        for report in trial.reports:
            if report.step > last:
                theirs.report(math.nan if report.score == WORST else report.score, report.step)
                if theirs.should_prune():
                    return True
        return False
