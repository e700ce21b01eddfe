"""Names and values that a database refuses are errors inside the objective that passes them."""

from __future__ import annotations

from pathlib import Path

import objectives
import optuna
import pytest

import optuna_deadline


@pytest.mark.slow
def test_what_the_database_refuses_is_an_error_of_one_call(
    study: optuna.Study, tmp_path: Path
) -> None:
    result = optuna_deadline.run(
        study,
        objectives.refused_by_databases,
        cpus=1,
        deadline="60s",
        n_trials=1,
        checkpoints=tmp_path,
        policy="fifo",
        worker=optuna_deadline.WorkerOptions(oversubscribe=True),
    )
    [trial] = study.get_trials(deepcopy=False)
    assert trial.state.name == "COMPLETE" and result.overshoot < -10
    errors = trial.user_attrs["errors"]
    assert (errors["an endless number"], errors["no report"]) == ("ValueError", "TypeError")
    if study._storage._backend.engine.dialect.name == "postgresql":  # type: ignore[attr-defined]
        assert {errors[name] for name in ("a long key", "NUL in a name")} == {"ValueError"}
