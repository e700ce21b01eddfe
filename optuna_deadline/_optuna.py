"""All that this package uses of Optuna beside its documented interface, and what for.

Without a name of this module the package does not work; an import error or a test of this module
says which one a new version of Optuna has changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from optuna._experimental import experimental_func
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler
from optuna.samplers._brute_force import _TreeNode
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._heartbeat import is_heartbeat_enabled
from optuna.storages._rdb.models import TrialIntermediateValueModel, TrialModel
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

__all__ = [
    "experimental_func",  # marks what may change
    "TrialIntermediateValueModel",  # many reports are stored by one statement
    "TrialModel",
    "is_heartbeat_enabled",  # dead trials of other hosts are recognised by it
]

#: System attributes of a trial with given parameters: by ``enqueue_trial``, and by a grid.
ENQUEUED, CELL, _CELL_SPACE = "fixed_params", "grid_id", "search_space"
#: The system attribute of what a ``constraints_func`` returns; others are "constraints:NAME".
_CONSTRAINTS = "constraints"


def storage_of(study: Study) -> BaseStorage:
    """The storage: the table lies beside it, and workers write what ``Study`` cannot."""
    return study._storage


def id_of(study: Study) -> int:
    """The id by which the storage and the table know the study."""
    return study._study_id


def id_of_trial(trial: Trial | FrozenTrial) -> int:
    """The id by which the storage knows the trial."""
    return trial._trial_id


def behind_cache(storage: BaseStorage) -> BaseStorage:
    """The storage without the cache that Optuna puts before a database."""
    return storage._backend if isinstance(storage, _CachedStorage) else storage


def connect_again(storage: RDBStorage, options: Mapping[str, Any]) -> None:
    """Give a storage another engine, with these arguments of ``create_engine``."""
    former = storage.engine
    storage.__setstate__({**storage.__getstate__(), "engine_kwargs": options})
    former.dispose()


def as_stored(trial: Trial) -> FrozenTrial:
    """The trial with its reports, as ``Trial.should_prune`` gives it to a pruner."""
    return trial._get_latest_trial()


def in_optimize_loop(study: Study) -> bool:
    """Whether this thread is in ``study.optimize``, which can be stopped; ask and tell cannot."""
    return bool(study._thread_local.in_optimize_loop)


def is_stopping(study: Study) -> bool:
    """Whether ``study.optimize`` starts no further trial."""
    return study._stop_flag


def forget_cached_trials(study: Study) -> None:
    """Let a sampler in this thread see new trials; ``Study.ask`` does so in its own thread."""
    study._thread_local.cached_all_trials = None


def share_state(view: Study, study: Study) -> None:
    """Make a study of a subclass: it has the same storage, sampler and caches."""
    view.__dict__.update(study.__dict__)


class ProspectiveStudy(Study):
    """A study that returns other trials than it has; all else, writes too, is unchanged.

    Args:
        study: The study.
        trials: The trials to return.
    """

    def __init__(self, study: Study, trials: Sequence[FrozenTrial]) -> None:
        share_state(self, study)
        self._shown = trials

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        shown = [trial for trial in self._shown if states is None or trial.state in states]
        return copy.deepcopy(shown) if deepcopy else shown


def constraint_attributes(trial: FrozenTrial) -> dict[str, Any]:
    """The system attributes in which Optuna stores constraints."""
    return {
        key: value
        for key, value in trial.system_attrs.items()
        if (key == _CONSTRAINTS and value) or key.startswith(f"{_CONSTRAINTS}:")
    }


def constraints(trial: FrozenTrial) -> Sequence[float]:
    """The stored values of a trial's constraints."""
    return [
        value
        for key, stored in constraint_attributes(trial).items()
        for value in (stored if key == _CONSTRAINTS else [stored])
    ]


def constraints_so_far(
    trial: FrozenTrial, compute: Callable[[FrozenTrial], Any] | None
) -> Sequence[float] | None:
    """The stored values, or those that it would have if it ended now.

    Args:
        trial: The trial.
        compute: The sampler's ``constraints_func``, for a trial that has not ended in Optuna.

    Returns:
        None if ``compute`` raises: it needs what the objective has not set yet.
    """
    values = constraints(trial)
    if values or compute is None or trial.state.is_finished():
        return values
    try:
        return list(compute(trial))
    except Exception:
        return None


def constrained(trial: FrozenTrial, values: Sequence[float]) -> FrozenTrial:
    """A copy of the trial with the values of its constraints, as Optuna stores them."""
    shown = copy.copy(trial)
    shown.system_attrs = {**trial.system_attrs, _CONSTRAINTS: tuple(values)}
    return shown


def constraints_func(sampler: BaseSampler | None) -> Callable[[FrozenTrial], Any] | None:
    """The function of a sampler, or of the one that it wraps."""
    while sampler is not None:
        if (found := getattr(sampler, "_constraints_func", None)) is not None:
            return found  # type: ignore[no-any-return]
        sampler = getattr(sampler, "_sampler", getattr(sampler, "_base_sampler", None))
    return None


def cells_left(sampler: GridSampler, begun: Sequence[FrozenTrial]) -> int:
    """The number of a grid's configurations that no trial has started with."""
    cells = {
        trial.system_attrs[CELL]
        for trial in begun
        if CELL in trial.system_attrs
        and sampler._same_search_space(trial.system_attrs[_CELL_SPACE])
    }
    return max(0, sampler._n_min_trials - len(cells))


def points_left(sampler: BruteForceSampler, begun: Sequence[FrozenTrial]) -> int | None:
    """The number of points that no trial has started with; None until one has parameters."""
    tree = _TreeNode()
    known = [trial for trial in begun if trial.params]
    sampler._populate_tree(tree, known, {})
    return tree.count_unexpanded(exclude_running=True) if known else None


def open_with(study: Study, params: Mapping[str, Any]) -> tuple[int, int]:
    """Begin a trial with given parameters; returns its number and its id.

    ``enqueue_trial`` and ``ask`` could give them to another process, or to another trial.
    """
    storage = storage_of(study)
    begun = create_trial(state=TrialState.RUNNING, system_attrs={ENQUEUED: dict(params)})
    trial_id = storage.create_new_trial(id_of(study), template_trial=begun)
    return storage.get_trial(trial_id).number, trial_id
