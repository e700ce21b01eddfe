"""The sampler of a study with a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.errors import DeadlineError


class DeadlineSampler(BaseSampler):
    """Samples as another Optuna sampler does, and leaves every hook to it.

    The same object serves plain studies and elastic ones. It looks at nothing of the study itself,
    so that it works under Hyperband's restricted view as well.

    Args:
        sampler: The sampler to ask, :class:`optuna.samplers.TPESampler` by default.
        seed: The seed of the default sampler.

    Raises:
        DeadlineError: Both are given; a sampler of your own takes its seed itself.
    """

    def __init__(self, sampler: BaseSampler | None = None, *, seed: int | None = None) -> None:
        if sampler is not None and seed is not None:
            raise DeadlineError(
                f"seed belongs to the default sampler; give it to {type(sampler).__name__} itself."
            )
        self._sampler = TPESampler(seed=seed) if sampler is None else sampler

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
