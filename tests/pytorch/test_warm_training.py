"""Two real trainings take turns on one slot without ending; no step differs from without turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import warm_objective
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import Plan, Run, Snapshot

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def alone(snapshot: Snapshot) -> Plan:
    """One trial from its beginning to its end."""
    alive = [trial for trial in snapshot.trials if trial.alive]
    orders = {trial.number: Run(1, "on") for trial in alive}
    begun = bool(snapshot.trials)
    return Plan(orders, start=0 if begun else 1, gate_open=bool(alive) or not begun)


def train(
    folder: Path, which: str, policy: Any, keep_warm: int
) -> tuple[list[dict[str, Any]], Any]:
    """All steps, and the study's table."""
    folder.mkdir()
    study = optuna.create_study(storage=f"sqlite:///{folder}/s.db", direction="minimize")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACE", str(folder))
        optuna_deadline.run(
            study,
            f"{warm_objective.__file__}:{which}",
            cpus=1,
            deadline="100s",
            checkpoints=folder,
            policy=policy,
            worker=optuna_deadline.WorkerOptions(keep_warm=keep_warm, dashboard=False),
        )
    assert all(trial.state is TrialState.COMPLETE for trial in study.trials)
    lines = (folder / "steps.jsonl").read_text().splitlines()
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    return [json.loads(line) for line in lines], table


@pytest.mark.parametrize("which", ["with_lightning", "by_hand"])
def test_in_turns_without_ending_every_step_is_the_one_that_would_have_come(
    tmp_path: Path, which: str
) -> None:
    notes, table = train(tmp_path / "turns", which, warm_objective.in_turns, keep_warm=2)
    outcomes = [segment.outcome for segment in table.segments()]
    assert outcomes.count("warm") >= 6 and set(outcomes) == {"warm", "complete"}
    for trial in (0, 1):
        mine = [note for note in notes if note["trial"] == trial]
        made = [note["step"] for note in mine if note["what"] == "step"]
        assert made == list(range(warm_objective.EPOCHS * warm_objective.BATCHES))
        assert len({note["pid"] for note in mine}) == 1, "one process from beginning to end"
        fences = {note["fence"] for note in mine}
        warm = [note["what"] for note in mine if note["what"] != "step"]
        assert warm == ["warm", "wake"] * (len(fences) - 1) and len(fences) > 2
    train(tmp_path / "alone", which, alone, keep_warm=0)
    woken = torch.load(tmp_path / "alone" / "final-0.pt")
    for trial in (0, 1):
        weights, average = torch.load(tmp_path / "turns" / f"final-{trial}.pt")
        assert all(torch.equal(weights[name], woken[0][name]) for name in woken[0])
        assert all(map(torch.equal, average, woken[1]))  # which no checkpoint holds
