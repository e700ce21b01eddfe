"""CatBoost under a deadline: a model that pauses and resumes between two rounds, exactly."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catboost.core import _TrainCallbacksWrapper

from optuna_deadline.boosting import BoosterCallback
from optuna_deadline.callers import running
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rounds import GO_ON, Move, metric

__all__ = ["DeadlineCallback"]

_SNAPSHOT = "training.snapshot"  # in a checkpoint


class DeadlineCallback(BoosterCallback):
    """Reports to Optuna after each round, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two rounds, on
    one slot, from a snapshot of CatBoost's own: a resumed training is exactly the same as one
    without a pause. A checkpoint is a folder with the snapshot, and with the model as
    ``model.cbm`` if the trial paused or ended there. It is the first of several callbacks; what
    others keep in plain attributes goes on.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, as in ``"validation-AUC"``: the data, which is ``"learn"``,
            ``"validation"``, or ``"validation_1"`` where there are several, and the metric.
        rounds: The number of rounds of a whole training, the model's ``iterations``.
        report_every: Rounds between two reports.
        save_every: Seconds between two snapshots while it trains, under a worker.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call :meth:`result` after each.

    Raises:
        DeadlineError: The objective has a second training without a name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, "validation-AUC", rounds=500)
        model = CatBoostClassifier(iterations=500, eval_metric="AUC", **params)
        model.fit(x, y, eval_set=(xv, yv), callbacks=[deadline], **deadline.fit_options())
        return deadline.result(model)
        ```
    """

    file = "model.cbm"
    _remedy = "pass **deadline.fit_options() to fit"

    _others: Sequence[Any] | None = None
    _error: BaseException | None = None
    _snapshot: Path | None = None
    _written = 0  # when CatBoost has written the snapshot that was saved last

    def fit_options(self) -> dict[str, Any]:
        """Options of ``fit``: where CatBoost writes the snapshot, and resumes from."""
        if not self._rounds.elastic:
            return {}
        self._rounds.begin()
        self._snapshot = self._rounds.working_file(_SNAPSHOT)
        if self._rounds.folder is not None:
            shutil.copyfile(self._rounds.folder / _SNAPSHOT, self._snapshot)
            self._written = self._snapshot.stat().st_mtime_ns
        return {
            "save_snapshot": True,
            "snapshot_file": str(self._snapshot),
            "snapshot_interval": max(int(self._rounds.save_every), 1),
        }

    def after_iteration(self, info: Any) -> bool:
        """Report, and stop where the trial leaves, ends or is pruned; called by CatBoost."""
        try:
            if self._others is None:
                self._others = self._watch()
            self._move = self._rounds.after(info.iteration, lambda: self._value(info))
            if not self._move.stop:
                self._save_snapshot()
            elif not all(one.after_iteration(info) for one in self._others):
                self._move = GO_ON
                return False  # another one ends the training
        except BaseException as error:  # CatBoost would raise another one
            self._error, self._move = error, Move(stop=True)
        return not self._move.stop

    def _watch(self) -> Sequence[Any]:
        """The other callbacks, which CatBoost calls after this one until it stops."""
        wrapper = running(_TrainCallbacksWrapper)
        if wrapper is None or not self._rounds.elastic:
            return ()
        callbacks: list[Any] = wrapper._callbacks
        first, *others = callbacks
        if first is not self:
            raise DeadlineError(
                "Pass DeadlineCallback as the first of CatBoost's callbacks: where a trial leaves,"
                " it calls the others."
            )
        self._rounds.watch(others)
        return others

    def _value(self, info: Any) -> float:
        found = {
            f"{data}-{name}": values[-1]
            for data, metrics in info.metrics.items()
            for name, values in metrics.items()
            if values
        }
        return metric(found, self.monitor)

    def _save_snapshot(self) -> None:
        """Save the snapshot of the round before, if CatBoost has written one."""
        if self._snapshot is None or not self._snapshot.exists():
            return
        written = self._snapshot.stat().st_mtime_ns
        if written != self._written:
            self._written = written
            self._rounds.save(self._copy_snapshot, exact=False)

    def result(self, model: Any) -> float:
        """The last reported value, also of an earlier segment; return it from the objective.

        A trial that is to pause, or is pruned, ends here.

        Args:
            model: The fitted model.

        Raises:
            DeadlineError: Nothing was reported, or there is no such metric.
        """
        if self._error is not None:
            raise self._error
        self._obey(model)
        return super().result(model)

    def _write(self, model: Any, folder: Path) -> None:
        model.save_model(str(folder / self.file))
        self._copy_snapshot(folder)

    def _copy_snapshot(self, folder: Path) -> None:
        if self._snapshot is not None and self._snapshot.exists():
            shutil.copyfile(self._snapshot, folder / _SNAPSHOT)
