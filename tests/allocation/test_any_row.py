"""A row of any content is read, or refused by one sentence: everyone with the login can write."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from optuna_deadline import DeadlinePruner
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import disconnect, open_table
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError, LeaseLost, StudyGone
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.study import agreement, policy_choice
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import make_budget

COMMANDS = (
    "status s --json",
    "status s --events",
    "status s --forecast",
    "load-best s",
    "status --pool",
)
COLUMNS = [
    column
    for table in schema.metadata.sorted_tables
    if table is not schema.version
    for column in table.columns
]
_TEXTS = st.sampled_from(
    ["", "junk", "null", "[1]", "[[1]]", '[["a"]]', '[["a", "b"]]', "[[null, null]]", "{}",
     '{"a": 1}', '{"price": {}, "amount": 1}', "[" * 9999, "NaN", "\x1b[31m", "é" * 600, "../x",
     '{"price": {"per_hour": 1}, "amount": "x"}', "s3://x", "running", "paused", "live"]
)  # fmt: skip


def _values(column: sa.Column[Any]) -> st.SearchStrategy[Any]:
    """What PostgreSQL takes in a column."""
    kind = column.type.impl if isinstance(column.type, sa.TypeDecorator) else column.type
    length = getattr(kind, "length", None)
    if isinstance(kind, sa.Boolean):
        found: st.SearchStrategy[Any] = st.booleans()
    elif isinstance(kind, sa.Integer):
        most = 2**63 - 1 if isinstance(kind, sa.BigInteger) else 2**31 - 1
        found = st.sampled_from([-1, 0, 1, 2, most, -most])
    elif isinstance(kind, sa.Double):
        found = st.sampled_from([-1.0, 0.0, 1e18, 1e308, -1e308, float("inf"), float("-inf")])
    else:
        found = _TEXTS.map(lambda text: text[:length])
    return st.one_of(found, st.none()) if column.nullable else found


_DAMAGE = st.sampled_from(COLUMNS).flatmap(
    lambda column: st.tuples(st.just(column), _values(column))
)


@pytest.fixture(scope="module")
def whole(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a row of each kind."""
    path = tmp_path_factory.mktemp("whole") / "study.db"
    shutil.copy(sqlite_template, path)
    study = optuna.create_study(study_name="s", storage=f"sqlite:///{path}", direction="maximize")
    database = open_table(study)
    agree(study, "1h", Given(budget=make_budget(100, 3)))
    table = AllocationTable(database, "s", study._study_id)
    table.register("me", "node7", 1, ["gpu:0", "gpu:1"], 0)
    term = table.elect_planner("me")
    assert term is not None and table.elect_leader("me") is not None
    for number in range(2):
        trial = study.ask({"lr": optuna.distributions.FloatDistribution(0, 1)})
        table.open_trial("me", term, number, trial._trial_id)
    table.write_plan("me", term, [Assignment(0, "run", "me", 2, "starts")])
    grant = table.acquire("me", 0, [1, 2])
    assert grant is not None
    for step in range(1, 6):
        table.add_reports("me", grant, [NewReport(step, 1 - 0.5 / step, 10.0 * step)])
    table.set_progress(
        "me", grant, startup=1.0, position_from=0.0, position_to=6.0, trained=60.0, horizon=50
    )
    table.add_checkpoint("me", grant, Checkpoint(0, grant.fence, 5, 0.9, path, 7, "0" * 64))
    own = {"study_id": study._study_id, "number": 0, "fence": grant.fence}
    with autocommit(database.engine) as connection:
        connection.execute(sa.insert(schema.part).values(
            **own, worker="me", leader="me", size=2, first=0, slots=[(1, 1), (2, 1)],
            devices=["gpu:0", "gpu:1"],
        ))  # fmt: skip
        connection.execute(
            sa.insert(schema.meeting).values(**own, address="127.0.0.1", port=1, link=2, key="k")
        )
        connection.execute(sa.update(schema.trial).values(desired_others=[("you", 1)]))
        connection.execute(
            sa.insert(schema.rung).values(study_id=1, rung=0, number=0, value=0.5, sequence=1)
        )
    disconnect(database)
    with sqlite3.connect(path) as last:
        last.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def _uses(study: optuna.Study, database: Database) -> Iterator[Callable[[], object]]:
    """What processes do with a study."""
    table = AllocationTable(database, "s", study._study_id)
    yield lambda: agreement.read(database, study)
    yield lambda: agreement.read_all(database)
    for name in ("roster", "trials", "segments", "reports", "checkpoints", "events"):
        yield getattr(table, name)
    for name in ("orders", "memberships", "free_slots"):
        yield lambda name=name: getattr(table, name)("me")  # type: ignore[misc]
    yield lambda: table.acquire("me", 0, [1, 2])
    yield lambda: table.renew("me", [(1, 1), (2, 1)])
    planner = Planner(
        OptunaTrials(study), table, policy_choice.make(None, {}), direction="maximize",
            worker_id="me",
    )  # fmt: skip
    yield planner.tick
    yield planner.tick
    study.pruner = DeadlinePruner("1h")
    yield lambda: study.optimize(_report, n_trials=1)
    yield lambda: agreement.extend(database, study, "3h")


def _report(trial: optuna.Trial) -> float:
    trial.report(0.5, 1)
    trial.should_prune()
    return 0.5


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@example(damage=(schema.trial.c.pinned, -(2**31) + 1), command=COMMANDS[0])  # a pool without end
@given(damage=_DAMAGE, command=st.sampled_from(COMMANDS))
def test_a_row_is_read_or_refused_in_words(
    whole: Path, damage: tuple[sa.Column[Any], Any], command: str
) -> None:
    column, value = damage
    logging.getLogger("optuna_deadline").setLevel(logging.CRITICAL)
    with TemporaryDirectory() as folder:
        path = shutil.copy(whole, folder)
        with sqlite3.connect(path) as writer, suppress(sqlite3.IntegrityError):
            writer.execute(f'UPDATE {column.table.name} SET "{column.name}" = ?', (value,))
        writer.close()
        url = f"sqlite:///{path}"
        study = optuna.load_study(study_name="s", storage=url)
        database = None
        with suppress(DeadlineError):
            database = open_table(study)
            for use in _uses(study, database):
                with suppress(DeadlineError, StudyGone, LeaseLost):
                    use()
        asked = CliRunner().invoke(app, [*command.split(), "--storage", url])
        assert asked.exception is None or isinstance(asked.exception, SystemExit), command
        if database is not None:
            disconnect(database)
