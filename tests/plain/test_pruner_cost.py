"""What a call of DeadlinePruner sends, whatever the number of trials; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages._rdb import models
from pruned import pruned_study, reported

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.opening import open_table

pytestmark = [pytest.mark.slow_names(r"1000"), pytest.mark.nightly_but(r"postgresql")]


def _fill(study: optuna.Study, trials: int) -> None:
    """Finished trials with ten reports each, written past the ORM."""
    numbers = range(1, trials + 1)
    now = datetime.now()
    database = study._storage._backend.engine  # type: ignore[attr-defined]
    with database.begin() as connection:
        connection.execute(
            sa.insert(models.TrialModel.__table__),
            [
                {
                    "number": k,
                    "study_id": study._study_id,
                    "state": "COMPLETE",
                    "datetime_start": now,
                    "datetime_complete": now,
                }
                for k in numbers
            ],
        )
        table = models.TrialModel.__table__
        rows = connection.execute(sa.select(table.c.number, table.c.trial_id))
        ids = {row.number: row.trial_id for row in rows}
        connection.execute(
            sa.insert(models.TrialIntermediateValueModel.__table__),
            [
                {
                    "trial_id": ids[k],
                    "step": step,
                    "intermediate_value": float(k),
                    "intermediate_value_type": "FINITE",
                }
                for k in numbers
                for step in range(10)
            ],
        )
    with open_table(study).engine.begin() as connection:
        connection.execute(
            sa.insert(schema.rung),
            [
                {
                    "study_id": study._study_id,
                    "rung": rung,
                    "number": k,
                    "value": float(k),
                    "sequence": k,
                }
                for k in numbers
                for rung in range(2)
            ],
        )


@pytest.mark.parametrize("trials", [10, 1000])
def test_two_statements_at_a_rung_and_one_between(
    storage_url: str, trials: int, counting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = pruned_study(storage_url)
    trial = study.ask()
    study.pruner._tracker(study)  # type: ignore[attr-defined]
    _fill(study, trials)
    monkeypatch.setattr(study, "get_trials", lambda *_, **__: pytest.fail("read all trials"))
    for step in range(20):
        trial.report(0.5, step)
        with counting(study) as sent:
            assert trial.should_prune() is False
        assert len(sent) == (2 if step + 1 in (1, 2, 4, 8, 16) else 1), sent
    worse = study.ask()
    worse.report(1e9, 0)
    with counting(study) as sent:
        assert worse.should_prune() is True
    # The third says why it was pruned, and asks Optuna's tables for the trial beforehand.
    assert sum("rung" in statement for statement in sent) == 2, sent


def test_many_threads_at_one_rung_lose_nothing(storage_url: str) -> None:
    study = pruned_study(storage_url)
    trials = [reported(study, float(k)) for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda trial: trial.should_prune(), trials))
    assert [trial.should_prune() for trial in trials] == [False] * 8 + [True] * 8
