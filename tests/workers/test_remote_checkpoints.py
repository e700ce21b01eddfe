"""Checkpoints in an object store, with real workers and a real S3 protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import objectives
import optuna
import pytest
from endings import run_until, saved
from forked import WorkerProcess
from object_store import BUCKET, environment, object_store
from tables import table_of, wait_until

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.checkpoints import storage
from optuna_deadline.checkpoints.files import intact, verified
from optuna_deadline.checkpoints.storage import StoreAway
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Given

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"another_machine|as_one_here|away")]
Start = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the store that this module's tests share."""
    pytest.importorskip("s3fs")
    with object_store() as port:
        yield port


@pytest.fixture
def bucket(port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A place of the test's own."""
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def folder_of(study: optuna.Study, bucket: str) -> str:
    """Where the study's first trial has its checkpoints."""
    root = storage.root_of(bucket, study.study_name, agreement.key(open_table(study), study))
    return f"{root}/trial-0"


def test_a_file_there_is_as_one_here(bucket: str, tmp_path: Path) -> None:
    url, file, back = f"{bucket}/a/b.ckpt", tmp_path / "b", tmp_path / "back"
    file.write_bytes(os.urandom(6 << 20))
    storage.check(bucket)
    with pytest.raises(FileNotFoundError):
        storage.size(url)
    storage.upload(file, url)
    assert storage.size(url) == 6 << 20
    storage.fetch(url, back)
    assert back.read_bytes() == file.read_bytes()
    storage.remove(url)
    storage.remove(url)
    with pytest.raises(FileNotFoundError), storage.open_file(url):
        pass
    with pytest.raises(DeadlineError, match="bucket does not exist"):
        storage.check("s3://no-such-bucket/a")


def test_a_store_that_is_away_is_told_from_a_file_that_is_gone(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with pytest.raises(StoreAway):
        storage.size(f"{bucket}/a")
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_trial_goes_on_on_another_machine_from_the_newest_that_is_whole(
    sqlite_study: optuna.Study,
    sqlite_url: str,
    start_worker: Start,
    bucket: str,
    tmp_path: Path,
    log_text: Callable[[], str],
) -> None:
    """Nothing but the store is shared: each worker has a folder of its own."""
    agree(sqlite_study, "100s", Given("fifo"))
    table, log = table_of(sqlite_study), str(tmp_path / "pids")
    folder = folder_of(sqlite_study, bucket)
    first = start_worker(sqlite_url, "slow", folder=bucket, RANK_LOG=log)
    wait_until(lambda: any(row.step >= 4 for row in table.reports()))
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 130
    newest, before = table.checkpoints(0)[:2]
    assert str(newest.path).startswith(f"{folder}/") and intact(newest)
    torn = tmp_path / "torn"
    torn.write_bytes(b"{" * (newest.size - 1))
    storage.upload(torn, str(newest.path))
    assert not verified(newest) and intact(before)
    last = max(row.step for row in table.reports())
    second = start_worker(sqlite_url, "slow", folder=bucket, RANK_LOG=log)
    wait_until(lambda: any(row.step >= last + 3 for row in table.reports()))
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 130
    rows = [row for row in table.segments() if row.number == 0]
    assert [row.outcome for row in rows] == ["shutdown", "shutdown"]
    steps = [row.step for row in table.reports()]
    assert steps == list(range(len(steps)))
    assert "is damaged or missing; the trial resumes from the one before" in log_text()
    import s3fs

    kept = {str(row.path) for row in table.checkpoints(0)}
    there = s3fs.S3FileSystem(use_listings_cache=False).ls(folder)
    assert kept <= {f"s3://{name}" for name in there} and before.step < newest.step
    assert len(there) <= len(kept) + 1, "what no row names is deleted"


def test_killed_between_the_upload_and_its_row(
    sqlite_study: optuna.Study,
    sqlite_url: str,
    start_worker: Start,
    bucket: str,
    tmp_path: Path,
) -> None:
    """What has no row was never there: the trial goes on without it."""
    agree(sqlite_study, "100s", Given("fifo"))
    table, marker = table_of(sqlite_study), tmp_path / "fired"
    worker = start_worker(
        sqlite_url, "slow", folder=bucket, RANK_LOG=str(tmp_path / "pids"),
        OPTUNA_DEADLINE_CRASHPOINT=f"checkpoint.publish:exit:{marker}",
    )  # fmt: skip
    wait_until(lambda: marker.exists() and any(row.step >= 3 for row in table.reports()))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    died, went_on = [row for row in table.segments() if row.number == 0][:2]
    assert (died.outcome, went_on.outcome) == ("died", "shutdown")
    assert all(row.fence == 2 and intact(row) for row in table.checkpoints(0))
    import s3fs

    kept = {str(row.path) for row in table.checkpoints(0)}
    system = s3fs.S3FileSystem(use_listings_cache=False)
    there = {f"s3://{name}" for name in system.ls(folder_of(sqlite_study, bucket))}
    assert there <= kept, "what was uploaded and has no row is deleted when the trial goes on"
    steps = [row.step for row in table.reports()]
    assert steps == list(range(len(steps)))


def test_the_winner_is_in_the_store_and_its_line_loads_it(bucket: str) -> None:
    study = optuna.create_study(direction="maximize")
    result = run_until(saved(2), study, objectives.elastic, cpus=1, checkpoints=bucket)
    assert result.checkpoint_ok and str(result.checkpoint).startswith("s3://")
    line = result.how_to_load()
    program = f"import fsspec, json\n{line}\nprint(json.loads(checkpoint)['step'])"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.strip() == str(result.step), told.stderr
