"""The question that tells the deadline from elimination."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from clocks import ahead

from optuna_deadline import DeadlinePruner, best, extend, out_of_time, time_left
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study import agreement

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins


def _study(storage: Any, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    return optuna.create_study(storage=storage, study_name="s", load_if_exists=True, pruner=pruner)


def test_a_loop_that_asks_returns_its_value(storage: str | None, clock: Any) -> None:
    study = _study(storage, DeadlinePruner("100s")._start(clock))

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 100):
            clock.advance(8)
            value = 1.0 / step
            trial.report(value, step)
            if out_of_time(trial):
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(objective, n_trials=1)
    assert study.best_trial.state.name == "COMPLETE"
    assert study.best_trial.last_step == 12
    assert study.best_value == 1 / 12


def test_a_loop_that_only_asks_should_prune_ends_pruned(storage: str | None, clock: Any) -> None:
    study = _study(storage, DeadlinePruner("100s")._start(clock))

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 100):
            clock.advance(8)
            trial.report(abs(step - 5), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    study.optimize(objective, n_trials=1)
    assert study.trials[0].state.name == "PRUNED"
    found = best(study)
    assert (found.number, found.value, found.step) == (0, 0.0, 5)


def test_elimination_is_not_out_of_time(storage: str | None) -> None:
    study = _study(storage, DeadlinePruner("1h"))
    for value in (1.0, 2.0):
        trial = study.ask()
        assert out_of_time(trial) is False
        trial.report(value, 1)
        assert out_of_time(trial) is False
        assert trial.should_prune() is (value == 2.0)


def test_max_resource_ends_a_trial_normally(storage: str | None) -> None:
    study = _study(storage, DeadlinePruner("1h", max_resource=3))
    trial = study.ask()
    for step in (1, 2, 3):
        trial.report(1.0, step)
        assert out_of_time(trial) is (step == 3)


def test_a_study_is_no_trial(storage: str | None) -> None:
    """The loop ``while not out_of_time(study)`` would never end."""
    with pytest.raises(DeadlineError, match=r"got a study: .*, ask time_left\(study\) > 0"):
        out_of_time(_study(storage, DeadlinePruner("1000s")))


def test_it_costs_no_statement_while_there_is_time(
    storage: str | None, clock: Any, counting: Any
) -> None:
    study = _study(storage, DeadlinePruner("1000s")._start(clock))
    trial = study.ask()
    trial.report(1.0, 0)
    assert out_of_time(trial) is False
    trial.report(1.0, 1)
    with counting(study) as sent:
        assert out_of_time(trial) is False
        assert out_of_time(trial) is False
    assert sent == []
    clock.advance(600)
    trial.report(1.0, 2)
    with counting(study) as sent:
        assert out_of_time(trial) is True
    assert len(sent) == 1


def test_a_loop_of_ones_own_asks_for_the_time(clock: Any) -> None:
    study = optuna.create_study(pruner=DeadlinePruner("100s")._start(clock))
    begun = 0
    while time_left(study) > 0:
        study.tell(study.ask(), 0.5)
        clock.advance(30)
        begun += 1
    assert begun == 4 and -30 < time_left(study) <= 0


def test_who_knows_no_deadline_is_told_how_to_give_one() -> None:
    study = optuna.create_study(study_name="s")
    with pytest.raises(DeadlineError, match="The study 's' has no deadline yet: pass deadline"):
        time_left(study)
    agreement.fix(open_table(study), study, "1h")
    assert 3500 < time_left(study) <= 3600


def test_the_time_left_follows_a_deadline_that_this_process_moves() -> None:
    study = optuna.create_study(pruner=DeadlinePruner("1h"))
    assert time_left(study) <= 3600
    extend(study, "2h")
    assert time_left(study) > 3600


def test_it_sees_an_extension_by_another_process(storage_url: str, clock: Any) -> None:
    study = _study(storage_url, DeadlinePruner("100s")._start(clock))
    trial = study.ask()
    clock.advance(90)
    trial.report(1.0, 1)
    assert out_of_time(trial) is True
    other = DeadlinePruner(ahead(3600), extend=True)
    other._terms(_study(storage_url, other))
    assert out_of_time(trial) is False


def test_deadline_shorter_than_a_step_keeps_the_value(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = _study(storage, DeadlinePruner("60s")._start(clock))

    def objective(trial: optuna.Trial) -> float:
        for step in range(10):
            clock.advance(90)
            trial.report(7.0, step)
            if out_of_time(trial):
                break
        return 7.0

    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(objective, n_trials=1)
    assert study.best_trial.last_step == 0
    assert len(caplog.records) == 1


def test_it_finds_the_pruner_within_another(storage: str | None, clock: Any) -> None:
    inner = DeadlinePruner("100s")._start(clock)
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        patient = optuna.pruners.PatientPruner(inner, patience=50)
    trial = _study(storage, patient).ask()
    clock.advance(70)
    trial.report(1.0, 1)
    assert trial.should_prune() is False
    assert out_of_time(trial) is True


def test_without_a_deadline_there_is_always_time() -> None:
    trial = optuna.create_study(pruner=optuna.pruners.MedianPruner()).ask()
    trial.report(1.0, 1)
    assert out_of_time(trial) is False
    assert out_of_time(optuna.trial.FixedTrial({"x": 1})) is False


@pytest.mark.parametrize("answer", [True, False])
def test_an_elastic_trial_asks_its_worker(answer: bool) -> None:
    assert out_of_time(SimpleNamespace(out_of_time=lambda: answer)) is answer
