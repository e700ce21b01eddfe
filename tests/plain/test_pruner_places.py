"""DeadlinePruner on every storage, in threads, and after the study was deleted."""

from __future__ import annotations

import gc
import math
import os
import socket
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from pruned import pruned_study, reported

from optuna_deadline import DeadlinePruner
from optuna_deadline.errors import (
    StudyGone,
    UnsupportedStorage,
)

# Not the twins on PostgreSQL.
pytestmark = pytest.mark.nightly_but(r"deleted_study|in_memory_has|stays|made_again|is_gone")
NAN, INF = math.nan, math.inf


def test_threads_share_it(storage: str | None) -> None:
    study = pruned_study(storage)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, 9):
            trial.report(x, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective, n_trials=16, n_jobs=4)
    states = [trial.state.name for trial in study.trials]
    assert set(states) <= {"COMPLETE", "PRUNED"}
    best = min(study.trials, key=lambda trial: trial.params["x"])
    assert best.state.name == "COMPLETE"


def test_two_studies_in_memory_with_one_pruner() -> None:
    pruner = DeadlinePruner("1h")
    first, second = optuna.create_study(pruner=pruner), optuna.create_study(pruner=pruner)
    assert first._study_id == second._study_id
    assert reported(first, 1.0).should_prune() is False
    assert reported(second, 2.0).should_prune() is False


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://"])
def test_each_sql_storage_in_memory_has_a_table_of_its_own(url: str) -> None:
    for deadline in ("1h", "2h"):
        pruner = DeadlinePruner(deadline)
        study = optuna.create_study(storage=url, study_name="same", pruner=pruner)
        assert reported(study, 1.0).should_prune() is False


@pytest.mark.parametrize("database", ["study.db", "file:study.db?uri=true"])
def test_the_table_stays_beside_the_study_where_the_objective_changes_folders(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "second"):
        place, elsewhere = tmp_path / folder, tmp_path / folder / "trial"
        elsewhere.mkdir(parents=True)
        monkeypatch.chdir(place)
        pruner = DeadlinePruner(f"{len(folder)}h")
        study = optuna.create_study(
            storage=f"sqlite:///{database}", study_name="same", pruner=pruner
        )
        trial = reported(study, 1.0)
        monkeypatch.chdir(elsewhere)
        assert trial.should_prune() is False
        assert not list(elsewhere.iterdir())
        assert (place / "study.db").exists()


def test_a_named_table_stays_where_the_pruner_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study(pruner=DeadlinePruner("1h", storage="sqlite:///table.db"))
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "trial")
    assert reported(study, 1.0).should_prune() is False
    assert (tmp_path / "table.db").exists()


def test_a_file_that_was_deleted_and_made_again_has_a_table_of_its_own(tmp_path: Path) -> None:
    for deadline in ("1h", "2h"):
        (tmp_path / "study.db").unlink(missing_ok=True)
        study = optuna.create_study(
            storage=f"sqlite:///{tmp_path / 'study.db'}",
            study_name="same",
            pruner=DeadlinePruner(deadline),
        )
        assert reported(study, 1.0).should_prune() is False


@pytest.mark.parametrize("url", [None, "sqlite:///study.db"])
def test_a_study_that_is_gone_leaves_no_file_open(
    url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        study = optuna.create_study(storage=url, pruner=DeadlinePruner("1h"))
        assert reported(study, 1.0).should_prune() is False
        del study
        gc.collect()
        opened.append(len(os.listdir("/dev/fd")))
    assert opened[-1] <= opened[1]


def test_journal_needs_table_and_works_with_it(tmp_path: Path, empty_url: str) -> None:
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    with pytest.raises(UnsupportedStorage, match=r"JournalStorage .*storage=URL"):
        reported(pruned_study(journal), 1.0).should_prune()
    study = pruned_study(journal, storage=empty_url)
    assert reported(study, 1.0).should_prune() is False
    assert reported(study, 2.0).should_prune() is True


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("beside", [False, True])
def test_grpc_proxy_needs_table(storage_url: str, tmp_path: Path, beside: bool) -> None:
    """The table may stand beside Optuna's behind the proxy, or in a database of its own."""
    pytest.importorskip("grpc")
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc.server import make_server

    backend = optuna.storages.get_storage(storage_url)
    optuna.create_study(storage=backend, study_name="another")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    server = make_server(backend, "localhost", port)
    server.start()
    proxy = GrpcStorageProxy(host="localhost", port=port)
    proxy.wait_server_ready(timeout=300)
    try:
        with pytest.raises(UnsupportedStorage, match=r"GrpcStorageProxy .*storage=URL"):
            reported(pruned_study(proxy), 1.0).should_prune()
        table = storage_url if beside else f"sqlite:///{tmp_path / 'table.db'}"
        study = pruned_study(proxy, storage=table)
        assert reported(study, 1.0).should_prune() is False
        assert reported(study, 2.0).should_prune() is True
        pruner = study.pruner
        assert isinstance(pruner, DeadlinePruner)
        assert pruner._terms(study).study_id == (2 if beside else 1)
    finally:
        proxy.close()
        server.stop(0)


@pytest.mark.postgres
def test_psycopg3(postgres_url: str) -> None:
    url = postgres_url.replace("postgresql+psycopg2", "postgresql+psycopg")
    study = pruned_study(url)
    for value, expected in ((1.0, False), (2.0, True), (NAN, True), (-INF, False), (3.0, True)):
        assert reported(study, value).should_prune() is expected


def test_deleted_study_is_named(storage_url: str) -> None:
    study = pruned_study(storage_url)
    trial = reported(study, 1.0)
    trial.should_prune()
    frozen = trial._get_latest_trial()
    optuna.delete_study(study_name="s", storage=storage_url)
    with pytest.raises(StudyGone, match="'s' was deleted"):
        study.pruner.prune(study, frozen)
    frozen.intermediate_values = {1: 1.0, 4: 1.0}
    with pytest.raises(StudyGone, match="'s' was deleted"):
        study.pruner.prune(study, frozen)
