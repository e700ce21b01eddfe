"""SQLite, which keeps no statistics of our tables, finds rows by an index all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.database.engine import open_table
from optuna_deadline.allocation.database.schema import PREFIX
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.study import terms as study_terms

Work = Callable[[AllocationTable], object]


@pytest.mark.parametrize(
    ("work", "searches"),
    [
        (lambda table: table.reports(number=7), ["report (study_id=? AND number=?)"]),
        (lambda table: table.reports(after=7), ["report (study_id=? AND id>?)"]),
        (
            lambda table: table.segments(since=7.0),
            ["segment (study_id=? AND ended=?)", "segment (study_id=? AND ended>?)"],
        ),
        (lambda table: table.checkpoints(7), ["checkpoint (study_id=? AND number=?)"]),
        (lambda table: table.events(7, ("plan",)), ["event (study_id=? AND id>?)"]),
        (lambda table: table.pool_events(7), ["event (pool=? AND id>?)"]),
    ],
)
def test_what_is_asked_on_a_loop_is_found_by_an_index(
    sqlite_url: str, work: Work, searches: list[str]
) -> None:
    study = optuna.create_study(storage=sqlite_url, study_name="study")
    engine = open_table(study)
    terms = study_terms.fix(engine, study, "1h")
    table = AllocationTable(engine, "pool", terms.study_id)
    said: list[tuple[str, Any]] = []

    def note(c: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        said.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    work(table)
    sa.event.remove(engine, "before_cursor_execute", note)
    asked = [(s, p) for s, p in said if f"FROM {PREFIX}" in s]
    assert asked
    with engine.connect() as connection:
        plans = [
            str(row[3])
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    found = [plan for plan in plans if plan.startswith(("SEARCH", "SCAN"))]
    short = [_short(plan) for plan in found]
    assert short == searches


def _short(plan: str) -> str:
    """``report (study_id=?)`` for SEARCH optuna_deadline_report USING INDEX x (study_id=?)."""
    name = plan.split()[1].removeprefix(PREFIX)
    return f"{name} {plan[plan.index('(') :]}" if "(" in plan else f"SCAN {name}"
