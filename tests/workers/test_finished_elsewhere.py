"""Somebody tells Optuna a trial's end while a worker trains it."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import objectives
import optuna
import pytest
from optuna.trial import TrialState
from tables import table_of

import optuna_deadline

pytestmark = pytest.mark.slow


def test_it_is_stopped_and_not_started_again(
    sqlite_study: optuna.Study, sqlite_url: str, tmp_path: Path
) -> None:
    objective = partial(objectives.elastic, last=500)  # 40 s unless it is stopped

    def finish() -> None:
        study = optuna.load_study(study_name="study", storage=sqlite_url)
        table = table_of(study)
        while not any(row.number == 0 and row.step >= 2 for row in table.reports()):
            time.sleep(0.02)
        study.tell(0, state=TrialState.PRUNED)

    thread = threading.Thread(target=finish, daemon=True)
    thread.start()
    result = optuna_deadline.run(
        sqlite_study,
        objective,
        cpus=1,
        deadline="60s",
        n_trials=1,
        policy="fifo",
        checkpoints=tmp_path,
    )
    thread.join(5)
    assert result.settled
    table = table_of(sqlite_study)
    assert [s.outcome for s in table.segments() if s.number == 0] == ["finished"]
    assert (table.trials()[0].state, table.trials()[0].end_reported) == ("retired", True)
