"""DeadlineSampler passes the cases that Optuna publishes for samplers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import optuna
import pytest
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.errors import DeadlineError

Factory = Callable[[], BaseSampler]


def _default() -> BaseSampler:
    return DeadlineSampler()


def _early_tpe() -> BaseSampler:
    return DeadlineSampler(TPESampler(n_startup_trials=0))


class TestOfRandom(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return lambda: DeadlineSampler(RandomSampler())


class TestByDefault(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return _default


class TestOfEarlyTPE(RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return _early_tpe


def _objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -1, 1)
    for step in range(1, 5):
        trial.report(x**2, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x**2


def _params(sampler: BaseSampler, pruner: Any = None) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    study.optimize(_objective, n_trials=15)
    return [trial.params for trial in study.trials]


def test_it_samples_as_the_wrapped_sampler_does() -> None:
    expected = _params(TPESampler(seed=3))
    assert _params(DeadlineSampler(TPESampler(seed=3))) == expected
    assert _params(DeadlineSampler(seed=3)) == expected
    assert _params(pickle.loads(pickle.dumps(DeadlineSampler(seed=3)))) == expected


def test_under_hyperbands_restricted_view() -> None:
    def pruner() -> optuna.pruners.BasePruner:
        return optuna.pruners.HyperbandPruner(max_resource=4, reduction_factor=2)

    wrapped = _params(DeadlineSampler(TPESampler(seed=3, n_startup_trials=2)), pruner())
    assert len(wrapped) == 15


def test_the_wrapped_sampler_may_stop_the_study() -> None:
    study = optuna.create_study(sampler=DeadlineSampler(GridSampler({"x": [0.0, 0.5, 1.0]})))
    study.optimize(_objective)
    assert sorted(trial.params["x"] for trial in study.trials) == [0.0, 0.5, 1.0]


def test_every_hook_is_forwarded() -> None:
    class Recorder(RandomSampler):
        calls: ClassVar[set[str]] = set()

        def __getattribute__(self, name: str) -> Any:
            Recorder.calls.add(name)
            return super().__getattribute__(name)

    study = optuna.create_study(sampler=DeadlineSampler(Recorder()), pruner=DeadlinePruner("1h"))
    study.optimize(_objective, n_trials=4, n_jobs=2)
    hooks = {
        "infer_relative_search_space",
        "sample_relative",
        "sample_independent",
        "before_trial",
        "after_trial",
        "reseed_rng",
    }
    assert hooks <= Recorder.calls


def test_seed_is_for_the_default_sampler() -> None:
    with pytest.raises(DeadlineError, match="give it to RandomSampler itself"):
        DeadlineSampler(RandomSampler(), seed=1)
    assert str(DeadlineSampler(RandomSampler())) == "DeadlineSampler(RandomSampler)"
