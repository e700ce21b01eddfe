"""LightGBM under a deadline: a booster that pauses and resumes between two rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
from lightgbm.callback import CallbackEnv, EarlyStopException

from optuna_deadline.rounds import BoosterCallback, metric, no_cross_validation

__all__ = ["DeadlineCallback"]

_BOOSTING = ("boosting", "boosting_type", "boost", "data_sample_strategy")  # names of one option
#: Each begins anew with ``init_model``: what it drops or averages, rounds without sampling.
_UNRESUMED = {"dart", "goss", "rf", "random_forest"}


class DeadlineCallback(BoosterCallback):
    """Reports to Optuna after each round, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two rounds, on
    one slot. A checkpoint is a folder with the booster as ``model.txt``.

    A resumed training is the same as one without a pause, unless it samples rows or columns: then
    it draws others. Add :attr:`rounds_done` to the seed, so that it does not draw the first ones
    again. Early stopping counts its rounds anew after a pause, and so does a schedule: let it add
    :attr:`rounds_done`. With ``dart``, ``rf`` and ``goss`` a trial keeps its slot.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, as in ``"valid_0-auc"``: the name of the validation set, and
            that of the metric.
        rounds: The number of rounds of a whole training.
        report_every: Rounds between two reports.
        save_every: Seconds between two checkpoints without a best value, under a worker.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call :meth:`result` after each.

    Raises:
        DeadlineError: The objective has a second training without a name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, "valid_0-auc", rounds=500)
        booster = lightgbm.train(
            params | {"seed": 7 + deadline.rounds_done},
            lightgbm.Dataset(x, y),
            num_boost_round=deadline.rounds_left,
            valid_sets=[valid],
            init_model=deadline.model,
            callbacks=[deadline],
        )
        return deadline.result(booster)
        ```
    """

    file = "model.txt"
    _remedy = "pass init_model=deadline.model"
    order = 20  #: among callbacks, before early stopping

    @property
    def rounds_left(self) -> int:
        """The rounds that this segment trains; at least one, as LightGBM refuses to train none."""
        return max(super().rounds_left, 1)

    def __call__(self, env: CallbackEnv) -> None:
        """Report, save, leave or prune; called by LightGBM after each round."""
        found = env.evaluation_result_list or []
        if not self._rounds.left:  # LightGBM has trained one round more
            raise EarlyStopException(env.begin_iteration - 1, found)
        if env.iteration == env.begin_iteration:
            self._rounds.begin()
        if anew := _UNRESUMED & {str(env.params.get(name)) for name in _BOOSTING}:
            self._rounds.stay(f"LightGBM cannot continue {anew.pop()!r} from a model")

        def value() -> float:
            return metric({f"{one[0]}-{one[1]}": one[2] for one in found}, self.monitor)

        move = self._rounds.after(env.iteration + 1, value)
        if self._rounds.obey(move, lambda folder: self._write(env.model, folder)):
            raise EarlyStopException(env.iteration, found)

    def _write(self, model: Any, folder: Path) -> None:
        if isinstance(model, lightgbm.CVBooster):
            raise no_cross_validation("lightgbm.cv")
        booster = getattr(model, "booster_", model)
        booster.save_model(str(folder / self.file))
