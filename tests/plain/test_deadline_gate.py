"""No trial starts that cannot become useful in the process that would train it."""

from __future__ import annotations

import logging
import re
from typing import Any

import optuna
import pytest
from clocks import ahead
from pruned import pruned_study

from optuna_deadline import DeadlineGate, DeadlineSampler, out_of_time
from optuna_deadline.errors import DeadlineError

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins


def _train(trial: optuna.Trial, clock: Any, seconds: float, steps: int = 10**6) -> float:
    for step in range(1, steps + 1):
        clock.advance(seconds)
        trial.report(1.0 / step, step)
        if out_of_time(trial):
            break
        if trial.should_prune():
            raise optuna.TrialPruned
    return 1.0 / step


def test_optimize_returns_by_the_deadline(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)
    study.optimize(lambda trial: _train(trial, clock, 10.0, 16), callbacks=[DeadlineGate()])
    left = study.pruner._tracker(study).time_left()  # type: ignore[attr-defined]
    # The sixth trial ends at 960 s, and the seventh has time for some steps.
    assert [trial.last_step for trial in study.trials[:6]] == [16] * 6
    assert len(study.trials) == 7
    assert 0 < left < 20
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}


def test_a_trial_that_can_still_matter_starts(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)
    study.optimize(lambda trial: _train(trial, clock, 10.0, 15), callbacks=[DeadlineGate()])
    # 100 s are left after the sixth trial, four steps fit.
    assert [trial.last_step for trial in study.trials] == [15] * 6 + [9]


def test_an_end_that_the_sampler_has_measured_counts_once(clock: Any) -> None:
    study = pruned_study(None, deadline="1000s", clock=clock)
    study.sampler = DeadlineSampler(seed=0)

    def objective(trial: optuna.Trial) -> float:
        clock.advance(10)
        return 1.0

    study.optimize(objective, n_trials=3, callbacks=[DeadlineGate(dashboard=False)])
    tracker = study.pruner._tracker(study)  # type: ignore[attr-defined]
    assert [*tracker._silent.values()] == pytest.approx([10.0] * 3, abs=1.0)


def test_a_process_judges_for_itself_alone(storage_url: str, clock: Any) -> None:
    slow = pruned_study(storage_url, deadline="100s", clock=clock)
    fast = pruned_study(storage_url, deadline="100s")
    fast.pruner._terms(fast)  # type: ignore[attr-defined]
    slow.optimize(lambda trial: _train(trial, clock, 30.0), callbacks=[DeadlineGate()])
    fast.optimize(lambda trial: 1.0, n_trials=5, callbacks=[DeadlineGate()])
    assert len(slow.trials) == 1 + 5


def test_a_one_off_set_up_leaves_the_study_its_time(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="160s", max_resource=27, clock=clock)

    def objective(trial: optuna.Trial) -> float:
        if trial.number == 0:
            clock.advance(80)  # downloads its data
        return _train(trial, clock, 0.5, 27)

    study.optimize(objective, callbacks=[DeadlineGate()])
    assert study.pruner._tracker(study).time_left() < 10  # type: ignore[attr-defined]
    assert study.trials[0].last_step == 27
    assert len(study.trials) >= 5


def test_a_set_up_of_each_trial_leaves_the_study_its_time(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="200s", max_resource=27, clock=clock)

    def objective(trial: optuna.Trial) -> float:
        clock.advance(20)  # compiles
        return _train(trial, clock, 0.5, 27)

    study.optimize(objective, callbacks=[DeadlineGate()])
    left = study.pruner._tracker(study).time_left()  # type: ignore[attr-defined]
    assert 0 < left < 27
    assert {trial.last_step for trial in study.trials[:5]} == {27}
    assert min(trial.last_step or 0 for trial in study.trials) > 6


def test_steps_that_begin_late_leave_the_study_its_time(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)

    def objective(trial: optuna.Trial) -> float:
        for step in range(1000, 1020):
            clock.advance(1.0)
            trial.report(1.0, step)
            if out_of_time(trial):
                break
        return 1.0

    study.optimize(objective, callbacks=[DeadlineGate()])
    # A newcomer needs 5 of 20 steps.
    assert study.pruner._tracker(study).time_left() < 6  # type: ignore[attr-defined]


def test_an_early_return_is_explained(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(lambda trial: _train(trial, clock, 350.0, 2), callbacks=[DeadlineGate()])
    assert [trial.last_step for trial in study.trials] == [2]
    [record] = caplog.records
    pattern = (
        r"study.optimize ends 5 min before the deadline: a new trial needs 5 min 50 s to its first"
    )
    assert re.match(pattern, record.message)


def test_a_return_by_another_callback_is_explained(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)

    def objective(trial: optuna.Trial) -> float:
        trial.study.stop()
        return _train(trial, clock, 10.0, 12)

    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(objective, callbacks=[DeadlineGate()])
    [record] = caplog.records
    pattern = (
        r"study.optimize ends 14 min \d+ s before the deadline: Study.stop was called, by the"
    )
    assert re.match(pattern, record.message)


def test_a_return_in_time_needs_no_words(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(lambda trial: _train(trial, clock, 10.0, 16), callbacks=[DeadlineGate()])
    assert caplog.records == []


def test_extending_opens_the_gate(storage_url: str, clock: Any) -> None:
    study = pruned_study(storage_url, deadline="100s", clock=clock)
    study.optimize(lambda trial: _train(trial, clock, 30.0), callbacks=[DeadlineGate()])
    longer = pruned_study(storage_url, deadline=ahead(3600), extend=True)
    longer.optimize(
        lambda trial: _train(trial, clock, 0.0, 2), n_trials=3, callbacks=[DeadlineGate()]
    )
    assert len(longer.trials) == 4
    # The first process sees it at its next trial and goes on.
    study.optimize(
        lambda trial: _train(trial, clock, 0.0, 2), n_trials=2, callbacks=[DeadlineGate()]
    )
    assert len(study.trials) == 6


def test_what_follows_the_last_report_is_measured(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="1000s", clock=clock)

    def objective(trial: optuna.Trial) -> float:
        value = _train(trial, clock, 10.0, 20)
        clock.advance(50)  # saves its model
        return value

    study.optimize(objective, callbacks=[DeadlineGate()])
    # Three trials end at 250, 500 and 750 s, the fourth trains to 940 s and saves by 990.
    assert [trial.last_step for trial in study.trials] == [20, 20, 20, 19]
    assert study.pruner._tracker(study).time_left() > 0  # type: ignore[attr-defined]


def test_threads_stop_too(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="100s", clock=clock)
    study.optimize(
        lambda trial: _train(trial, clock, 5.0, 4), n_jobs=3, callbacks=[DeadlineGate()]
    )
    assert not [trial for trial in study.trials if not trial.state.is_finished()]


def test_an_objective_that_never_reports(storage: str | None, clock: Any) -> None:
    study = pruned_study(storage, deadline="500s", clock=clock)
    study.optimize(lambda trial: _pass(clock, 50), callbacks=[DeadlineGate()])
    # Nine trials leave 50 s, and a tenth for safety is lacking for another.
    assert 8 <= len(study.trials) <= 9
    assert study.pruner._tracker(study).time_left() > 0  # type: ignore[attr-defined]


def test_a_process_that_saw_no_report_goes_by_its_own_trials(storage_url: str, clock: Any) -> None:
    slow = pruned_study(storage_url, deadline="100s", clock=clock)
    slow.optimize(lambda trial: _pass(clock, 55), callbacks=[DeadlineGate()])
    assert len(slow.trials) == 1
    fast = pruned_study(storage_url, deadline="100s")
    fast.optimize(lambda trial: 1.0, n_trials=2, callbacks=[DeadlineGate()])
    assert len(fast.trials) == 3


def _pass(clock: Any, seconds: float) -> float:
    clock.advance(seconds)
    return 1.0


def test_it_needs_the_pruner() -> None:
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    with pytest.raises(DeadlineError, match=r"pruner=DeadlinePruner\(deadline\)"):
        study.optimize(lambda trial: 1.0, n_trials=1, callbacks=[DeadlineGate()])
