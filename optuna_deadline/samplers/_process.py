"""Trials of ``study.optimize`` whose process has died are ended: none stays RUNNING for ever."""

from __future__ import annotations

import math
import os
import warnings
from contextlib import suppress

from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.storages._heartbeat import is_heartbeat_enabled
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.rank.processes import is_gone, own_boot

_PROCESS = (
    "optuna_deadline:process"  # an attribute of a trial: the id of its process, and its boot
)


def sign(study: Study, trial: FrozenTrial) -> None:
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
