"""A study begins with what was best in earlier ones, each in one trial, and then goes its way."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GridSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from optuna_deadline import DeadlineSampler
from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers import winners

suites = pytest.importorskip(
    "optuna.testing.pytest_samplers", reason="Optuna 4.9 and later have it"
)

SPACE = {
    "lr": FloatDistribution(1e-3, 1.0, log=True),
    "layers": IntDistribution(1, 9, step=2),
    "kind": CategoricalDistribution(["a", "b", None]),
}
FIRST = {"lr": 0.02, "layers": 3, "kind": "b"}
SECOND = {"lr": 0.5, "layers": 9, "kind": None}


def earlier(name: str, params: dict[str, Any], storage: Any = None) -> optuna.Study:
    """A study that was won by a trial that never ended."""
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    other = {"lr": 0.9, "layers": 1, "kind": "a"}
    for given, state, reports in (
        (other, TrialState.COMPLETE, {1: 0.1, 2: 0.5}),
        (params, TrialState.PRUNED, {1: 0.7}),
        (other, TrialState.FAIL, {1: 0.6}),
        (other, TrialState.RUNNING, {1: float("nan")}),
    ):
        study.add_trial(
            create_trial(
                state=state,
                value=0.5 if state == TrialState.COMPLETE else None,
                params=given,
                distributions=SPACE,
                intermediate_values=reports,
            )
        )
    return study


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
        "layers": trial.suggest_int("layers", 1, 9, step=2),
        "kind": trial.suggest_categorical("kind", ["a", "b", None]),
    }


def objective(trial: optuna.Trial) -> float:
    return float(suggest(trial)["lr"])


@pytest.fixture
def both() -> list[optuna.Study]:
    return [earlier("one", FIRST), earlier("two", SECOND)]


class TestOfRandom(suites.BasicSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        studies = [earlier("one", {"lr": 0.02, "layers": 3, "kind": "b"})]
        return lambda: DeadlineSampler(RandomSampler(), warm_start_from=studies)


@pytest.mark.parametrize(
    "asked",
    [
        lambda: TPESampler(seed=0),
        lambda: TPESampler(seed=0, n_startup_trials=0, multivariate=True),
        lambda: RandomSampler(seed=0),
        lambda: QMCSampler(seed=0),
        lambda: GridSampler({"lr": [0.1, 0.2, 0.3], "layers": [1], "kind": ["a"]}),
    ],
)
def test_winners_come_first_one_trial_each_whoever_samples(
    asked: Callable[[], BaseSampler], both: list[optuna.Study]
) -> None:
    study = optuna.create_study(sampler=DeadlineSampler(asked(), warm_start_from=both))
    study.optimize(objective, n_trials=3)
    assert [trial.params for trial in study.trials[:2]] == [FIRST, SECOND]
    assert study.trials[2].params not in (FIRST, SECOND)


def test_after_the_winners_all_is_sampled_as_in_a_study_that_had_them(
    both: list[optuna.Study],
) -> None:
    def rest(sampler: BaseSampler, begun: bool) -> list[dict[str, Any]]:
        study = optuna.create_study(sampler=sampler)
        if begun:
            study.add_trials(
                [create_trial(value=p["lr"], params=p, distributions=SPACE) for p in began]
            )
        study.optimize(objective, n_trials=6 if begun else 8)
        return [trial.params for trial in study.trials]

    began = [FIRST, SECOND]
    assert rest(DeadlineSampler(seed=1, warm_start_from=both), False) == rest(
        TPESampler(seed=1), True
    )


def test_trials_that_were_enqueued_keep_theirs_and_delay_the_winners(
    both: list[optuna.Study],
) -> None:
    study = optuna.create_study(sampler=DeadlineSampler(seed=0, warm_start_from=both))
    study.enqueue_trial({"lr": 0.25})
    study.optimize(objective, n_trials=3)
    assert study.trials[0].params["lr"] == 0.25
    assert [trial.params for trial in study.trials[1:]] == [FIRST, SECOND]


def test_a_value_that_this_study_may_not_have_is_sampled(both: list[optuna.Study]) -> None:
    study = optuna.create_study(sampler=DeadlineSampler(seed=0, warm_start_from=both))
    trial = study.ask()
    assert 0.1 <= trial.suggest_float("lr", 0.1, 1.0) <= 1.0  # it was 0.02
    assert trial.suggest_int("layers", 2, 8, step=2) in (2, 4, 6, 8)  # it was 3
    assert trial.suggest_categorical("kind", ["a", "c"]) in ("a", "c")  # it was "b"
    assert 0 <= trial.suggest_float("new", 0, 1) <= 1
    others = optuna.create_study(sampler=DeadlineSampler(seed=0, warm_start_from=both))
    trial = others.ask()
    assert trial.suggest_int("kind", 0, 1) in (0, 1)  # it was "b", and is None in the next
    assert trial.suggest_categorical("lr", ["x", "y"]) in ("x", "y")
    trial = others.ask()
    assert trial.suggest_int("kind", 0, 1) in (0, 1)
    assert trial.suggest_float("layers", 1, 20) == 9.0


def test_processes_that_share_a_study_try_each_winner_once(storage_url: str) -> None:
    earlier("one", FIRST, storage_url)
    earlier("two", SECOND, storage_url)
    optuna.create_study(study_name="now", storage=storage_url)

    def process(seed: int) -> None:
        sampler = DeadlineSampler(RandomSampler(seed=seed), warm_start_from=["one", "two"])
        study = optuna.load_study(
            study_name="now", storage=storage_url, sampler=pickle.loads(pickle.dumps(sampler))
        )
        study.optimize(objective, n_trials=2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(process, range(4)))
    params = [t.params for t in optuna.load_study(study_name="now", storage=storage_url).trials]
    assert len(params) == 8 and params[:2] == [FIRST, SECOND]
    assert params.count(FIRST) == params.count(SECOND) == 1


def test_earlier_studies_are_not_read_once_the_winners_were_handed_out() -> None:
    study = optuna.create_study()
    study.optimize(objective, n_trials=2)
    study.sampler = DeadlineSampler(RandomSampler(), warm_start_from=["gone", "gone too"])
    study.optimize(objective, n_trials=1)
    assert len(study.trials) == 3


def test_what_won_twice_is_tried_once_and_who_reported_nothing_is_passed_over(
    both: list[optuna.Study], caplog: pytest.LogCaptureFixture
) -> None:
    empty = optuna.create_study(study_name="empty")
    again = earlier("again", FIRST)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        found = winners(optuna.create_study(), [both[0], empty, again, both[1]])
    assert found == [FIRST, SECOND]
    assert "'empty' has no reports to learn from" in caplog.text
    study = optuna.create_study(sampler=DeadlineSampler(seed=0, warm_start_from=[empty]))
    study.optimize(objective, n_trials=1)


def test_the_least_wins_where_less_is_better() -> None:
    study = optuna.create_study()
    for lr in (0.3, 0.1, 0.2):
        study.add_trial(create_trial(value=lr, params={**FIRST, "lr": lr}, distributions=SPACE))
    assert winners(optuna.create_study(), [study]) == [{**FIRST, "lr": 0.1}]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("one", r"write warm_start_from=\['last-week'\]"),
        (None, r"write warm_start_from=\['last-week'\]"),
        ([1], "studies or their names, but has 1"),
    ],
)
def test_what_is_no_list_of_studies_is_refused(given: Any, words: str) -> None:
    with pytest.raises(DeadlineError, match=words):
        DeadlineSampler(warm_start_from=given)


def test_an_earlier_study_that_cannot_be_one_is_refused() -> None:
    storage = optuna.storages.InMemoryStorage()
    earlier("one", FIRST, storage)
    optuna.create_study(study_name="several", storage=storage, directions=["minimize"] * 2)
    for name, words in (
        ("two", r"no earlier study 'two' beside 'now' \(there are: one, several\)"),
        ("now", "cannot be earlier than itself"),
        ("several", "has 2 objectives"),
    ):
        study = optuna.create_study(
            study_name="now", storage=storage, load_if_exists=True,
            sampler=DeadlineSampler(warm_start_from=[name]),
        )  # fmt: skip
        with pytest.raises(DeadlineError, match=words):
            winners(study, [name])
    with pytest.raises(DeadlineError, match="cannot be earlier"):
        study.sampler = DeadlineSampler(warm_start_from=[study])
        study.optimize(objective, n_trials=1)


def test_a_study_of_several_objectives_is_sampled_as_it_is(both: list[optuna.Study]) -> None:
    study = optuna.create_study(
        directions=["minimize"] * 2, sampler=DeadlineSampler(seed=0, warm_start_from=both)
    )
    study.optimize(lambda trial: (objective(trial), 1.0), n_trials=1)
    assert study.trials[0].params != FIRST
