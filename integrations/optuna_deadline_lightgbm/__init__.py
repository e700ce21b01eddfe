"""LightGBM under a deadline: a booster that pauses and resumes between two rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
from lightgbm.basic import EvalResult
from lightgbm.callback import CallbackEnv, EarlyStopException

from optuna_deadline.boosting import BoosterCallback, no_cross_validation
from optuna_deadline.callers import callers
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rounds import metric

__all__ = ["DeadlineCallback"]

_BOOSTING = ("boosting", "boosting_type", "boost", "data_sample_strategy")  # names of one option
#: Each begins anew with ``init_model``: what it drops or averages, rounds without sampling.
_UNRESUMED = {"dart", "goss", "rf", "random_forest"}
#: Callbacks of LightGBM's own, which count what has been measured.
_COUNTING = type(lightgbm.early_stopping(1)), type(lightgbm.record_evaluation({}))


class DeadlineCallback(BoosterCallback):
    """Reports to Optuna after each round, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two rounds, on
    one slot. A checkpoint is a folder with the booster as ``model.txt``.

    A resumed training is the same as one without a pause, unless it samples rows or columns: then
    it draws others. Add :attr:`rounds_done` to the seed, so that it does not draw the first ones
    again. Other callbacks go on: early stopping, schedules, recorded metrics, and what a callback
    of your own keeps in plain attributes. With ``dart``, ``rf`` and ``goss`` a trial keeps its
    slot.

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
    before_iteration = True  # it begins before all others

    @property
    def order(self) -> float:
        """The place among callbacks: the first, whatever LightGBM gives it."""
        return -math.inf

    @property
    def rounds_left(self) -> int:
        """The rounds that this segment trains; at least one, as LightGBM refuses to train none."""
        return max(super().rounds_left, 1)

    def __call__(self, env: CallbackEnv) -> None:
        """Begin, before other callbacks; called by LightGBM before each round."""
        if env.iteration > env.begin_iteration:
            return
        running = (frame.f_locals for frame in callers())
        lists = next((one for one in running if "callbacks_after_iter" in one), None)
        if lists is None:
            raise DeadlineError(
                "Pass DeadlineCallback to lightgbm.train, in callbacks=[deadline]."
            )
        self._rounds.begin()
        first = env.begin_iteration - self.rounds_done
        if self._rounds.ended:  # its model may have fewer rounds, by early stopping
            first = self._rounds.kept["first"]
        elif first != self._rounds.kept.setdefault("first", first):
            raise self._rounds.begun_anew()
        if anew := _UNRESUMED & {str(env.params.get(name)) for name in _BOOSTING}:
            self._rounds.stay(f"LightGBM cannot continue {anew.pop()!r} from a model")
        before, after = lists["callbacks_before_iter"], lists["callbacks_after_iter"]
        others = [*before[1:], *after]
        before[1:] = [_FromStart(one, first) for one in before[1:]]
        after[:] = [
            partial(self._report, first), *(_FromStart(one, first) for one in after), self._leave
        ]  # fmt: skip
        if self._rounds.elastic:
            self._rounds.watch(one for one in others if not isinstance(one, _COUNTING))
            self._measured = self._rounds.kept.setdefault("measured", [])
            for number, found in enumerate(self._measured):
                results = [EvalResult(*one) for one in found]
                past = replace(env, iteration=first + number, evaluation_result_list=results)
                for one in others:
                    if isinstance(one, _COUNTING):
                        with suppress(EarlyStopException):  # of a training that has ended
                            _FromStart(one, first)(past)

    def _report(self, first: int, env: CallbackEnv) -> None:
        """Report, and decide what follows."""
        found = env.evaluation_result_list or []
        if not self._rounds.left:  # LightGBM has trained one round more
            best = env.begin_iteration - 1
            results = [EvalResult(*one) for one in self._measured[best - first]]
            raise EarlyStopException(best, results)
        if self._rounds.elastic:
            self._measured.append([[one[0], one[1], float(one[2]), bool(one[3])] for one in found])

        def value() -> float:
            return metric({f"{one[0]}-{one[1]}": one[2] for one in found}, self.monitor)

        self._move = self._rounds.after(env.iteration - first + 1, value)

    def _leave(self, env: CallbackEnv) -> None:
        if self._obey(env.model):
            raise EarlyStopException(env.iteration, env.evaluation_result_list or [])

    def _write(self, model: Any, folder: Path) -> None:
        if isinstance(model, lightgbm.CVBooster):
            raise no_cross_validation("lightgbm.cv")
        booster = getattr(model, "booster_", model)
        booster.save_model(str(folder / self.file))


class _FromStart:
    """Another callback, for which rounds count from the start of the trial.

    Args:
        callback: The callback.
        first: The round from which the trial started.
    """

    def __init__(self, callback: Callable[[CallbackEnv], None], first: int) -> None:
        self._callback, self._first = callback, first

    def __call__(self, env: CallbackEnv) -> None:
        self._callback(replace(env, begin_iteration=self._first))
