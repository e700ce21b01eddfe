"""The whole way: planner, table, worker, ranks, a hand-written loop; resized 1, 2, 1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import loop_objective
import optuna
import pytest
import worker_objective
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import Plan, Run, Snapshot, registry

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"no_step_is_lost.*2|no_third")]


class OnceItDies(worker_objective.Scripted):
    """Gives a trial one slot, until its process waits for another number to die."""

    def plan(self, snapshot: Snapshot) -> Plan:
        struck = (Path(os.environ["TRACE"]) / "struck").exists()
        return (
            super().plan(snapshot)
            if struck or not snapshot.trials
            else Plan({trial.number: Run(1, "it lives") for trial in snapshot.trials})
        )


@pytest.mark.parametrize("dies", [False, True], ids=["resized", "resized by a death"])
def test_no_step_is_lost_and_none_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setenv("TRACE", str(tmp_path))
    monkeypatch.setenv("MOVES", "1")
    if dies:
        monkeypatch.setenv("DIES", "1")
    policy = OnceItDies if dies else worker_objective.Scripted
    sizes = {0: 1, 3: 2, 6: 1}
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: policy(sizes))
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", direction="maximize")
    result = optuna_deadline.run(
        study,
        f"{loop_objective.__file__}:objective",
        cpus=2,
        deadline="90s",
        checkpoints=tmp_path,
        policy="scripted",
    )
    [trial] = study.trials
    assert trial.state is TrialState.COMPLETE and result.checkpoint_ok
    assert sorted(trial.intermediate_values) == list(range(loop_objective.EPOCHS))
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    assert [segment.slots for segment in table.segments()] == [1, 2, 1]
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    for epoch in range(loop_objective.EPOCHS):
        mine = [row for row in rows if row["epoch"] == epoch]
        ids = [i for row in mine for i in row["ids"]]
        assert sorted({*ids} if dies else ids) == list(range(200)), "since the last checkpoint"
        assert {row["step"] for row in mine} == set(range(10 * epoch, 10 * epoch + 10))
    assert {row["world"] for row in rows} == {1, 2}


def test_a_trial_that_wants_even_slices_is_told_why_it_has_no_third_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE", str(tmp_path))
    monkeypatch.setenv("EVEN", "1")
    sizes = {0: 1, 3: 3}
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: worker_objective.Scripted(sizes))
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", direction="maximize")
    optuna_deadline.run(
        study,
        f"{loop_objective.__file__}:objective",
        cpus=3,
        deadline="90s",
        checkpoints=tmp_path,
        policy="scripted",
        worker=optuna_deadline.WorkerOptions(oversubscribe=True),
    )
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    assert [segment.slots for segment in table.segments()] == [1, 2]
    reasons = [event.detail["reason"] for event in table.events() if event.kind == "plan"]
    assert "2 of 3: 3 slots do not divide its batch of 20" in reasons
