"""What a rank may ask of its trial and of its study."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from optuna_deadline._optuna import id_of, id_of_trial, storage_of
from optuna_deadline.planning.optuna_storage import stop_opening
from optuna_deadline.rank.encoding import packed

#: A peer on another host could ask for anything.
_OF_TRIAL = frozenset({
    "suggest_float", "suggest_int", "suggest_categorical", "set_user_attr", "set_constraint",
    "constraints", "params", "distributions", "user_attrs", "datetime_start", "relative_params",
})  # fmt: skip
_OF_STUDY = frozenset({
    "study_name", "direction", "user_attrs", "metric_names", "best_trial", "best_value",
    "best_params", "set_user_attr", "enqueue_trial",
})  # fmt: skip
#: Bytes of trials that one answer has; the worker's thread packs them.
_PART = 1 << 18


def requestable(trial: Trial, method: str) -> Callable[..., Any] | None:
    """The function that answers a rank; None if there is none."""
    study, study_method = trial.study, method.removeprefix("study.")
    if method in _OF_TRIAL:
        return partial(_attribute, trial, method)
    if study_method != method and study_method in _OF_STUDY:
        return partial(_attribute, study, study_method)
    storage, trial_id, study_id = storage_of(study), id_of_trial(trial), id_of(study)
    others: dict[str, Callable[..., Any]] = {
        "trial_id": lambda: trial_id,
        "system_attrs": lambda: storage.get_trial(trial_id).system_attrs,
        "set_system_attr": partial(storage.set_trial_system_attr, trial_id),
        "study.id": lambda: study_id,
        "study.system_attrs": partial(storage.get_study_system_attrs, study_id),
        "study.set_system_attr": partial(storage.set_study_system_attr, study_id),
        "study.get_trials": partial(_part_of_trials, study),
        "study.stop": partial(stop_opening, study),
    }
    return others.get(method)


def _attribute(owner: Trial | Study, name: str, *args: Any, **kwargs: Any) -> Any:
    found = getattr(owner, name)
    return found(*args, **kwargs) if callable(found) else found


def _part_of_trials(study: Study, first: int) -> list[FrozenTrial]:
    """Trials from an index on, as many as one answer holds."""
    found: list[FrozenTrial] = []
    size = 0
    for trial in study.get_trials(deepcopy=False)[first:]:
        found.append(trial)
        size += len(packed(trial, "study.trials"))
        if size > _PART:
            break
    return found
