"""A study is told from others of its name: in other databases, and before it was deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import disconnect, open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError, StudyGone
from optuna_deadline.study import agreement, terms


def _study(storage: Any, direction: str = "minimize") -> optuna.Study:
    return optuna.create_study(
        storage=storage, study_name="s", direction=direction, load_if_exists=True
    )


def _again(study: optuna.Study, direction: str = "minimize") -> optuna.Study:
    optuna.delete_study(study_name="s", storage=study._storage)
    return _study(study._storage, direction)


def _stored_key(database: Database) -> str | None:
    with autocommit(database.engine) as connection:
        found: str | None = connection.execute(sa.select(schema.study.c.key)).scalar_one()
        return found


@pytest.fixture
def engines(empty_url: str) -> Iterator[Callable[[optuna.Study], Database]]:
    """Opens the table in a database of its own."""
    opened: list[Database] = []

    def open_(study: optuna.Study) -> Database:
        opened.append(open_table(study, empty_url))
        return opened[-1]

    yield open_
    for database in opened:
        disconnect(database)


@pytest.fixture(params=["journal", "memory"])
def other_storage(request: pytest.FixtureRequest, tmp_path: Path) -> BaseStorage:
    """A storage that has no SQL database for the table."""
    if request.param == "memory":
        return InMemoryStorage()
    return JournalStorage(JournalFileBackend(str(tmp_path / "journal")))


def test_a_study_has_a_key_that_no_other_one_has(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    agreement.fix(database, study, "2h")
    key = agreement.key(database, study)
    assert key == _stored_key(database) == agreement.key(database, study)
    again = _again(study)
    database = open_table(again)
    agreement.fix(database, again, "2h")
    assert agreement.key(database, again) != key


def test_a_study_created_again_has_none_of_the_deleted_ones_terms_and_trials(
    other_storage: BaseStorage, engines: Callable[[optuna.Study], Database]
) -> None:
    """Also where the table has a database of its own, which Optuna deletes nothing from."""
    study = _study(other_storage, "maximize")
    database = engines(study)
    first = agreement.fix(database, study, "1h")
    table = AllocationTable(database, "s", first.study_id)
    table.register("w", "host", 1, [], 1)
    term = table.elect_planner("w")
    assert term is not None
    table.open_trial("w", term, 0, 0)
    table.leave("w")
    again = _again(study)
    assert agreement.read(database, again) is None
    second = agreement.fix(database, again, "2h")
    assert (second.direction, second.duration) == ("minimize", 7200.0)
    assert agreement.fix(database, again, "2h") == second
    table = AllocationTable(database, "s", second.study_id)
    assert table.trials() == [] and table.workers() == []
    assert table.events() == []
    with pytest.raises(StudyGone, match="was deleted"):
        agreement.read(database, study)


def test_a_deadline_of_a_deleted_study_that_has_passed_stops_nothing(
    other_storage: BaseStorage, engines: Callable[[optuna.Study], Database]
) -> None:
    study = _study(other_storage, "maximize")
    database = engines(study)
    agreement.fix(database, study, "60s", elapsed=50.0)
    with autocommit(database.engine) as connection:
        connection.execute(sa.update(schema.study).values(deadline=1.0))
    assert agreement.fix(database, _again(study), "60s").direction == "minimize"


def test_a_study_of_the_same_name_whose_workers_live_is_left_alone(
    tmp_path: Path, engines: Callable[[optuna.Study], Database]
) -> None:
    ours, theirs = (
        _study(JournalStorage(JournalFileBackend(str(tmp_path / name)))) for name in ("a", "b")
    )
    database = engines(theirs)
    fixed = agreement.fix(database, theirs, "1h")
    table = AllocationTable(database, "s", fixed.study_id)
    table.register("w", "host", 1, [], 1)
    with pytest.raises(DeadlineError, match=r"Workers still train another study named 's'.*table"):
        agreement.fix(database, ours, "2h")
    assert agreement.read(database, theirs) is not None
    table.leave("w")
    assert agreement.fix(database, ours, "2h").duration == 7200.0
    assert agreement.read(database, theirs) is None


def test_processes_that_meet_in_a_database_of_its_own_have_one_row(
    tmp_path: Path, engines: Callable[[optuna.Study], Database]
) -> None:
    journal = str(tmp_path / "journal")
    first = _study(JournalStorage(JournalFileBackend(journal)))
    database = engines(first)
    agreement.fix(database, first, "1h")
    _again(first)

    def meet(number: int) -> terms.Terms:
        study = _study(JournalStorage(JournalFileBackend(journal)))
        return agreement.fix(database, study, "2h", elapsed=float(number))

    with ThreadPoolExecutor(8) as pool:
        met = list(pool.map(meet, range(8)))
    assert len({(one.study_id, one.started) for one in met}) == 1
    assert {one.duration for one in met} == {7200.0}
