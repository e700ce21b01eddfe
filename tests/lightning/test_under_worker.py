"""The whole way: planner, table, worker, ranks, Lightning; one trial that is resized 1, 2, 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import worker_objective
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.policies import registry
from optuna_deadline.study import agreement

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"no_step|lost")]


def train(
    folder: Path,
    sizes: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
    objective: str = "objective",
) -> dict[str, Any]:
    folder.mkdir()
    monkeypatch.setenv("TRACE", str(folder))
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: worker_objective.Scripted(sizes))
    study = optuna.create_study(storage=f"sqlite:///{folder}/s.db", direction="maximize")
    result = optuna_deadline.run(
        study,
        f"{worker_objective.__file__}:{objective}",
        cpus=2,
        deadline="90s",
        checkpoints=folder,
        policy="scripted",
    )
    assert result.settled
    [trial] = study.trials
    assert trial.state is TrialState.COMPLETE
    database = open_table(study)
    table = AllocationTable(database, study.study_name, study._study_id)
    steps: dict[int, dict[str, Any]] = {}
    for line in (folder / "steps.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = steps.setdefault(row["step"], {**row, "ids": [], "seen": 0})
        step["ids"] = sorted(step["ids"] + row["ids"])
        step["seen"] += 1
    return {
        "steps": steps,
        "weights": torch.load(folder / "final.pt", weights_only=True),
        "values": trial.intermediate_values,
        "sizes": [segment.slots for segment in table.segments()],
        "validated": [(segment.validated, segment.trained) for segment in table.segments()],
        "result": result,
        "regimes": {row.step: row.regime for row in table.reports() if row.regime is not None},
        "row": StudyWatcher(table, agreement.read_stored(database, study)).view().rows[0],
    }


def test_a_resized_trial_ends_as_if_it_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tmp_path / "whole", {0: 1}, monkeypatch)
    resized = train(tmp_path / "resized", {0: 1, 3: 2, 7: 1}, monkeypatch)
    assert whole["sizes"] == [1] and resized["sizes"] == [1, 2, 1]
    assert len(whole["steps"]) == len(resized["steps"]) == worker_objective.EPOCHS * 10
    for number, step in whole["steps"].items():
        other = resized["steps"][number]
        assert other["seen"] == other["world"]  # each rank once: no step redone, none left out
        assert {k: other[k] for k in ("epoch", "lr", "ids")} == {
            k: step[k] for k in ("epoch", "lr", "ids")
        }
    for name, weights in whole["weights"].items():
        assert (weights - resized["weights"][name]).abs().max() < 1e-6
    assert resized["values"] == pytest.approx(whole["values"])
    assert all(0.0 < validated < trained for validated, trained in resized["validated"])
    worlds = [step["world"] for step in resized["steps"].values()]
    assert 1 in worlds and 2 in worlds


def test_the_winners_checkpoint_is_the_model_of_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run", {0: 1}, monkeypatch)
    result = run["result"]
    assert result.checkpoint_ok and result.value == max(run["values"].values())
    checkpoint = torch.load(result.checkpoint, weights_only=True)
    model = worker_objective.Net(tmp_path / "unused")
    model.load_state_dict(checkpoint["state_dict"])
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(200, 8, generator=generator, dtype=torch.float64)
    right = (model.body(x).argmax(1) == (x[:, :3].sum(1) > 0).long()).double().mean()
    assert float(right) == pytest.approx(result.value)


@pytest.mark.parametrize(
    ("objective", "changed"), [("accumulating", "batch 20 x 4"), ("doubling", "batch 40")]
)
def test_a_change_of_the_batch_is_a_regime_and_a_resize_is_none(
    objective: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "run", {0: 1, 7: 2}, monkeypatch, objective)
    assert run["sizes"] == [1, 2]
    first, then, resumed = run["regimes"].items()
    assert first == (0, "batch 20, 32-true") and then == (4, f"{changed}, 32-true")
    assert resumed[0] >= 7 and resumed[1] == then[1]
    assert run["row"].reason.endswith(f"; {changed}, 32-true since step 4")
