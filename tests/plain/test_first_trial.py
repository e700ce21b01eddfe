"""Terms that do not hold are refused when the first trial is asked for, and nothing is trained."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from clocks import ahead
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler, out_of_time
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.elastic.worker import _planned
from optuna_deadline.errors import DeadlineConflict, DeadlineError, UnsupportedStorage
from optuna_deadline.pruners import _watch
from optuna_deadline.study import agreement

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins


def _study(
    storage: Any, /, deadline: str = "100s", clock: Any = None, **kwargs: Any
) -> optuna.Study:
    pruner = DeadlinePruner(deadline, **kwargs)
    return optuna.create_study(
        storage=storage,
        study_name="s",
        load_if_exists=True,
        pruner=pruner if clock is None else pruner._start(clock),
        sampler=DeadlineSampler(seed=1),
    )


def _train(trial: optuna.Trial, clock: Any, seconds: float = 10.0) -> float:
    x = trial.suggest_float("x", 0, 1)
    for step in range(1, 100):
        clock.advance(seconds)
        trial.report(x + 1 / step, step)
        if out_of_time(trial):
            break
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def _never(trial: optuna.Trial) -> float:
    pytest.fail("something was trained")


def _states(study: optuna.Study) -> Counter[TrialState]:
    return Counter(trial.state for trial in study.trials)


@pytest.fixture
def ended(storage_url: str, clock: Any) -> optuna.Study:
    """A study whose deadline has passed, in a process that comes too late."""
    study = _study(storage_url, clock=clock)
    study.optimize(lambda trial: _train(trial, clock), callbacks=[DeadlineGate()])
    agreement.end_within(open_table(study), study, -1.0)
    clock.advance(100)
    return _study(storage_url, clock=clock)


def test_a_process_that_has_trained_returns(
    storage_url: str, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The usual loop: tune, look, tune."""
    study = _study(storage_url, clock=clock)
    for _ in range(5):
        study.optimize(lambda trial: _train(trial, clock, 30.0), n_trials=2)
    states = _states(study)
    assert set(states) == {TrialState.COMPLETE} and states.total() < 8
    lines = [line for line in caplog.messages if "study.optimize returns at once" in line]
    assert len(lines) == 1
    assert pickle.loads(pickle.dumps(study)).study_name == "s"
    agreement.extend(open_table(study), study, "1h")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    assert _states(study).total() == states.total() + 2, "it goes on once the deadline is moved"


def test_a_loop_that_loads_the_study_again_is_told_to_load_it_once(
    ended: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeadlineError, match="load the study once, before the loop"):
        ended.optimize(_never)
    monkeypatch.setattr(_watch, "own_boot", lambda: "of another machine")
    with pytest.raises(DeadlineError, match="has passed") as info:
        ended.optimize(_never)
    assert "once" not in str(info.value)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_passed_deadline(ended: optuna.Study, n_jobs: int) -> None:
    before = _states(ended)
    with pytest.raises(
        DeadlineError, match=r"The deadline of the study 's', 1 min 40 s .* has passed"
    ):
        ended.optimize(_never, n_jobs=n_jobs, callbacks=[DeadlineGate()])
    after = _states(ended) - before
    assert set(after) == {TrialState.WAITING} and after.total() <= n_jobs


def test_a_refused_study_gathers_no_trials(ended: optuna.Study) -> None:
    for _ in range(3):
        with pytest.raises(DeadlineError):
            ended.optimize(_never)
        with pytest.raises(DeadlineError):
            ended.ask()
    assert _states(ended)[TrialState.WAITING] == 1


def test_an_extended_study_runs_what_was_refused(ended: optuna.Study, storage_url: str) -> None:
    with pytest.raises(DeadlineError):
        ended.optimize(_never)
    refused = len(ended.trials) - 1
    longer = _study(storage_url, ahead(3600), extend=True)
    longer.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert longer.trials[refused].state is TrialState.COMPLETE


def test_a_conflicting_deadline_takes_nothing_from_the_queue(storage_url: str) -> None:
    first = _study(storage_url)
    first.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    first.enqueue_trial({"x": 0.25})
    other = _study(storage_url, "2h")
    with pytest.raises(DeadlineConflict):
        other.optimize(_never, catch=(Exception,))
    assert _states(other) == {TrialState.COMPLETE: 1, TrialState.WAITING: 1}
    first.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert first.trials[1].params == {"x": 0.25}


def test_a_storage_without_a_table(tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    with pytest.raises(UnsupportedStorage, match="storage=URL"):
        _study(storage).optimize(_never)
    study = _study(storage, storage=f"sqlite:///{tmp_path / 'table.db'}")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert _states(study) == {TrialState.COMPLETE: 1}


def test_several_objectives() -> None:
    study = optuna.create_study(
        directions=["minimize"] * 2, pruner=DeadlinePruner("1h"), sampler=DeadlineSampler()
    )
    with pytest.raises(DeadlineError, match="2 objectives"):
        study.optimize(_never)


def test_a_pruner_that_is_older_than_its_deadline(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock=clock)
    clock.advance(101)
    with pytest.raises(DeadlineError, match="has passed"):
        study.optimize(_never)


@pytest.mark.parametrize(("deadline", "refused"), [("30s", True), ("90s", False)])
def test_a_process_that_joins_too_late_for_a_report(
    storage_url: str, deadline: str, refused: bool
) -> None:
    first = _study(storage_url, deadline)
    first.pruner._terms(first)  # type: ignore[attr-defined]
    for seconds, reports in ((600, 10), (90, 1)):
        values = dict.fromkeys(range(1, reports + 1), 1.0)
        trial = create_trial(value=1.0, intermediate_values=values)
        assert trial.datetime_start is not None
        trial.datetime_complete = trial.datetime_start + timedelta(seconds=seconds)
        first.add_trial(trial)
    late = _study(storage_url, deadline)
    if refused:
        with pytest.raises(
            DeadlineError, match="trials took 1 min or more to a report: a process"
        ):
            late.optimize(_never)
    else:
        late.optimize(lambda trial: 1.0, n_trials=1)
    assert len(late.trials) == 3


def test_a_trial_that_starts_near_the_deadline_is_no_error(
    storage: str | None, clock: Any
) -> None:
    """It was let in, and the deadline passed meanwhile."""
    study = _study(storage, clock=clock)

    def objective(trial: optuna.Trial) -> float:
        clock.advance(90 if trial.number else 25)
        return _train(trial, clock, 0.1)

    study.optimize(objective)
    assert _states(study).total() == 2
    study.optimize(_never)


def test_a_planner_opens_trials_whatever_the_pruner_says(ended: optuna.Study) -> None:
    planned = _planned(ended)
    assert planned.ask().should_prune() is False
    assert (planned.sampler, planned._storage) == (ended.sampler, ended._storage)


def test_a_worker_samples_for_the_deadline_whoever_made_the_study() -> None:
    """As on the command line; a wrapped sampler is the study's own."""
    study = optuna.create_study(sampler=optuna.samplers.QMCSampler(seed=1))
    planned = _planned(study)
    assert isinstance(planned.sampler, DeadlineSampler)
    assert planned.sampler._sampler is study.sampler
