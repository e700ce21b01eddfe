"""A sampler around another, and what it keeps of the trial that it was asked about last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

Found = TypeVar("Found")


class Wrapper(BaseSampler):
    """Passes everything on to the sampler that it wraps.

    Args:
        sampler: The sampler to ask.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._sampler})"

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See :meth:`optuna.samplers.BaseSampler.infer_relative_search_space`."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See :meth:`optuna.samplers.BaseSampler.sample_relative`."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """See :meth:`optuna.samplers.BaseSampler.sample_independent`."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """See :meth:`optuna.samplers.BaseSampler.before_trial`."""
        self._sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """See :meth:`optuna.samplers.BaseSampler.after_trial`."""
        self._sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """See :meth:`optuna.samplers.BaseSampler.reseed_rng`."""
        self._sampler.reseed_rng()


class OfTrial(Generic[Found]):
    """What is worked out once for a trial: its parameters come one by one.

    Each thread keeps the trial that it asked about last; a pickled one has forgotten all.
    """

    def __init__(self) -> None:
        self._last = threading.local()

    def get(self, study: Study, trial: FrozenTrial, work_out: Callable[[], Found]) -> Found:
        """What is known of a trial, worked out where it is not the last one."""
        key = study._storage, trial._trial_id
        if getattr(self._last, "key", None) != key:
            self._last.found = work_out()
            self._last.key = key
        found: Found = self._last.found
        return found

    def forget(self) -> None:
        """Work it out anew the next time."""
        self._last.key = None

    def __reduce__(self) -> tuple[type[OfTrial[Found]], tuple[()]]:
        return type(self), ()
