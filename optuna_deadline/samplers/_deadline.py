"""The sampler of a study with a deadline.

Trials of ``study.optimize`` whose process has died are ended: none stays RUNNING for ever.
"""

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
from optuna.storages._heartbeat import is_heartbeat_enabled
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.errors import DeadlineError
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.rank.processes import is_gone, own_boot
from optuna_deadline.samplers._prospects import Look, ProspectiveStudy, TableLook, look_ahead
from optuna_deadline.samplers._warm_start import OfTrial, StudyLike, WarmStart, Wrapper

_logger = logging.getLogger("optuna_deadline")

_PROCESS = (
    "optuna_deadline:process"  # an attribute of a trial: the id of its process, and its boot
)


def mark_process(study: Study, trial: FrozenTrial) -> None:
    """Note which process trains a trial of ``study.optimize``; other trials may outlive theirs."""
    boot = own_boot()
    if study._thread_local.in_optimize_loop and boot is not None:
        storage = study._storage
        storage.set_trial_system_attr(trial._trial_id, _PROCESS, [os.getpid(), boot])


def end_abandoned(study: Study) -> None:
    """End the trials of processes of this host that have died.

    One that has reported ends PRUNED, so that what it has shown counts; another as FAIL. Where the
    storage has a heartbeat, Optuna ends them all, on whatever host, and may try them again.
    """
    if is_heartbeat_enabled(study._storage):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(study)
        return
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        pid, boot = trial.system_attrs.get(_PROCESS, (0, None))
        if is_gone(pid, boot):
            with suppress(UpdateFinishedTrialError):  # by another process that saw it
                _end(study, trial)


def _end(study: Study, trial: FrozenTrial) -> None:
    reports, storage = trial.intermediate_values, study._storage
    if not reports:
        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        return
    last = reports[max(reports)]
    values = None if math.isnan(last) else [last]
    storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED, values)


class DeadlineSampler(Wrapper):
    """Lets another Optuna sampler look for what will be best at the deadline.

    A sampler learns from values that trials have ended with. Under a deadline most trials never
    end: they are eliminated, paused, or in training, and Optuna's samplers leave these out or take
    them for failures. So the sampler is shown a study in which each of them has ended with what a
    trial like it would come to by the deadline if it began now, forecast from its curve and its
    pace (:func:`optuna_deadline.forecasting.reporting.prospects`). Early in a study that is the
    value of a whole training; the closer the deadline, the more it is what can be reached in time.

    Until some trials have reported, the study is shown as it is: TPE ends its draws at random
    after ten results, and ten forecasts from first reports are worth less than that. Later, too,
    one draw in so many is made from the study as it is, so that no forecast can lead the search
    astray for good. Studies with several objectives, and those that another pruner shows in part
    only, as Hyperband does, are sampled as they are.

    The same object serves plain studies and elastic ones.

    Args:
        sampler: The sampler to ask, :class:`optuna.samplers.TPESampler` by default.
        seed: The seed of the default sampler.
        earlier: Studies of the same search that came before, or their names in this study's
            storage: this one begins with the parameters of the best report of each, one trial
            each. A parameter that is lacking there, or whose value this study may not have, is
            sampled; an earlier study without a report is passed over.
        floor: The part of the trials that are drawn from the study as it is, from 0 to 1.
        startup: Trials that have reported before any forecast is shown; three times what TPE
            begins with.
        table: URL of the database of the allocation table, where the study's storage is not SQL.
        look: How to learn of the time left and the paces; tests and simulations give theirs.

    Raises:
        DeadlineError: ``floor`` is no part of 1, ``startup`` is no whole number from 0,
            ``earlier`` is no list of studies, or ``seed`` is given with a sampler of your own,
            which takes its seed itself. When the first trial is sampled: there is no earlier
            study of a name, or it has several objectives.
    """

    def __init__(
        self,
        sampler: BaseSampler | None = None,
        *,
        seed: int | None = None,
        earlier: Iterable[StudyLike] = (),
        floor: float = 0.1,
        startup: int = 30,
        table: str | None = None,
        look: Look | None = None,
    ) -> None:
        if sampler is not None and seed is not None:
            raise DeadlineError(
                f"seed belongs to the default sampler; give it to {type(sampler).__name__} itself."
            )
        if not (sampler is None or isinstance(sampler, BaseSampler)):
            raise DeadlineError(
                f"{sampler!r} is no sampler: give an object such as optuna.samplers.TPESampler()."
            )
        if not 0 <= floor <= 1:
            raise DeadlineError(
                f"floor is the part of the trials that are drawn from the study as it is, from 0 "
                f"to 1, but got {floor}."
            )
        if not isinstance(startup, int) or startup < 0:
            raise DeadlineError(
                f"startup is how many trials have reported before a forecast is shown, a whole "
                f"number from 0, but got {startup!r}."
            )
        asked = TPESampler(seed=seed) if sampler is None else sampler
        super().__init__(WarmStart(asked, earlier))
        self._floor, self._startup = floor, startup
        self._look = TableLook(table) if look is None else look
        self._seen: OfTrial[Study] = OfTrial()
        self._warned = False

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Check the terms of a :class:`~optuna_deadline.DeadlinePruner` before anything trains.

        A trial that is refused waits, with what was enqueued, for a process that may run it.

        Raises:
            DeadlineError: See :meth:`optuna_deadline.DeadlinePruner.admit`.
        """
        pruner = find_deadline_pruner(study.pruner)
        if pruner is not None:
            try:
                begins = pruner.admit(study)
            except Exception:
                _undo_ask(study, trial)
                raise
            mark_process(study, trial)
            if begins:
                end_abandoned(study)
        elif study._thread_local.in_optimize_loop and not self._warned:
            self._warned = True
            if math.isinf(self._look(study, []).left):
                _logger.warning(
                    "DeadlineSampler knows no deadline of this study and samples as %s does: "
                    "create the study with pruner=DeadlinePruner('2h').",
                    self._sampler,
                )
        super().before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End ``study.optimize`` where no new trial could report once before the deadline."""
        super().after_trial(study, trial, state, values)
        pruner = find_deadline_pruner(study.pruner)
        if pruner is None or len(study.directions) > 1:
            return
        complete = pruner.trial_ends(study, trial, state, values)
        if complete is not None:
            end_abandoned(study)
            complete()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See :meth:`optuna.samplers.BaseSampler.infer_relative_search_space`."""
        self._seen.forget()
        return super().infer_relative_search_space(self._shown(study, trial), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See :meth:`optuna.samplers.BaseSampler.sample_relative`."""
        return super().sample_relative(self._shown(study, trial), trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """See :meth:`optuna.samplers.BaseSampler.sample_independent`."""
        shown = self._shown(study, trial)
        return super().sample_independent(shown, trial, param_name, param_distribution)

    def _shown(self, study: Study, trial: FrozenTrial) -> Study:
        """What the sampler sees of the study for this trial."""
        return self._seen.get(study, trial, lambda: self._view(study, trial))

    def _view(self, study: Study, trial: FrozenTrial) -> Study:
        several = type(study) is not Study or len(study.directions) > 1
        if several or _is_in_share(trial.number, self._floor):
            return study
        trials = study.get_trials(deepcopy=False)
        if sum(bool(one.intermediate_values) for one in trials) < max(1, self._startup):
            return study
        others = [one for one in trials if one.number != trial.number]
        situation = self._look(study, others)
        ahead = look_ahead(others, study.direction, situation) if situation.left > 0 else None
        return (
            study
            if ahead is None
            else ProspectiveStudy(study, sorted([*ahead, trial], key=lambda one: one.number))
        )


def _undo_ask(study: Study, trial: FrozenTrial) -> None:
    """Undo ``study.ask()``: Optuna gives the trial to the next process that asks for one."""
    if trial.state is TrialState.RUNNING and not trial.params and not trial.intermediate_values:
        with suppress(Exception):  # why it was refused is what is to be seen
            study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)


def _is_in_share(number: int, part: float) -> bool:
    """Whether a trial is one of a part of all, evenly spread."""
    return int((number + 1) * part) > int(number * part)
