"""The database's clock is set by an hour while trials train."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import objectives
import optuna
import pytest
from optuna.trial import TrialState
from set_clock import settable_clock
from tables import table_of, wait_until

import optuna_deadline


@pytest.mark.slow
@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_the_deadline_stays_as_far_away_and_one_line_says_so(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, step: float
) -> None:
    results: list[optuna_deadline.Result] = []
    with settable_clock() as clock:
        study = optuna.create_study(storage=sqlite_url, direction="maximize")

        def work() -> None:
            results.append(
                optuna_deadline.run(
                    study,
                    objectives.elastic,
                    cpus=2,
                    deadline="10s",
                    checkpoints=tmp_path,
                    worker=optuna_deadline.WorkerOptions(dashboard=False),
                )
            )

        began, thread = time.monotonic(), threading.Thread(target=work)
        thread.start()
        wait_until(lambda: len(table_of(study).reports()) > 20)
        clock.ahead = step
        thread.join(60)
        assert not thread.is_alive() and time.monotonic() - began >= 9
    [result] = results
    assert result.settled and abs(result.overshoot) < 5
    assert TrialState.RUNNING not in [trial.state for trial in study.get_trials()]
    lines = [r.getMessage() for r in caplog.records if "clock was set" in r.getMessage()]
    assert len(lines) == 1 and f"{'forward' if step > 0 else 'back'} by 1 h" in lines[0]
