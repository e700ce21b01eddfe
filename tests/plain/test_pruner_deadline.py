"""DeadlinePruner and the time: what ends at the deadline, who may move it, what is refused."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import optuna
import pytest
from clocks import ahead
from pruned import pruned_study, reported

from optuna_deadline import DeadlinePruner, DeadlineSampler, out_of_time
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.errors import (
    DeadlineConflict,
    DeadlineError,
)
from optuna_deadline.study import agreement

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins


def test_ends_at_the_last_report_before_the_deadline(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)
    trial = study.ask()
    for step in range(1, 100):
        clock.advance(8)
        trial.report(1.0, step)
        if trial.should_prune():
            break
    # The report at 96 s is the last: the next would come at 104 s, and at 88 s 8.8 more fit.
    assert step == 12


def test_the_first_report_is_timed_from_the_trials_start(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)
    trial = study.ask()
    clock.advance(70)
    trial.report(1.0, 1)
    assert trial.should_prune() is True


def test_one_report_is_no_pace(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)
    trial = study.ask()
    clock.advance(55)  # data is read, a model compiled
    trial.report(1.0, 1)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert trial.should_prune() is False
        assert trial.should_prune() is False
    [record] = caplog.records
    assert "it continues, since one report is not enough" in record.message
    clock.advance(1)
    trial.report(1.0, 2)
    assert trial.should_prune() is False
    clock.advance(43)
    trial.report(1.0, 3)
    assert trial.should_prune() is True


def test_duration_counts_from_construction(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="1h", clock=clock)
    clock.advance(3000)
    trial = reported(study, 1.0)
    assert trial.should_prune() is False
    terms = study.pruner._terms(study)  # type: ignore[attr-defined]
    assert terms.deadline - time.time() == pytest.approx(600, abs=5)


def test_deadline_shorter_than_a_step_warns_once_and_ends(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = pruned_study(storage, deadline="60s", clock=clock)
    trial = study.ask()
    clock.advance(90)
    trial.report(1.0, 1)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert trial.should_prune() is True
        assert trial.should_prune() is True
    [record] = caplog.records
    # The trial began in real time, so a busy machine adds a second.
    pattern = r"1 min 3\d s to its first report, longer than the 1 min from"
    assert re.search(pattern, record.getMessage())


def test_extension_by_another_process_is_seen(storage_url: str, clock: Any) -> None:
    study = pruned_study(storage_url, deadline="100s", clock=clock)
    trial = study.ask()
    clock.advance(90)
    trial.report(1.0, 1)
    assert trial.should_prune() is True
    other = pruned_study(storage_url, deadline=ahead(3600), extend=True)
    reported(other, 0.5).should_prune()
    trial = study.ask()
    clock.advance(20)
    trial.report(0.1, 1)
    assert trial.should_prune() is False


def test_another_deadline_in_a_second_process(storage_url: str) -> None:
    reported(pruned_study(storage_url, deadline="2h"), 1.0).should_prune()
    with pytest.raises(DeadlineConflict, match=r"2 h .* 3 h"):
        reported(pruned_study(storage_url, deadline="3h"), 1.0).should_prune()
    reported(pruned_study(storage_url, deadline=timedelta(hours=2)), 1.0).should_prune()


def test_a_past_deadline_is_told_at_once_and_refused_before_a_trial_trains(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained = []
    pruner = DeadlinePruner(datetime.now(timezone.utc) - timedelta(seconds=1))
    assert "has passed; only an extended study continues" in caplog.text
    study = optuna.create_study(storage=storage_url, pruner=pruner, sampler=DeadlineSampler())
    with pytest.raises(DeadlineError, match="has passed; give one in the future"):
        study.optimize(trained.append, n_trials=1)
    assert trained == []


def test_a_script_whose_instant_has_passed_joins_the_extended_study(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url, sampler=DeadlineSampler())
    at = datetime.now(timezone.utc) - timedelta(seconds=1)
    engine = open_table(study)
    agreement.fix(engine, study, at, elapsed=60.0)
    agreement.extend(engine, study, "1h")
    study.pruner = DeadlinePruner(at)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]


def test_a_deadline_without_a_time_zone_is_refused_at_once() -> None:
    with pytest.raises(DeadlineError, match="no time zone"):
        DeadlinePruner(datetime.now() + timedelta(hours=1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_resource": 0}, "max_resource must be a whole number of steps"),
        ({"max_resource": 2.5}, "max_resource"),
        ({"inner": DeadlinePruner}, "inner must be a pruner of Optuna"),
    ],
)
def test_senseless_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DeadlineError, match=message):
        DeadlinePruner("1h", **wrong)


@pytest.mark.parametrize("asks", ["both", "should_prune"])
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_optimize_returns_without_a_gate(
    storage: str | None, clock: Any, n_jobs: int, asks: str
) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)

    def train(trial: optuna.Trial) -> float:
        for step in range(1, 6):
            clock.advance(5.0)
            trial.report(1.0 / step, step)
            if asks == "both" and out_of_time(trial):
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return 1.0 / step

    study.optimize(train, n_jobs=n_jobs)
    assert all(trial.state.is_finished() for trial in study.trials)
    left = study.pruner._tracker(study).time_left()  # type: ignore[attr-defined]
    assert -5.0 * n_jobs <= left < 25, "no trial starts in vain, and none is left out"


def test_out_of_time_where_a_trial_is_asked_for_and_told(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="10s", clock=clock)
    trial = study.ask()
    clock.advance(9.0)
    trial.report(1.0, 1)
    assert trial.should_prune()  # there is no loop to end, and no error
