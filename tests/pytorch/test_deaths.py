"""Whatever befalls the ranks of a gang, the trial goes on and no batch is left out."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from pathlib import Path

import optuna
import pytest
import struck_objective
import worker_objective
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import registry

pytestmark = pytest.mark.slow


def test_two_ranks_die_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed, the one and the other; frozen; asked to leave; out of memory. Then it completes."""
    monkeypatch.setenv("TRACE", str(tmp_path))
    scripted = worker_objective.Scripted({0: 2})
    monkeypatch.setitem(registry._OURS, "scripted", lambda **_: scripted)
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", direction="minimize")
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        result = optuna_deadline.run(
            study,
            f"{struck_objective.__file__}:objective",
            cpus=2,
            deadline="100s",
            checkpoints=tmp_path,
            policy="scripted",
            worker=optuna_deadline.WorkerOptions(hang_timeout=3.0),
        )
    [trial] = study.trials
    assert trial.state is TrialState.COMPLETE and result.checkpoint_ok
    assert sorted(trial.intermediate_values) == list(range(struck_objective.EPOCHS))
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    outcomes = [segment.outcome for segment in table.segments()]
    if outcomes[0] == "resize":  # a trial may begin on one slot before the plan gives it two
        del outcomes[0]
    assert outcomes == ["died", "died", "died", "keep", "died", "complete"]
    assert table.trials()[0].failures <= 1, "it got further between its deaths"
    words = caplog.text
    assert words.count("SIGKILL; often the machine was out of memory") == 2
    assert "no rank sent a message for 3 s or more" in words
    assert "out of memory: MemoryError: no room for 9 GB" in words

    # Each step is made from the same samples, in whichever segment, and none is left out.
    samples: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    halves: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in (tmp_path / "steps.jsonl").read_text().splitlines():
        row = json.loads(line)
        halves[row["fence"], row["step"]] += row["ids"]
        assert not row["imported"], "a rank imports what it could have been forked with"
    for (_, step), ids in halves.items():
        if len(ids) == 10:  # else the other rank was struck before it could say
            samples[step].add(tuple(sorted(ids)))
    assert sorted(samples) == list(range(struck_objective.EPOCHS * struck_objective.BATCHES))
    assert all(len(found) == 1 for found in samples.values())
    for epoch in range(struck_objective.EPOCHS):
        first = epoch * struck_objective.BATCHES
        ids = [i for s in range(first, first + struck_objective.BATCHES) for i in min(samples[s])]
        assert sorted(ids) == list(range(100))
