"""The database's clock is set by an hour while plain trials train."""

from __future__ import annotations

import optuna
import pytest
from set_clock import settable_clock

import optuna_deadline
from optuna_deadline import DeadlinePruner


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_the_time_that_is_left_stays_for_this_process_and_for_later_ones(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, step: float
) -> None:
    def left(loaded: optuna.Study) -> float:
        trial = loaded.ask()
        trial.report(0.5, 1)
        trial.should_prune()
        return optuna_deadline.time_left(loaded)

    with settable_clock() as clock:
        study = optuna.create_study(storage=sqlite_url, pruner=DeadlinePruner("300s"))
        assert left(study) == pytest.approx(300, abs=30)
        clock.ahead = step
        assert left(study) == pytest.approx(300, abs=30)
        later = optuna.load_study(
            study_name=study.study_name, storage=sqlite_url, pruner=DeadlinePruner("300s")
        )
        assert left(later) == pytest.approx(300, abs=30)
    [line] = [r.getMessage() for r in caplog.records if "clock was set" in r.getMessage()]
    assert f"{'forward' if step > 0 else 'back'} by 1 h" in line
