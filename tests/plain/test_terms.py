"""The first use fixes the terms, everybody else joins or is refused."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.opening import connect, disconnect, open_table
from optuna_deadline.errors import DeadlineConflict, DeadlineError, UnsupportedStorage
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Given

pytestmark = pytest.mark.nightly_but(r"at_once|later_only")  # the PostgreSQL twins
PARAMETERS = {"min_resource": 1, "max_resource": None, "reduction_factor": 4}


def _study(storage: Any, name: str = "s") -> optuna.Study:
    return optuna.create_study(storage=storage, study_name=name, load_if_exists=True)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(time.time() + seconds, timezone.utc)


def test_first_use_fixes_and_others_read(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    assert agreement.read(database, study) is None
    fixed = agreement.fix(database, study, "2h", Given(parameters=PARAMETERS), elapsed=100.0)
    assert fixed.study_id == study._study_id
    assert (fixed.name, fixed.direction, fixed.policy) == ("s", "minimize", "adaptive_halving")
    assert fixed.parameters == PARAMETERS
    assert fixed.duration == 7200.0
    assert fixed.deadline - fixed.started == pytest.approx(7200.0)
    assert fixed.deadline - time.time() == pytest.approx(7100.0, abs=5.0)
    assert fixed.direction == "minimize"
    hash(fixed)
    assert agreement.read(database, study) == fixed
    assert agreement.fix(database, study, "120min", Given(parameters=PARAMETERS)) == fixed


def test_absolute_deadline_is_taken_as_it_is(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    at = _at(3600)
    fixed = agreement.fix(database, study, at, elapsed=100.0)
    assert fixed.deadline == at.timestamp()
    assert fixed.duration is None
    assert agreement.fix(database, study, at.isoformat()) == fixed


def test_another_deadline_is_refused_and_both_are_named(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    agreement.fix(database, study, "2h")
    with pytest.raises(
        DeadlineConflict, match=r"2 h \(until .*asks for 3 h;.*optuna_deadline.extend"
    ):
        agreement.fix(database, study, "3h")
    with pytest.raises(DeadlineConflict):
        agreement.fix(database, study, _at(3600))


def test_extending_moves_it_for_everybody(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    fixed = agreement.fix(database, study, "2h")
    at = _at(3 * 3600)
    moved = agreement.fix(database, study, at, extend=True)
    assert moved.deadline > fixed.deadline + 3500
    assert agreement.read(database, study) == moved
    # The same once more joins, so that restarted workers do not push it ever further.
    assert agreement.fix(database, study, at, extend=True) == moved


def test_extending_is_later_only(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    agreement.fix(database, study, "2h")
    with pytest.raises(DeadlineConflict, match="later only"):
        agreement.fix(database, study, _at(3600), extend=True)


def test_a_duration_extends_a_deadline_that_has_passed_alone(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    fixed = agreement.fix(database, study, "2h", elapsed=3600.0)
    for restarted in ("2h", "90min", "3h"):
        with suppress(DeadlineConflict):
            agreement.fix(database, study, restarted, extend=True)
        assert agreement.read(database, study) == fixed, "a script that restarts moves nothing"
    with pytest.raises(DeadlineConflict, match=r"asks for 3 h;.*optuna_deadline.extend"):
        agreement.fix(database, study, "3h", extend=True)
    agreement.end_within(database, study, -1.0)
    moved = agreement.fix(database, study, "2h", extend=True)
    assert moved.deadline == pytest.approx(fixed.deadline + 3600, abs=60), "it runs again"


def test_each_extension_counts_from_now_whatever_duration_is_stored(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    fixed = agreement.fix(database, study, "1h", elapsed=600.0)
    moved = agreement.extend(database, study, "1h")
    assert moved.deadline == pytest.approx(fixed.deadline + 600, abs=60)
    again = agreement.extend(database, study, "1h")
    assert again.deadline >= moved.deadline  # the clock of SQLite counts milliseconds
    at = _at(7200)
    assert agreement.extend(database, study, at).deadline == pytest.approx(
        at.timestamp(), abs=0.01
    )
    for earlier in ("1h", _at(3600)):
        with pytest.raises(DeadlineConflict, match="later only"):
            agreement.extend(database, study, earlier)
    with pytest.raises(DeadlineError, match="has passed"):
        agreement.extend(database, study, _at(-5))


def test_a_study_without_a_deadline_is_not_extended(storage: str | None) -> None:
    study = _study(storage)
    with pytest.raises(DeadlineError, match="has no deadline: pass deadline='2h'"):
        agreement.extend(open_table(study), study, "1h")
    assert agreement.read(open_table(study), study) is None


def test_a_script_as_it_was_joins_after_its_deadline_was_moved(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    first, second = "2h", _at(3 * 3600)
    agreement.fix(database, study, first)
    agreement.extend(database, study, second)
    moved = agreement.extend(database, study, "5h")
    for script in (first, second, "5h"):
        assert agreement.fix(database, study, script) == moved
        assert agreement.fix(database, study, script, extend=True) == moved
    sooner = agreement.end_within(database, study, 600)
    assert sooner.deadline < moved.deadline
    for script in (first, second, "5h"):
        assert agreement.fix(database, study, script) == sooner
    with pytest.raises(DeadlineConflict):
        agreement.fix(database, study, "4h")


def test_a_script_joins_though_its_instant_has_passed_since(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    at = _at(3600)
    agreement.fix(database, study, at)
    moved = agreement.extend(database, study, "2h")
    assert agreement.fix(database, study, at, elapsed=-5400.0) == moved, "that much later, say"
    with pytest.raises(DeadlineError, match="has passed"):
        agreement.fix(database, study, _at(3000), elapsed=-5400.0)
    with pytest.raises(DeadlineError, match=r"of the study .* has passed; create a new study"):
        agreement.fix(database, study, at, elapsed=-9000.0)


def test_passed_deadlines(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    with pytest.raises(DeadlineError, match="has passed; give one in the future"):
        agreement.fix(database, study, _at(-5))
    assert agreement.read(database, study) is None
    at = _at(3600)
    agreement.fix(database, study, at)
    _pass(database, study, at.timestamp() - 7200)
    with pytest.raises(DeadlineError, match=r"create a new study, or .*optuna_deadline.extend"):
        agreement.fix(database, study, datetime.fromtimestamp(at.timestamp() - 7200, timezone.utc))
    moved = agreement.fix(database, study, "1h", extend=True)
    assert moved.deadline > time.time() + 3500
    _pass(database, study, time.time() - 1)
    with pytest.raises(DeadlineError, match=r"1 h .*has passed; create a new study"):
        agreement.fix(database, study, "1h")
    # Passed, so the same duration begins anew.
    assert agreement.fix(database, study, "1h", extend=True).deadline > time.time() + 3500


def test_passed_during_the_first_step_is_no_error(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    fixed = agreement.fix(database, study, "60s", elapsed=90.0)
    assert fixed.deadline < fixed.read
    assert agreement.fix(database, study, "60s", elapsed=80.0) == fixed


def _pass(database: Database, study: optuna.Study, deadline: float) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.update(schema.study).values(deadline=deadline))


def test_many_at_once_agree(storage_url: str) -> None:
    study = _study(storage_url)
    database = open_table(study)
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda k: agreement.fix(database, study, "2h", elapsed=float(k)), range(16))
        )
    assert len(set(found)) == 1


STORED = Given("hypersched", {"max_resource": 9, "recharge": 2.0}, None, 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Given("fifo"), "has policy 'hypersched' and this process asks for policy 'fifo'"),
        (Given("nonsense"), "asks for policy 'nonsense'"),
        (Given(parameters={"max_resource": 7}), "max_resource 9 .* max_resource 7"),
        (Given(parameters={"nonsense": 1}), "nonsense None .* nonsense 1"),
        (Given(parameters={"n_trials": 2}), "n_trials None .* n_trials 2"),
        (Given(max_slots=2), "max_slots 1 .* max_slots 2"),
        (Given("fifo", max_slots=2), "policy 'hypersched', max_slots 1 .* 'fifo', max_slots 2"),
    ],
)
def test_what_is_given_is_what_the_first_process_gave(given: Given, says: str) -> None:
    study = _study(None)
    database = open_table(study)
    fixed = agreement.fix(database, study, "2h", STORED)
    for same in (None, STORED, Given(parameters={"recharge": 2, "min_resource": None})):
        assert agreement.fix(database, study, "2h", same) == fixed
    with pytest.raises(DeadlineConflict, match=says):
        agreement.fix(database, study, "2h", given)
    assert agreement.read(database, study) == fixed


def test_a_first_process_gives_what_there_is(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    with pytest.raises(DeadlineError, match=r"no policy 'nonsense'; choose one of .*'hypersched'"):
        agreement.fix(database, study, "2h", Given("nonsense"))
    assert agreement.read(database, study) is None


def test_several_objectives_are_refused(storage: str | None) -> None:
    study = optuna.create_study(storage=storage, directions=["minimize", "maximize"])
    with pytest.raises(DeadlineError, match=r"2 objectives, .* single direction"):
        agreement.fix(open_table(study), study, "2h")


def test_deleted_and_created_again(storage: str | None) -> None:
    study = _study(storage)
    database = open_table(study)
    agreement.fix(database, study, "2h")
    optuna.delete_study(study_name="s", storage=study._storage)
    again = _study(study._storage)
    assert agreement.read(database, again) is None
    assert agreement.fix(database, again, "3h").duration == 10800.0


def test_opening_waits_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    study = _study(f"sqlite:///{path}")
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, writer.execute, ["COMMIT"])
    release.start()
    agreement.fix(open_table(study), study, "2h")
    release.join()
    writer.close()


def test_studies_of_one_database_are_apart(storage_url: str) -> None:
    first, second = _study(storage_url, "a"), _study(storage_url, "b")
    database = open_table(first)
    assert (
        agreement.fix(database, first, "2h").study_id
        != agreement.fix(database, second, "3h").study_id
    )


def test_journal_needs_a_table(tmp_path: Path, empty_url: str) -> None:
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    study = _study(journal)
    with pytest.raises(UnsupportedStorage, match="storage=URL"):
        open_table(study)
    database = open_table(study, empty_url)
    fixed = agreement.fix(database, study, "2h")
    assert agreement.read(database, study) == fixed
    other = agreement.fix(database, _study(journal, "other"), "3h")
    assert {fixed.study_id, other.study_id} == {1, 2}


def test_table_in_a_database_with_other_studies_is_refused(
    tmp_path: Path, storage_url: str
) -> None:
    _study(storage_url, "somebody's")
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    study = _study(journal)
    with pytest.raises(DeadlineError, match="a database without Optuna's tables"):
        agreement.fix(open_table(study, storage_url), study, "2h")


@pytest.mark.postgres
def test_both_postgres_drivers_mean_the_same_study(postgres_url: str) -> None:
    psycopg3 = postgres_url.replace("postgresql+psycopg2", "postgresql+psycopg")
    assert psycopg3 != postgres_url
    study = _study(postgres_url)
    database = open_table(study)
    fixed = agreement.fix(database, study, "2h")
    assert agreement.fix(connect(psycopg3), study, "2h") == fixed
    same = _study(psycopg3)
    assert agreement.fix(open_table(same), same, "2h") == fixed
    disconnect(connect(psycopg3))


def test_no_begin_and_no_commit_is_sent(storage_url: str, counting: Any) -> None:
    study = _study(storage_url)
    database = open_table(study)
    agreement.fix(database, study, "2h")
    with counting(study) as sent:
        agreement.read(database, study)
    assert len(sent) == 1, sent
