"""XGBoost under a deadline: a booster that pauses and resumes between two rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xgboost

from optuna_deadline.rounds import BoosterCallback, metric, no_cross_validation

__all__ = ["DeadlineCallback"]


class DeadlineCallback(BoosterCallback, xgboost.callback.TrainingCallback):
    """Reports to Optuna after each round, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two rounds, on
    one slot. A checkpoint is a folder with the booster as ``model.ubj``.

    A resumed training is the same as one without a pause, unless it samples rows, columns or the
    trees of ``dart``: then it draws others. Add :attr:`rounds_done` to the seed, so that it does
    not draw the first ones again. Early stopping counts its rounds anew after a pause, and so does
    a schedule: let it add :attr:`rounds_done`.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, as in ``"valid-auc"``: the name of the data in ``evals``,
            and that of the metric.
        rounds: The number of rounds of a whole training.
        report_every: Rounds between two reports.
        save_every: Seconds between two checkpoints without a best value, under a worker.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call :meth:`result` after each.

    Raises:
        DeadlineError: The objective has a second training without a name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, "valid-auc", rounds=500)
        booster = xgboost.train(
            params | {"seed": 7 + deadline.rounds_done},
            train,
            num_boost_round=deadline.rounds_left,
            evals=[(valid, "valid")],
            xgb_model=deadline.model,
            callbacks=[deadline],
        )
        return deadline.result(booster)
        ```
    """

    file = "model.ubj"
    _remedy = "pass xgb_model=deadline.model"

    def before_training(self, model: Any) -> Any:
        """Begin; called by XGBoost."""
        self._rounds.begin()
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report, save, leave or prune; called by XGBoost."""

        anew = self.rounds_done and isinstance(model, xgboost.Booster)
        if anew and model.num_boosted_rounds() == epoch + 1:
            raise self._rounds.begun_anew()

        def value() -> float:
            found = {
                f"{data}-{name}": _last(values)
                for data, metrics in evals_log.items()
                for name, values in metrics.items()
            }
            return metric(found, self.monitor)

        move = self._rounds.after(self.rounds_done + epoch + 1, value)
        return self._rounds.obey(move, lambda folder: self._write(model, folder))

    def _write(self, model: Any, folder: Path) -> None:
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        if not isinstance(booster, xgboost.Booster):
            raise no_cross_validation("xgboost.cv")
        booster.save_model(folder / self.file)


def _last(values: Any) -> float:
    """The newest value; that of a cross-validation has a deviation beside it."""
    newest = values[-1]
    return float(newest[0] if isinstance(newest, tuple) else newest)
