"""A study from its first trial to its last, with real ranks."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import objectives
import optuna
import pytest
from endings import end_within, run_until, saved
from forked import WorkerProcess
from optuna.trial import FrozenTrial, TrialState
from tables import table_of, wait_until

import optuna_deadline
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import Result, agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.series import measure
from optuna_deadline.policies import Plan, Run, Snapshot, registry
from optuna_deadline.samplers._prospects import TableLook, by_dates
from optuna_deadline.study.terms import Given

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"postgres|plain|pause|raises|only_fails|never|nan|in_memory"),
]


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.get_trials(deepcopy=False)]


def check_end(study: optuna.Study, result: Result) -> None:
    """What holds at the end of every study."""
    assert result.settled
    assert result.overshoot <= 15  # a hang fails; benchmarks/live measures how close the end is
    assert all(state.is_finished() for state in states(study))
    table = table_of(study)
    assert all(slot.holder is None for slot in table.slots())
    assert all(line.end_reported for line in table.trials())
    reported = [row.value for row in table.reports() if not math.isnan(row.value)]
    assert (TrialState.COMPLETE in states(study)) >= bool(reported)


def test_the_best_model_is_complete_and_on_disk(study: optuna.Study, tmp_path: Path) -> None:
    def has_paused(table: AllocationTable) -> bool:
        return any(segment.outcome == "pause" for segment in table.segments())

    result = run_until(has_paused, study, objectives.elastic, cpus=2, checkpoints=tmp_path)
    check_end(study, result)
    assert (
        result.checkpoint is not None and result.checkpoint_ok and result.trial_number is not None
    )
    saved = json.loads(result.checkpoint.read_text())
    assert saved == {"number": result.trial_number, "step": result.step}
    trials = study.get_trials(deepcopy=False)
    values = [v for t in trials for v in t.intermediate_values.values()]
    assert result.value == max(values)
    assert trials[result.trial_number].state is TrialState.COMPLETE
    assert set(states(study)) == {TrialState.COMPLETE, TrialState.PRUNED}
    ended = {segment.outcome for segment in table_of(study).segments()}
    assert "pause" in ended
    reports = table_of(study).reports()
    for trial in trials:  # what Optuna was told is what the table has, step by step
        mine = {row.step: row.value for row in reports if row.number == trial.number}
        assert mine == trial.intermediate_values
        assert sorted(mine) == list(range(len(mine)))
    check_paces(study, trials)


def check_paces(study: optuna.Study, trials: list[FrozenTrial]) -> None:
    """A sampler knows the paces of trials that waited: the time they waited for is no training."""
    seen = TableLook()(study, trials)
    assert seen.left < 3  # `run_until` has moved the deadline near: 100 s were asked
    dates = by_dates(trials, datetime.now())
    rows = table_of(study).segments()
    speedup = measure(rows).speedup
    assert seen.step_seconds
    for number, seconds in seen.step_seconds.items():
        fastest = max(speedup(row.slots) for row in rows if row.number == number)
        assert 0 < seconds <= dates[number] * fastest  # a step on one slot; a gang's is shorter


def test_ranks_agree_and_inherit_nothing(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "ranks.jsonl"
    monkeypatch.setenv("RANK_LOG", str(log))
    monkeypatch.setitem(registry._OURS, "scripted", OneTrialOnOneTwoOne)
    blocker = threading.Event()
    thread = threading.Thread(target=blocker.wait)
    thread.start()  # a thread of the parent's must not be in the ranks
    try:
        result = optuna_deadline.run(
            study,
            objectives.moved_twice,
            cpus=2,
            deadline="5m",
            checkpoints=tmp_path,
            policy="scripted",
        )
    finally:
        blocker.set()
        thread.join()
    check_end(study, result)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["threads"] for row in rows} == {2}  # its own two: the objective and the pipe
    assert len({row["parent"] for row in rows}) == 1
    params = {trial.number: trial.params for trial in study.get_trials(deepcopy=False)}
    assert all(row["params"] == row["seen"] == params[row["number"]] for row in rows)
    gangs = [(row["number"], row["fence"], row["world"], row["rank"]) for row in rows]
    assert sorted(gangs) == [(0, 1, 1, 0), (0, 2, 2, 0), (0, 2, 2, 1), (0, 3, 1, 0)]
    [trial] = study.get_trials(deepcopy=False)
    assert sorted(trial.intermediate_values) == list(range(objectives.LAST + 1))


class OneTrialOnOneTwoOne:
    """A policy for one trial: one slot, then two, then one again."""

    def __init__(self, **parameters: object) -> None:
        pass

    def plan(self, snapshot: Snapshot) -> Plan:
        """By the steps reported so far."""
        if not snapshot.trials:
            return Plan(start=1)
        [trial] = snapshot.trials
        if not trial.alive:
            return Plan(gate_open=False)
        first, second = objectives.MOVES
        slots = 2 if first <= trial.step < second else 1
        return Plan({trial.number: Run(slots, "as scripted")})


def test_a_loop_that_cannot_pause_is_pruned_or_ends_in_time(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    result = run_until(
        lambda table: len(table.reports()) > 20,
        sqlite_study, objectives.plain, cpus=2, checkpoints=tmp_path,
    )  # fmt: skip
    check_end(sqlite_study, result)
    assert TrialState.COMPLETE in states(sqlite_study)
    assert not any(segment.slots > 1 for segment in table_of(sqlite_study).segments())


def test_an_objective_that_raises_fails_alone(
    sqlite_study: optuna.Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="optuna_deadline"):
        result = run_until(
            lambda table: len(table.trials()) > 1 and table.checkpoints(),
            sqlite_study, objectives.raises, cpus=2, checkpoints=tmp_path,
        )  # fmt: skip
    check_end(sqlite_study, result)
    assert states(sqlite_study)[1] is TrialState.FAIL and result.checkpoint_ok
    assert "Trial 1: the objective raised RuntimeError: this configuration" in caplog.text


def test_an_objective_that_only_fails_is_not_started_until_the_deadline(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    with pytest.raises(DeadlineError, match="trials failed and none has reported: fix the obj"):
        optuna_deadline.run(
            sqlite_study, objectives.broken, cpus=2, deadline="60s", checkpoints=tmp_path
        )
    assert all(slot.holder is None for slot in table_of(sqlite_study).slots())
    with pytest.raises(DeadlineError):  # and the same again: a mended objective would go on
        optuna_deadline.run(sqlite_study, objectives.broken, cpus=2, checkpoints=tmp_path)


def test_an_objective_that_never_reports_is_ended_and_named(
    sqlite_study: optuna.Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="optuna_deadline"):
        result = run_until(
            lambda table: table.segments(),
            sqlite_study, objectives.silent, cpus=1, checkpoints=tmp_path,
        )  # fmt: skip
    check_end(sqlite_study, result)
    assert result.trial_number is None
    assert "Trial 0 had not reported by the deadline, " in caplog.text
    assert "call trial.report(value, step)" in caplog.text


def test_a_trial_that_reports_nan_is_pruned_with_one_warning(
    sqlite_study: optuna.Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="optuna_deadline"):
        result = run_until(
            lambda table: any(row.number == 1 and not row.alive for row in table.trials()),
            sqlite_study, objectives.diverges, cpus=2, checkpoints=tmp_path,
        )  # fmt: skip
    check_end(sqlite_study, result)
    assert result.value is not None and not math.isnan(result.value)
    assert caplog.text.count("Trial 1 reported NaN") == 1
    assert "Trial 1 reported NaN at step 0; it is pruned." in caplog.text
    events = table_of(sqlite_study).events(kinds=["plan"])
    assert any(e.number == 1 and "not a finite number" in str(e.detail) for e in events)


def test_a_callable_object_carries_its_data(sqlite_study: optuna.Study, tmp_path: Path) -> None:
    result = run_until(
        saved(1), sqlite_study, objectives.WithData([1.0, 2.0, 3.0]), cpus=1, checkpoints=tmp_path
    )
    check_end(sqlite_study, result)
    assert result.value is not None


def test_in_memory_studies_work_in_one_process(tmp_path: Path) -> None:
    study = optuna.create_study(direction="minimize")
    result = run_until(saved(1), study, objectives.elastic, cpus=1, checkpoints=tmp_path)
    check_end(study, result)
    values = [v for t in study.trials for v in t.intermediate_values.values()]
    assert result.value == min(values)


def test_two_workers_share_a_study(
    study: optuna.Study, storage_url: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    agree(study, "100s", Given(None, {"reduction_factor": 4}))
    table = table_of(study)
    workers = [start_worker(storage_url, "elastic", cpus=2) for _ in range(2)]

    def used() -> int:
        return len({event.worker for event in table.events() if event.kind == "acquire"})

    wait_until(lambda: used() == 2 or any(worker.poll() is not None for worker in workers))
    end_within(table, 4)
    assert [worker.wait(30) for worker in workers] == [0, 0]
    assert used() == 2
    assert all(state.is_finished() for state in states(study))
    settles = [event for event in table.events() if event.kind == "settle"]
    assert len(settles) == 1
