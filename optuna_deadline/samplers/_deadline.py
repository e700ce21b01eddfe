"""The sampler of a study with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers._prospects import ProspectiveStudy, look_ahead
from optuna_deadline.samplers._situation import Look, TableLook


class DeadlineSampler(BaseSampler):
    """Lets another Optuna sampler look for what will be best at the deadline.

    A sampler learns from values that trials have ended with. Under a deadline most trials never
    end: they are eliminated, paused, or in training, and Optuna's samplers leave these out or take
    them for failures. So the sampler is shown a study in which each of them has ended with what a
    trial like it would come to by the deadline if it began now, forecast from its curve and its
    pace (:func:`optuna_deadline.forecasting.prospects.prospects`). Early in a study that is the
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
        floor: The part of the trials that are drawn from the study as it is, from 0 to 1.
        startup: Trials that have reported before any forecast is shown; three times what TPE
            begins with.
        table: URL of the database of the allocation table, where the study's storage is not SQL.
        look: How to learn of the time left and the paces; tests and simulations give theirs.

    Raises:
        DeadlineError: ``floor`` is no part of 1, ``startup`` is no whole number from 0, or
            ``seed`` is given with a sampler of your own, which takes its seed itself.
    """

    def __init__(
        self,
        sampler: BaseSampler | None = None,
        *,
        seed: int | None = None,
        floor: float = 0.1,
        startup: int = 30,
        table: str | None = None,
        look: Look | None = None,
    ) -> None:
        if sampler is not None and seed is not None:
            raise DeadlineError(
                f"seed belongs to the default sampler; give it to {type(sampler).__name__} itself."
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
        self._sampler = TPESampler(seed=seed) if sampler is None else sampler
        self._floor, self._startup = floor, startup
        self._look = TableLook(table) if look is None else look
        self._seen = threading.local()  # the last trial's view: its parameters come one by one

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._sampler})"

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See :meth:`optuna.samplers.BaseSampler.infer_relative_search_space`."""
        self._seen.trial = None
        return self._sampler.infer_relative_search_space(self._shown(study, trial), trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See :meth:`optuna.samplers.BaseSampler.sample_relative`."""
        return self._sampler.sample_relative(self._shown(study, trial), trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """See :meth:`optuna.samplers.BaseSampler.sample_independent`."""
        shown = self._shown(study, trial)
        return self._sampler.sample_independent(shown, trial, param_name, param_distribution)

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

    def _shown(self, study: Study, trial: FrozenTrial) -> Study:
        """What the sampler sees of the study for this trial."""
        key = study._storage, trial._trial_id
        if getattr(self._seen, "trial", None) != key:
            self._seen.trial, self._seen.view = key, self._view(study, trial)
        view: Study = self._seen.view
        return view

    def _view(self, study: Study, trial: FrozenTrial) -> Study:
        several = type(study) is not Study or len(study.directions) > 1
        if several or _falls_on(trial.number, self._floor):
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

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_seen"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._seen = threading.local()


def _falls_on(number: int, part: float) -> bool:
    """Whether a trial is one of a part of all, evenly spread."""
    return int((number + 1) * part) > int(number * part)
