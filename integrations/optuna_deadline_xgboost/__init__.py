"""XGBoost under a deadline: a booster that pauses and resumes between two rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xgboost
from xgboost.callback import CallbackContainer, EarlyStopping, TrainingCallback

from optuna_deadline.boosting import BoosterCallback, no_cross_validation
from optuna_deadline.callers import running
from optuna_deadline.rounds import metric

__all__ = ["DeadlineCallback"]

_OF_SEGMENT = "generic_param"  # the seed, the threads and the device


class DeadlineCallback(BoosterCallback, TrainingCallback):
    """Reports to Optuna after each round, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two rounds, on
    one slot. A checkpoint is a folder with the booster as ``model.ubj``.

    A resumed training is the same as one without a pause, unless it samples rows, columns or the
    trees of ``dart``: then it draws others. Add :attr:`rounds_done` to the seed, so that it does
    not draw the first ones again. Other callbacks go on: early stopping, schedules, and what a
    callback of your own keeps in plain attributes.

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
    _others: Sequence[Any] = ()
    _leads = False  # whether it is the first of all callbacks

    def before_training(self, model: Any) -> Any:
        """Begin, before all other callbacks; called by XGBoost."""
        self._rounds.begin()
        container = running(CallbackContainer)
        if self._rounds.elastic and container is not None and not container.is_cv:
            self._others = [one for one in container.callbacks if one is not self]
            self._leads = True
            later = [_Continued(one, self.rounds_done) for one in self._others]
            container.callbacks = [self, *later, _Last(self)]
            container.history.update(self._rounds.kept.get("measured", {}))
            self._rounds.kept["measured"] = container.history
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Let the booster and the other callbacks go on; called by XGBoost."""
        if self._leads and not epoch:
            # Early stopping counts again below.
            self._rounds.watch(one for one in self._others if not isinstance(one, EarlyStopping))
            if self.rounds_done:
                self._go_on(model, evals_log)
        return False

    def _go_on(self, model: Any, measured: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Restore the parameters that callbacks have set, and let early stopping count again."""
        config, own = json.loads(self._rounds.kept["config"]), json.loads(model.save_config())
        config["learner"][_OF_SEGMENT] = own["learner"][_OF_SEGMENT]
        model.load_config(json.dumps(config))
        stopping = [one for one in self._others if isinstance(one, EarlyStopping)]
        for one in stopping:
            one.starting_round -= self.rounds_done
        for number in range(self.rounds_done if stopping else 0):
            log: Any = {
                data: {name: [values[number]] for name, values in metrics.items()}
                for data, metrics in measured.items()
            }
            for one in stopping:
                one.after_iteration(model, number, log)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report, and decide what follows; called by XGBoost."""
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

        self._move = self._rounds.after(self.rounds_done + epoch + 1, value)
        return not self._leads and self._obey(model)

    def _write(self, model: Any, folder: Path) -> None:
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        if not isinstance(booster, xgboost.Booster):
            raise no_cross_validation("xgboost.cv")
        booster.save_model(folder / self.file)
        config = json.loads(booster.save_config())
        del config["learner"][_OF_SEGMENT]
        self._rounds.kept["config"] = json.dumps(config)


class _Continued(TrainingCallback):
    """Another callback, for which rounds count from the start of the trial."""

    def __init__(self, callback: Any, done: int) -> None:
        super().__init__()
        self._callback, self._done = callback, done

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return bool(self._callback.before_iteration(model, epoch + self._done, evals_log))

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return bool(self._callback.after_iteration(model, epoch + self._done, evals_log))

    def after_training(self, model: Any) -> Any:
        return self._callback.after_training(model)


class _Last(TrainingCallback):
    """Obeys once the other callbacks have seen a round."""

    def __init__(self, callback: DeadlineCallback) -> None:
        super().__init__()
        self._callback = callback

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return self._callback._obey(model)


def _last(values: Any) -> float:
    """The newest value; that of a cross-validation has a deviation beside it."""
    newest = values[-1]
    return float(newest[0] if isinstance(newest, tuple) else newest)
