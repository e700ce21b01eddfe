"""What cannot be trained on two slots goes on with one and completes, with the reason in words."""

from __future__ import annotations

from pathlib import Path

import one_slot_objective
import optuna
import pytest
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import registry

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

REASONS = {
    "plain": None,
    "stream": "cannot be distributed to 2 slots",
    "tail": "BatchNorm needs two samples or more on each slot",
    "sync": "SyncBatchNorm works on GPUs only",
    "unused": "Some parameters have no part in the loss",
}


def test_no_trial_is_lost_to_a_second_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: one_slot_objective.TwoSlotsEach())
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", direction="maximize")
    for kind in one_slot_objective.KINDS:
        study.enqueue_trial({"kind": kind})
    optuna_deadline.run(
        study,
        f"{one_slot_objective.__file__}:objective",
        cpus=2,
        deadline="240s",
        checkpoints=tmp_path,
        policy="scripted",
    )
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * len(REASONS)
    for trial, line in zip(study.trials, table.trials(), strict=True):
        expected = REASONS[trial.params["kind"]]
        epochs = sorted(trial.intermediate_values)
        assert epochs == list(range(one_slot_objective.EPOCHS)), trial.params
        sizes = [row.slots for row in table.segments() if row.number == line.number]
        if expected is None:
            assert (line.slot_limit, sizes) == (None, [1, 2])
        else:
            assert (line.slot_limit, sizes) == (1, [1, 2, 1])
            assert line.limit_reason is not None and expected in line.limit_reason
