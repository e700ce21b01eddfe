"""How a study ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.records import PlannedTrial, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.errors import StudyGone
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.api import Plan, Snapshot


def ended(number: int, trial_id: int) -> PlannedTrial:
    """A complete trial as the table has it."""
    return PlannedTrial(
        number, trial_id, "complete", fence=1, owner=None, mode="pause", worker=None, slots=0,
        reason="", since=0.0, horizon=None, value=0.5, end_reported=False, failures=0,
    )  # fmt: skip


def test_only_trials_that_nobody_ever_trained_are_adopted() -> None:
    study = optuna.create_study()
    on_the_table, stray, plain = study.ask(), study.ask(), study.ask()
    plain.suggest_float("x", 0, 1)
    OptunaTrials(study).end_strays({on_the_table.number})
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.RUNNING, TrialState.PRUNED, TrialState.RUNNING]
    assert stray.number == 1


@pytest.mark.parametrize(("count", "seconds", "copied"), [(900, 0.0, 900), (3000, 0.001, 1031)])
def test_optuna_has_all_reports_of_a_trial_unless_they_come_by_the_hundred(
    count: int, seconds: float, copied: int
) -> None:
    study = optuna.create_study()
    trial = study.ask()
    rows = [
        ReportRow(n, trial.number, n, float(n), 1, n * seconds, 0.0) for n in range(1, count + 1)
    ]
    trial.report(1.0, 1)
    OptunaTrials(study).end(
        replace(ended(trial.number, trial._trial_id), state="retired"), lambda: rows
    )
    [stored] = study.trials
    assert len(stored.intermediate_values) == copied and stored.last_step == count
    assert stored.state is TrialState.PRUNED and stored.value == count
    assert all(value == step for step, value in stored.intermediate_values.items())


class OpensOne:
    """Opens a trial and nothing else."""

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(start=1)


@pytest.mark.parametrize("answer_lost", [False, True])
def test_who_is_deposed_while_it_opens_a_trial_leaves_no_stray(answer_lost: bool) -> None:
    """The new planner has ended the study meanwhile, and looks for strays no more."""
    database, now = MemoryDatabase(), 1000.0

    def table(me: str) -> MemoryTable:
        made = MemoryTable(
            "pool", 1, now=lambda: now, deadline=1e6, ttl=30.0, grace=15.0, database=database
        )
        made.register(me, me, 1, [], 2)
        return made

    class Slow(OptunaTrials):
        """Between Optuna's answer and the table's, longer than a lease passes."""

        def open(self, params: Any = None) -> tuple[int, int]:
            nonlocal now
            number, trial_id = super().open(params)
            if answer_lost:
                frozen.open_trial("frozen", 1, number, trial_id)
            now += 31
            assert table("other").elect_planner("other") == 2
            return number, trial_id

    study = optuna.create_study()
    frozen = table("frozen")
    planner = Planner(
        Slow(study), frozen, OpensOne(), direction="minimize", worker_id="frozen",
        clock=lambda: now,
    )  # fmt: skip
    assert planner.tick() is False
    expected = TrialState.RUNNING if answer_lost else TrialState.PRUNED
    assert [trial.state for trial in study.trials] == [expected]
    assert len(frozen.trials()) == answer_lost


@pytest.fixture(params=["memory", "sqlite"])
def any_study(request: pytest.FixtureRequest) -> optuna.Study:
    """A study in each of Optuna's own storages, which say in different words that it is gone."""
    url = None if request.param == "memory" else request.getfixturevalue("sqlite_url")
    return optuna.create_study(storage=url)


DELETED: dict[str, Callable[[OptunaTrials, PlannedTrial], object]] = {
    "open": lambda trials, _: trials.open(),
    "end": lambda trials, line: trials.end(line, list),
    "drop": lambda trials, line: trials.drop(line.number),
    "adopt strays": lambda trials, _: trials.end_strays(set()),
}


@pytest.mark.parametrize("call", DELETED.values(), ids=DELETED)
def test_a_deleted_study_is_told_in_words(
    any_study: optuna.Study, call: Callable[[OptunaTrials, PlannedTrial], object]
) -> None:
    trials = OptunaTrials(any_study)
    line = ended(*trials.open())
    optuna.delete_study(study_name=any_study.study_name, storage=any_study._storage)
    with pytest.raises(StudyGone, match="was deleted while the worker ran"):
        call(trials, line)


def test_a_study_that_is_deleted_while_a_trials_end_is_told_is_gone(
    any_study: optuna.Study,
) -> None:
    trials = OptunaTrials(any_study)
    line = ended(*trials.open())

    def reports() -> list[ReportRow]:
        optuna.delete_study(study_name=any_study.study_name, storage=any_study._storage)
        return []

    with pytest.raises(StudyGone, match="was deleted while the worker ran"):
        trials.end(line, reports)


def test_an_error_of_the_sampler_is_not_taken_for_a_deleted_study(
    any_study: optuna.Study,
) -> None:
    class Broken(optuna.samplers.RandomSampler):
        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            raise KeyError("mine")

    any_study.sampler = Broken()
    with pytest.raises(KeyError, match="mine"):
        OptunaTrials(any_study).open()


@pytest.mark.parametrize("told_before", ["set_trial_intermediate_value", "set_trial_state_values"])
def test_two_planners_may_tell_one_end_at_once(
    monkeypatch: pytest.MonkeyPatch, told_before: str
) -> None:
    study = optuna.create_study()
    trial = study.ask()
    real = getattr(study._storage, told_before)

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        optuna.load_study(study_name=study.study_name, storage=study._storage).tell(trial, 0.5)
        return real(*args, **kwargs)

    monkeypatch.setattr(study._storage, told_before, overtaken)
    line = ended(trial.number, trial._trial_id)
    report = ReportRow(1, trial.number, step=0, value=0.5, slots=1, trained=1.0, at=0.0)
    OptunaTrials(study).end(line, lambda: [report])
    assert study.trials[0].state is TrialState.COMPLETE
    assert study.trials[0].value == 0.5
