"""SQLite, which keeps no statistics of our tables, finds rows by an index all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest

from optuna_deadline.allocation.database.access import listening
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.database.schema import PREFIX
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.study import agreement

Work = Callable[[AllocationTable], object]


@pytest.mark.parametrize(
    ("work", "searches"),
    [
        (lambda table: table.reports(number=7), ["r (study_id=? AND number=?)"]),
        (lambda table: table.reports(after=7), ["r (study_id=? AND id>?)"]),
        (
            lambda table: table.segments(since=7.0),
            ["g (study_id=? AND ended=?)", "g (study_id=? AND ended>?)"],
        ),
        (lambda table: table.checkpoints(7), ["c (study_id=? AND number=?)"]),
        (lambda table: table.events(7, ("plan",)), ["e (study_id=? AND id>?)"]),
        (lambda table: table.pool_events(7), ["e (pool=? AND id>?)"]),
    ],
)
def test_what_is_asked_on_a_loop_is_found_by_an_index(
    sqlite_url: str, work: Work, searches: list[str]
) -> None:
    study = optuna.create_study(storage=sqlite_url, study_name="study")
    database = open_table(study)
    terms = agreement.fix(database, study, "1h")
    table = AllocationTable(database, "pool", terms.study_id)
    statements: list[tuple[str, Any]] = []

    with listening(lambda text, params, _: statements.append((text, params))):
        work(table)
    asked = [(s, p) for s, p in statements if f"FROM {PREFIX}" in s]
    assert asked
    with database.engine.connect() as connection:
        plans = [
            str(row[3])
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    found = [
        plan for plan in plans if plan.startswith(("SEARCH", "SCAN")) and "json_each" not in plan
    ]
    short = [_short(plan) for plan in found]
    assert short == searches


def _short(plan: str) -> str:
    """``r (study_id=?)`` for SEARCH r USING INDEX x (study_id=?)."""
    name = plan.split()[1]
    return f"{name} {plan[plan.index('(') :]}" if "(" in plan else f"SCAN {name}"
