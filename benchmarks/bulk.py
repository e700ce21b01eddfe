"""Studies with thousands of trials in seconds, for the benchmarks.

SQLAlchemy Core's executemany writes rows into Optuna's tables and our table of rungs. A trial with
50 reports takes about 1 ms, with `add_trial` 30 to 90 ms. Reading finished trials through Optuna
takes more than 1 ms each in every new process. So Optuna's cache is filled from memory with what
that read would return (tests/test_benchmarks.py compares both), and benchmarks do not count it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy as sa
from optuna.distributions import FloatDistribution, distribution_to_json
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState

from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.schema import rung

PARAMS = ("lr", "dropout", "width")
_SPACE = FloatDistribution(0.0, 1.0)
_PIECE = 1000  # trials per transaction
_STARTED = datetime(2026, 1, 1)  # UTC, as Optuna's tables have it
_FINITE = {
    "value": models.TrialValueModel.TrialValueType.FINITE,
    "report": models.TrialIntermediateValueModel.TrialIntermediateValueType.FINITE,
}


@contextmanager
def databases(storage: str, count: int) -> Iterator[list[str]]:
    """Empty databases of a kind until the ``with`` block ends; PostgreSQL is durable."""
    with ExitStack() as stack:
        if storage == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="prune-cost-"))
            yield [f"sqlite:///{Path(folder) / f'{index}.db'}" for index in range(count)]
        else:
            server = stack.enter_context(EmbeddedPostgres(durable=True))
            yield [server.create_database(f"prune_cost_{index}") for index in range(count)]


def add_trials(
    study: optuna.Study, count: int, *, steps: int, state: TrialState, seed: int
) -> None:
    """Add trials that have reported at the steps 1 to ``steps``, all at once.

    The values are drawn between 0 and 1, whatever the step. Finished trials have the attributes of
    SuccessiveHalvingPruner; unfinished ones do not, which saves time in pruners that read them.
    Every trial has its values in our rungs.

    Args:
        study: A study on a database, with a fixed deadline.
        count: The number of trials.
        steps: The number of reports of each trial.
        state: COMPLETE or RUNNING.
        seed: The seed of values and parameters.
    """
    cached = study._storage
    assert isinstance(cached, _CachedStorage)
    engine = cached._backend.engine
    random = np.random.default_rng(seed)
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        with engine.begin() as connection:
            ids = _insert_trials(connection, study._study_id, size, state)
            trials = [
                _trial(trial_id, number, state, random.random(len(PARAMS)), random.random(steps))
                for trial_id, number in ids
            ]
            _insert_details(connection, study._study_id, trials)
        _remember(cached, study._study_id, trials)
    if engine.dialect.name == "postgresql":  # autovacuum would do so within a minute
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def _insert_trials(
    connection: sa.Connection, study_id: int, count: int, state: TrialState
) -> list[tuple[int, int]]:
    table = _table(models.TrialModel)
    mine = table.c.study_id == study_id
    first = connection.scalar(sa.select(sa.func.count()).where(mine)) or 0
    times = {"datetime_start": _STARTED}
    times |= {"datetime_complete": _STARTED} if state.is_finished() else {}
    rows = [
        {"number": number, "study_id": study_id, "state": state, **times}
        for number in range(first, first + count)
    ]
    connection.execute(table.insert(), rows)
    found = sa.select(table.c.trial_id, table.c.number).where(mine, table.c.number >= first)
    return [(row.trial_id, row.number) for row in connection.execute(found)]


def _trial(
    trial_id: int, number: int, state: TrialState, params: np.ndarray, reports: np.ndarray
) -> FrozenTrial:
    values = dict(enumerate(reports.tolist(), start=1))
    finished = state.is_finished()
    started = _STARTED.replace(tzinfo=timezone.utc).astimezone().replace(tzinfo=None)
    rungs = [(r, values[4**r]) for r in range(20) if 4**r in values]  # of halving by 4
    return FrozenTrial(
        number=number,
        state=state,
        value=values[len(values)] if finished else None,
        datetime_start=started,
        datetime_complete=started if finished else None,
        params=dict(zip(PARAMS, params.tolist(), strict=True)),
        distributions=dict.fromkeys(PARAMS, _SPACE),
        user_attrs={},
        system_attrs={f"completed_rung_{r}": v for r, v in rungs} if finished else {},
        intermediate_values=values,
        trial_id=trial_id,
    )


def _insert_details(connection: sa.Connection, study_id: int, trials: list[FrozenTrial]) -> None:
    space = distribution_to_json(_SPACE)
    params, values, reports, attributes, rungs = ([] for _ in range(5))
    for trial in trials:
        mine = {"trial_id": trial._trial_id}
        params += [
            mine | {"param_name": name, "param_value": value, "distribution_json": space}
            for name, value in trial.params.items()
        ]
        reports += [
            mine
            | {"step": s, "intermediate_value": v, "intermediate_value_type": _FINITE["report"]}
            for s, v in trial.intermediate_values.items()
        ]
        attributes += [
            mine | {"key": key, "value_json": json.dumps(value)}
            for key, value in trial.system_attrs.items()
        ]
        if trial.state.is_finished():
            values.append(
                mine | {"objective": 0, "value": trial.value, "value_type": _FINITE["value"]}
            )
        kept = list(trial.intermediate_values.values())
        rungs += [
            {
                "study_id": study_id,
                "rung": index,
                "number": trial.number,
                "value": kept[2**index - 1],
            }
            for index in range(len(kept).bit_length())
        ]
    newest = connection.scalar(
        sa.select(sa.func.max(rung.c.sequence)).where(rung.c.study_id == study_id)
    )
    rungs = [row | {"sequence": place} for place, row in enumerate(rungs, (newest or 0) + 1)]
    for table, rows in (
        (_table(models.TrialParamModel), params),
        (_table(models.TrialValueModel), values),
        (_table(models.TrialIntermediateValueModel), reports),
        (_table(models.TrialSystemAttributeModel), attributes),
        (rung, rungs),
    ):
        if rows:
            connection.execute(table.insert(), rows)


def _remember(cached: _CachedStorage, study_id: int, trials: list[FrozenTrial]) -> None:
    """Fill the cache as `_CachedStorage` does after it has read trials."""
    known = cached._studies.setdefault(study_id, _StudyInfo())
    cached._add_trials_to_cache(study_id, trials)
    for trial in trials:
        if trial.state.is_finished():
            known.last_finished_trial_id = max(known.last_finished_trial_id, trial._trial_id)
        else:
            known.unfinished_trial_ids.add(trial._trial_id)


def _table(model: Any) -> sa.Table:
    table: sa.Table = model.__table__
    return table
