"""A study that is stopped ends as at its deadline, whoever works on it."""

from __future__ import annotations

import threading
from pathlib import Path

import objectives
import optuna
import pytest
from optuna.trial import TrialState
from tables import table_of, wait_until
from typer.testing import CliRunner

import optuna_deadline
from optuna_deadline.cli import app

pytestmark = pytest.mark.slow


def test_workers_keep_the_best_and_come_home(
    sqlite_study: optuna.Study, sqlite_url: str, tmp_path: Path
) -> None:
    study = sqlite_study
    results: list[optuna_deadline.Result] = []

    def work() -> None:
        results.append(
            optuna_deadline.run(
                study, objectives.elastic, cpus=2, deadline="10m", checkpoints=tmp_path
            )
        )

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: len(table_of(study).reports()) > 20, 60)
    name = study.study_name
    asked = ["stop", name, "--storage", sqlite_url, "--within", "4s"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    worker.join(60)
    [result] = results
    assert result.settled and result.checkpoint_ok and result.trial_number is not None
    trials = study.get_trials(deepcopy=False)
    assert trials[result.trial_number].state is TrialState.COMPLETE
    assert all(trial.state.is_finished() for trial in trials)
