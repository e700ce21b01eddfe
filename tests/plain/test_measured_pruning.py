"""The measured rule in plain studies: processes agree, reasons are told, and the study ends."""

from __future__ import annotations

import io
import math
import threading
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from clocks import ahead
from optuna.trial import TrialState
from pruned import pruned_study, reported
from rich.console import Console

from optuna_deadline import DeadlinePruner, DeadlineSampler, deadline_report
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.text import event_sentence
from optuna_deadline.pruners._study_tracker import StudyTracker

pytestmark = pytest.mark.nightly_but(r"memory|sqlite")

BECAUSE = "optuna_deadline:pruned_because"


def _answers(studies: list[optuna.Study]) -> list[bool]:
    """What trials with crossing curves are told, each by the study of its turn."""
    told = []
    for number in range(12):
        study = studies[number % len(studies)]
        trial = study.ask()
        for step in range(1, 9):
            trial.report((number * 7 % 11) / step + (number * 5 % 13), step)
            told.append(trial.should_prune())
    return told


def test_two_processes_decide_as_one(tmp_path: Any) -> None:
    def of(name: str) -> optuna.Study:
        return pruned_study(f"sqlite:///{tmp_path}/{name}.db")

    alone = _answers([of("one")])
    assert alone == _answers([of("two"), of("two")])
    assert 0 < sum(alone) < len(alone)


def test_a_row_that_came_late_is_read(storage: str | None) -> None:
    """Two transactions gave the same sequence, and one was read before the other was there."""
    study = pruned_study(storage)
    trial = reported(study, 1.0)
    assert trial.should_prune() is False
    late = {"study_id": study.pruner._terms(study).study_id, "rung": 0, "number": 99}  # type: ignore[attr-defined]
    with open_table(study).engine.begin() as connection:
        connection.execute(sa.insert(schema.rung).values(**late, value=0.5, sequence=1))
    assert trial.should_prune() is True


def test_why_a_trial_is_pruned(storage: str | None) -> None:
    study = pruned_study(storage)
    for value in (0.25, 1.0):
        trial = reported(study, value)
        if trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
    why = study.trials[1].user_attrs[BECAUSE]
    assert why == "rung 1: 1 of 2 are better by more than 0, the usual gain; ranks hold 1.00"
    printed = io.StringIO()
    deadline_report(study, Console(file=printed, width=160))
    assert why in printed.getvalue() and "RUNNING" in printed.getvalue()
    [given_up] = [event for event in read_history(study).events if event.kind == "retired"]
    assert event_sentence(given_up, "s", "") == f"trial 1 of s is pruned ({why})"


def test_a_pruner_around_it_tells_its_own_reasons(storage: str | None) -> None:
    study = pruned_study(storage)
    study.pruner = optuna.pruners.PatientPruner(study.pruner, patience=0)
    for value in (0.25, 1.0):
        trial = reported(study, value)
        trial.should_prune()
    assert BECAUSE not in study.trials[1].user_attrs


CHOICES = [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "sampler",
    [optuna.samplers.GridSampler({"x": CHOICES}, seed=1), optuna.samplers.BruteForceSampler(1)],
)
def test_a_finite_search_that_time_suffices_for_is_trained_whole(
    clock: Any, sampler: optuna.samplers.BaseSampler
) -> None:
    study = optuna.create_study(
        pruner=DeadlinePruner("1000s", max_resource=4)._start(clock),
        sampler=DeadlineSampler(sampler),
    )

    def objective(trial: optuna.Trial) -> float:
        x = float(trial.suggest_categorical("x", CHOICES))
        for step in range(1, 5):
            clock.advance(1)
            trial.report(x, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4


@pytest.mark.parametrize(("n_trials", "pruned"), [(6, 0), (None, 5)])
def test_a_known_number_of_trials_that_time_suffices_for_is_trained_whole(
    storage: str | None, n_trials: int | None, pruned: int, clock: Any
) -> None:
    study = optuna.create_study(
        storage=storage,
        pruner=DeadlinePruner("1000s", max_resource=4, n_trials=n_trials)._start(clock),
    )

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 5):
            clock.advance(1)
            trial.report(trial.number, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return trial.number

    study.optimize(objective, n_trials=6)
    assert sum(trial.state is TrialState.PRUNED for trial in study.trials) == pruned


def test_nothing_is_pruned_once_all_choices_are_begun(storage: str | None) -> None:
    study = pruned_study(storage)
    study.sampler = optuna.samplers.RandomSampler(seed=1)
    told = []
    for choice in "aabab":
        study.enqueue_trial({"x": choice})
        trial = study.ask()
        trial.suggest_categorical("x", ["a", "b"])
        trial.report(len(told), 1)
        told.append(trial.should_prune())
    # Until the second choice is tried, worse trials give way to it.
    assert told == [False, True, False, False, False]


@pytest.mark.parametrize("ask", ["should_prune", "nothing"])
@pytest.mark.parametrize("n_jobs", [1, 4])
def test_the_two_lines_end_by_the_deadline(
    storage: str | None, n_jobs: int, ask: str, clock: Any
) -> None:
    study = optuna.create_study(
        storage=storage,
        pruner=DeadlinePruner("30s")._start(clock),
        sampler=DeadlineSampler(seed=1),
    )
    began = clock.now()

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, 4 if ask == "nothing" else 1_000):
            clock.advance(0.5)
            trial.report(x + 1 / step, step)
            if ask == "should_prune" and trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective, n_jobs=n_jobs)
    # Near the deadline: a thread may begin a trial while another one moves the clock. How long
    # threads take turns is not in our hands, so the paces, and an early end, may be of the others.
    assert clock.now() - began < 30 + 2 * n_jobs
    assert n_jobs > 1 or clock.now() - began > 20
    assert not [one for one in study.trials if one.state is TrialState.RUNNING]
    reports = [min(one.intermediate_values.values()) for one in study.trials]
    if ask == "should_prune":
        assert study.best_value == min(reports)


def test_a_loop_that_has_ended_stays_so_for_other_threads(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last trial to end would leave a study without a COMPLETE one."""
    needed = [math.inf, 0.0]  # of a new trial, as the first and the second one end
    both, first = threading.Barrier(2), threading.Event()
    study = optuna.create_study(
        pruner=DeadlinePruner("100s")._start(clock), sampler=DeadlineSampler(seed=1)
    )
    pruner = study.pruner
    assert isinstance(pruner, DeadlinePruner)
    ends = pruner._trial_ends

    def told(study: optuna.Study, trial: Any, *ending: Any) -> bool:
        need = needed.pop(0)
        monkeypatch.setattr(StudyTracker, "new_trial_needs", lambda tracker: need)
        return ends(study, trial, *ending)

    monkeypatch.setattr(pruner, "_trial_ends", told)

    def objective(trial: optuna.Trial) -> float:
        trial.report(trial.suggest_float("x", 0, 1), 1)
        both.wait(30)
        if trial.number == 1:
            assert first.wait(30)
        raise optuna.TrialPruned

    def ended(study: optuna.Study, trial: Any) -> None:
        first.set()

    study.optimize(objective, n_jobs=2, callbacks=[ended])
    assert needed == [] and len(study.trials) == 3
    assert study.best_value == min(one.intermediate_values[1] for one in study.trials)


def test_an_end_that_is_early_is_explained(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study(
        pruner=DeadlinePruner("100s")._start(clock), sampler=DeadlineSampler(seed=1)
    )

    def objective(trial: optuna.Trial) -> float:
        clock.advance(40)
        return trial.suggest_float("x", 0, 1)

    study.optimize(objective)
    assert len(study.trials) == 2
    assert "study.optimize ends 20 s before the deadline: a new trial needs 40 s" in caplog.text


def test_an_extended_deadline_goes_on(tmp_path: Any, clock: Any) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = pruned_study(url, deadline="100s", clock=clock)
    study.sampler = DeadlineSampler(seed=1)

    def objective(trial: optuna.Trial) -> float:
        if trial.number == 1:
            longer = pruned_study(url, deadline=ahead(200), extend=True)
            longer.pruner._terms(longer)  # type: ignore[attr-defined]
        clock.advance(45)
        return trial.suggest_float("x", 0, 1)

    study.optimize(objective)
    assert len(study.trials) == 4
