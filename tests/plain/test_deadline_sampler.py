"""DeadlineSampler passes the cases that Optuna publishes for samplers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import optuna
import pytest
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler

from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.errors import DeadlineError

suites = pytest.importorskip(
    "optuna.testing.pytest_samplers", reason="Optuna 4.9 and later have it"
)

Factory = Callable[[], BaseSampler]


def _default() -> BaseSampler:
    return DeadlineSampler()


def _early_tpe() -> BaseSampler:
    return DeadlineSampler(TPESampler(n_startup_trials=0))


class TestOfRandom(suites.BasicSamplerTestCase, suites.MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return lambda: DeadlineSampler(RandomSampler())


class TestByDefault(suites.BasicSamplerTestCase, suites.MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return _default


class TestOfEarlyTPE(suites.RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Factory:
        return _early_tpe


def _silent(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -1, 1) ** 2


def _objective(trial: optuna.Trial) -> float:
    value = _silent(trial)
    for step in range(1, 5):
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


def _params(
    sampler: BaseSampler, pruner: Any = None, objective: Any = _objective
) -> list[dict[str, Any]]:
    # Hyperband draws brackets by the study's name.
    study = optuna.create_study(study_name="same", sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=15)
    return [trial.params for trial in study.trials]


def test_without_reports_it_samples_as_the_wrapped_sampler_does() -> None:
    expected = _params(TPESampler(seed=3), objective=_silent)
    for sampler in (
        DeadlineSampler(TPESampler(seed=3)),
        DeadlineSampler(seed=3),
        pickle.loads(pickle.dumps(DeadlineSampler(seed=3))),
    ):
        assert _params(sampler, objective=_silent) == expected


def test_hyperbands_restricted_view_is_left_as_it_is() -> None:
    def pruner() -> optuna.pruners.BasePruner:
        return optuna.pruners.HyperbandPruner(max_resource=4, reduction_factor=2)

    expected = _params(TPESampler(seed=3, n_startup_trials=2), pruner())
    assert _params(DeadlineSampler(TPESampler(seed=3, n_startup_trials=2)), pruner()) == expected


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


def test_a_process_that_joins_does_not_draw_what_the_first_one_has_drawn() -> None:
    study = optuna.create_study()

    def join() -> optuna.Study:
        return optuna.load_study(
            study_name=study.study_name,
            storage=study._storage,
            sampler=DeadlineSampler(RandomSampler(seed=3)),
        )

    def draw(process: optuna.Study) -> float:
        return process.ask().suggest_float("x", 0, 1)

    first, second, third = join(), join(), join()
    drawn = [draw(first), draw(second), draw(third), draw(first)]
    assert len({*drawn}) == 4
    expected = optuna.create_study(sampler=RandomSampler(seed=3))
    assert [drawn[0], drawn[3]] == [draw(expected), draw(expected)]


def test_a_seed_counts_where_no_other_process_runs() -> None:
    study = optuna.create_study()
    study.enqueue_trial({"x": 0.5})
    study.add_trial(optuna.trial.create_trial(value=1.0))
    study.sampler = DeadlineSampler(RandomSampler(seed=3))
    expected = optuna.create_study(sampler=RandomSampler(seed=3))
    enqueued, drawn = study.ask(), study.ask()
    assert enqueued.suggest_float("x", 0, 1) == 0.5
    assert drawn.suggest_float("x", 0, 1) == expected.ask().suggest_float("x", 0, 1)
