"""The sampler of a study with a deadline; it also ends the trials of processes that died."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._optuna import (
    ProspectiveStudy,
    constraints_func,
    id_of_trial,
    in_optimize_loop,
    is_heartbeat_enabled,
    storage_of,
)
from optuna_deadline.errors import DeadlineError, DeadlinePassed
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.pruners._complete_best import complete_the_best
from optuna_deadline.pruners._study_over import StudyOver
from optuna_deadline.pruners._study_tracker import StudyTracker
from optuna_deadline.pruners._watch import PROCESS
from optuna_deadline.rank.processes import is_gone, own_boot
from optuna_deadline.samplers._prospects import (
    Look,
    Situation,
    TableLook,
    look_ahead,
    with_constraints,
)
from optuna_deadline.samplers._warm_start import EarlierBest, OfTrial, StudyLike

_logger = logging.getLogger("optuna_deadline")


def mark_process(study: Study, trial: FrozenTrial) -> None:
    """Record the process of a trial of ``study.optimize``; one of ``ask`` may outlive it."""
    boot = own_boot()
    if in_optimize_loop(study) and boot is not None:
        storage = storage_of(study)
        storage.set_trial_system_attr(id_of_trial(trial), PROCESS, [os.getpid(), boot])


def end_abandoned(study: Study) -> None:
    """End the trials of processes of this host that have died.

    A trial with reports ends PRUNED, so that its reports count; one without ends FAIL. If the
    storage has a heartbeat, Optuna ends the trials of dead processes on every host and may retry
    them.
    """
    if is_heartbeat_enabled(storage_of(study)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(study)
        return
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        pid, boot = trial.system_attrs.get(PROCESS, (0, None))
        if is_gone(pid, boot):
            with suppress(UpdateFinishedTrialError):  # by another process that saw it
                _end(study, trial)


def finish(study: Study, tracker: StudyTracker | None = None) -> None:
    """End the trials of dead processes, and make the best trial COMPLETE.

    Args:
        study: A study whose ``optimize`` ends in this process.
        tracker: Its tracker; None if this process trains no trial.
    """
    end_abandoned(study)
    complete_the_best(study, tracker)


def _end(study: Study, trial: FrozenTrial) -> None:
    storage = storage_of(study)
    if not trial.intermediate_values:
        storage.set_trial_state_values(id_of_trial(trial), TrialState.FAIL)
        return
    value = trial.intermediate_values[max(trial.intermediate_values)]
    values = None if math.isnan(value) else [value]
    storage.set_trial_state_values(id_of_trial(trial), TrialState.PRUNED, values)


class DeadlineSampler(BaseSampler):
    """Makes another Optuna sampler search for the best model at the deadline.

    A sampler learns from the final values of trials. Under a deadline most trials have none: they
    are pruned, paused or still running, and Optuna's samplers ignore them or count them as
    failures. This sampler gives the wrapped one a study in which each of these trials has a final
    value: the value that a trial with its parameters would reach by the deadline if it started
    now. The value is forecast from the learning curve and the pace of the trial
    (:func:`optuna_deadline.forecasting.reporting.prospects`). Early in a study, it is the value
    of a full training. Near the deadline, it is the value that the remaining time allows.

    A share ``floor`` of the trials is sampled from the best reports so far, so that a wrong
    forecast cannot mislead the search for good. Studies with several objectives, and those that a
    pruner filters, as Hyperband does, are sampled as they are.

    The same object works in plain and in elastic studies. A seed counts in the process that starts
    first: one that joins while a trial runs draws random numbers of its own, since the same script
    would try the same configurations.

    Args:
        sampler: The wrapped sampler, :class:`optuna.samplers.TPESampler` by default.
        seed: The seed of the default sampler.
        warm_start_from: Earlier studies of the same search, or their names in this study's
            storage. The first trials of this study get the parameters of the best report of each.
            A parameter that is missing there, or whose value is outside this study's range, is
            sampled. An earlier study without a report is skipped.
        floor: The share of the trials that are sampled from the reports, from 0 to 1.
        storage: URL of the database of the allocation table, if the study's storage is not SQL.
        look: Reads the time left and the paces; tests and simulations pass their own.

    Raises:
        DeadlineError: ``floor`` is not between 0 and 1, ``warm_start_from`` is not a list of
            studies, or ``seed`` is given with a sampler of your own, which takes its seed itself.
            When the first trial is sampled: there is no earlier study of a name, or it has several
            objectives.
    """

    def __init__(
        self,
        sampler: BaseSampler | None = None,
        *,
        seed: int | None = None,
        warm_start_from: Iterable[StudyLike] = (),
        floor: float = 0.1,
        storage: str | None = None,
        look: Look | None = None,
    ) -> None:
        if sampler is not None and seed is not None:
            raise DeadlineError(
                f"seed is for the default sampler; give it to {type(sampler).__name__} itself."
            )
        if not (sampler is None or isinstance(sampler, BaseSampler)):
            raise DeadlineError(
                f"{sampler!r} is not a sampler: give an object such as "
                "optuna.samplers.TPESampler()."
            )
        if not 0 <= floor <= 1:
            raise DeadlineError(
                f"floor is the share of trials that are sampled from the reports, from 0 to 1, "
                f"but got {floor}."
            )
        self._sampler = TPESampler(seed=seed) if sampler is None else sampler
        self._earlier = EarlierBest(warm_start_from)
        self._floor = floor
        self._look = TableLook(storage) if look is None else look
        self._seen: OfTrial[Study] = OfTrial()
        self._warned = False
        self._process: int | None = None  # that drew last

    def __getstate__(self) -> dict[str, Any]:
        # One that was stored goes on where it was, unless another process has it, too.
        return {**self.__dict__, "_process": None}

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._sampler})"

    def reseed_rng(self) -> None:
        """See :meth:`optuna.samplers.BaseSampler.reseed_rng`."""
        self._sampler.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Check the terms of a :class:`~optuna_deadline.DeadlinePruner` before anything trains.

        A refused trial stays WAITING, with its enqueued parameters, for another process.

        Raises:
            DeadlineError: See :meth:`optuna_deadline.DeadlinePruner.admit`.
        """
        pruner = find_deadline_pruner(study.pruner)
        if pruner is not None:
            try:
                begins = pruner._admit(study, trial)
            except Exception as error:
                _undo_ask(study, trial)
                if isinstance(error, DeadlinePassed):  # the process that should do it was killed
                    finish(study)
                raise
            mark_process(study, trial)
            if begins:
                end_abandoned(study)
        elif in_optimize_loop(study) and not self._warned:
            self._warned = True
            if math.isinf(self._look(study, []).left):
                _logger.warning(
                    "DeadlineSampler finds no deadline in this study and samples as %s does: "
                    "create the study with pruner=DeadlinePruner('2h').",
                    self._sampler,
                )
        self._draw_apart(study, trial)
        self._sampler.before_trial(study, trial)

    def _draw_apart(self, study: Study, trial: FrozenTrial) -> None:
        """Drop the seed if another process of the study runs: the same script has the same one.

        So has a process that was forked since the trial before.
        """
        drew, self._process = self._process, os.getpid()
        if drew == self._process:
            return
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if drew is not None or any(one.number != trial.number for one in running):
            self._sampler.reseed_rng()

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End ``study.optimize`` where no new trial could report once before the deadline."""
        self._sampler.after_trial(study, trial, state, values)
        pruner = find_deadline_pruner(study.pruner)
        if pruner is None or len(study.directions) > 1:
            return
        if pruner._trial_ends(study, trial, state, values):
            finish(study, pruner._tracker(study))

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Empty for a trial with the parameters of an earlier study."""
        self._seen.forget()
        if self._earlier.params(study, trial) is not None:
            return {}
        return self._sampler.infer_relative_search_space(self._shown(study, trial), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See :meth:`optuna.samplers.BaseSampler.sample_relative`."""
        if self._earlier.params(study, trial) is not None:
            return {}
        return self._sampler.sample_relative(self._shown(study, trial), trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The earlier study's value if it is valid here; else the wrapped sampler's."""
        value = self._earlier.internal_value(study, trial, param_name, param_distribution)
        if value is not None:
            return param_distribution.to_external_repr(value)
        shown = self._shown(study, trial)
        return self._sampler.sample_independent(shown, trial, param_name, param_distribution)

    def _shown(self, study: Study, trial: FrozenTrial) -> Study:
        """The study that the wrapped sampler sees for this trial."""
        return self._seen.get(study, trial, lambda: self._view(study, trial))

    def _view(self, study: Study, trial: FrozenTrial) -> Study:
        if type(study) not in (Study, StudyOver) or len(study.directions) > 1:
            return study
        stored = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        if not any(one.intermediate_values for one in stored):
            return study
        compute = constraints_func(self._sampler)
        others = [with_constraints(one, compute) for one in stored] if compute else stored
        shown = look_ahead(others, study.direction, self._situation(study, trial.number, others))
        if all(one is other for one, other in zip(shown, stored, strict=True)):
            return study
        return ProspectiveStudy(study, sorted([*shown, trial], key=lambda one: one.number))

    def _situation(
        self, study: Study, number: int, others: Sequence[FrozenTrial]
    ) -> Situation | None:
        """The situation that forecasts need; None where this trial is sampled from the reports."""
        if int((number + 1) * self._floor) > int(number * self._floor):  # evenly spread
            return None
        situation = self._look(study, others)
        return situation if situation.left > 0 else None


def _undo_ask(study: Study, trial: FrozenTrial) -> None:
    """Undo ``study.ask()``: Optuna gives the trial to the next process that asks for one."""
    if trial.state is TrialState.RUNNING and not trial.params and not trial.intermediate_values:
        with suppress(Exception):  # the error that refused the trial matters more
            storage_of(study).set_trial_state_values(id_of_trial(trial), TrialState.WAITING)
