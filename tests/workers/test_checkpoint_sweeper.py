"""Files whose row never came are deleted when nobody can write it any more, and none else."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from pathlib import Path

import fsspec
import objectives
import optuna
import pytest
from endings import run_until, saved
from tables import table_of

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.checkpoints import storage
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.checkpoints.restore import (
    CheckpointFolders,
    CheckpointSweeper,
)
from optuna_deadline.checkpoints.storage import Location, join_location, parse_location
from optuna_deadline.elastic import ElasticWorker
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study import agreement

pytestmark = pytest.mark.nightly_but(r"True")
NAMED = "segment-000002-step-000000020.ckpt"
LOST = "segment-000002-step-000000030.ckpt"
TORN = ".segment-000002-step-000000040.ckpt.0123abcd.tmp"
THEIRS = ["epoch=3.ckpt", "notes.txt", ".hidden", "segment-2.ckpt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trial-4" / "deeper").mkdir(parents=True)
    for name in (NAMED, LOST, TORN, *THEIRS):
        (tmp_path / "trial-4" / name).write_text("x")
    return tmp_path


def row(folder: Path) -> Checkpoint:
    return Checkpoint(4, 2, 1, None, folder / "trial-4" / NAMED, 1, "crc32:0")


def left(folder: Path) -> set[str]:
    return {path.name for path in (folder / "trial-4").iterdir() if path.is_file()}


def swept(folder: Path, looked: int, granted: int, later: str = "") -> set[str]:
    """What is left after a look under one fence and a grant after another."""
    sweeping = CheckpointSweeper(CheckpointFolders(folder))
    sweeping.scan(4, looked, [row(folder)])
    sweeping._queue.submit(lambda: None).result()
    if later:
        (folder / "trial-4" / later).write_text("x")
    sweeping.sweep_unnamed(4, granted)
    sweeping.close(5)
    return left(folder)


def test_what_no_row_names_is_deleted_and_what_is_not_ours_stays(folder: Path) -> None:
    assert swept(folder, 2, 2) == {NAMED, *THEIRS}


def test_what_came_after_the_look_stays(folder: Path) -> None:
    new = "segment-000003-step-000000050.ckpt"
    assert swept(folder, 2, 2, later=new) == {NAMED, new, *THEIRS}


def test_a_look_that_comes_late_sees_the_next_segment_and_spares_it(folder: Path) -> None:
    new = ["segment-000003-step-000000050.ckpt", "3-50-ab12.ckpt", ".3-60-ab12.ckpt.0123abcd.tmp"]
    sweeping, go = CheckpointSweeper(CheckpointFolders(folder)), threading.Event()
    sweeping._queue.submit(go.wait)
    sweeping.scan(4, 2, [row(folder)])
    sweeping.sweep_unnamed(4, 2)
    for name in (*new, "2--1-ab12.ckpt"):
        (folder / "trial-4" / name).write_text("x")
    go.set()
    sweeping._queue.submit(lambda: None).result()
    sweeping.close(5)
    assert left(folder) == {NAMED, *new, *THEIRS}


def test_where_somebody_trained_since_the_look_nothing_is_deleted(folder: Path) -> None:
    before = left(folder)
    assert swept(folder, 2, 3) == before


def test_without_a_look_nothing_is_deleted(folder: Path) -> None:
    sweeping = CheckpointSweeper(CheckpointFolders(folder))
    sweeping.sweep_unnamed(4, 2)
    sweeping.scan(4, 0, [])  # a trial that begins
    sweeping.sweep_unnamed(4, 0)
    sweeping.close(5)
    assert {NAMED, LOST, TORN} <= left(folder)


def test_an_ended_trial_leaves_only_what_its_rows_name(folder: Path) -> None:
    (folder / "trial-5").mkdir()
    (folder / "trial-5" / LOST).write_text("x")
    sweeping = CheckpointSweeper(CheckpointFolders(folder))
    sweeping.sweep_all_ended([4, 6], [row(folder)])  # 5 has not ended, and of 6 there is nothing
    sweeping.close(5)
    assert left(folder) == {NAMED, *THEIRS}
    assert (folder / "trial-5" / LOST).exists() and not (folder / "trial-6").exists()


def put(*locations: Location) -> None:
    for location in locations:
        if isinstance(location, Path):
            location.parent.mkdir(parents=True, exist_ok=True)
            location.write_text("x")
        else:
            fsspec.open(location, "w").open().close()


def there(*locations: Location) -> list[bool]:
    found = []
    for location in locations:
        with suppress(FileNotFoundError):
            storage.size(location)
            found.append(True)
            continue
        found.append(False)
    return found


@pytest.fixture(params=["a folder", "a store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    return tmp_path / "own" if request.param == "a folder" else f"memory://{uuid.uuid4().hex}/own"


def test_a_row_deletes_no_file_but_our_own_below_the_studys_root(
    root: Location, tmp_path: Path
) -> None:
    """Whatever stands in the database: a path is what someone wrote there."""
    folder = join_location(root, "trial-4")
    mine = join_location(folder, NAMED)
    others = [
        join_location(folder, "epoch=3.ckpt"),
        join_location(join_location(folder, "deeper"), NAMED),
        join_location(join_location(root, "trial-5"), NAMED),
        join_location(join_location(parse_location(f"{root}-2"), "trial-4"), LOST),
        tmp_path / "home" / "trial-4" / NAMED,
        tmp_path / "home" / ".profile",
        f"memory://{uuid.uuid4().hex}/trial-4/{NAMED}",
    ]
    put(mine, *others)
    rows = [mine, *others, join_location(join_location(folder, ".."), f"../home/trial-4/{NAMED}")]
    sweeping = CheckpointSweeper(CheckpointFolders(root))
    sweeping.sweep(4, rows)
    sweeping.close(20)
    assert there(mine, *others) == [False, *[True] * len(others)]


def test_what_no_row_names_and_is_not_ours_stays_in_a_store_too(root: Location) -> None:
    names = {
        name: join_location(join_location(root, "trial-4"), name)
        for name in (NAMED, LOST, *THEIRS)
    }
    put(*names.values())
    sweeping = CheckpointSweeper(CheckpointFolders(root))
    sweeping.sweep_ended(4, [Checkpoint(4, 2, 1, None, names[NAMED], 1, "crc32:0")])
    sweeping.close(20)
    assert there(*names.values()) == [name != LOST for name in names]


def test_studies_of_one_name_in_two_databases_keep_their_checkpoints_in_one_place(
    root: Location, tmp_path: Path
) -> None:
    """The second sweeps what it has no row of, and what the first wrote is not there."""
    files, sweepings = [], []
    for day in ("monday", "tuesday"):
        study = optuna.create_study(study_name="train", storage=f"sqlite:///{tmp_path / day}.db")
        agreed = agreement.fix(open_table(study), study, "1h")
        worker = ElasticWorker(
            study, objectives.elastic, agreed, WorkerOptions(cpus=1, checkpoints=str(root))
        )
        files.append(join_location(join_location(worker._folder, "trial-0"), NAMED))
        sweepings.append(CheckpointSweeper(CheckpointFolders(worker._folder)))
    put(*files)
    sweepings[1].sweep_all_ended([0], [])
    sweepings[1].sweep(0, [files[0]])
    sweepings[1].close(20)
    assert there(*files) == [True, False]


@pytest.mark.slow
def test_a_study_of_the_same_name_in_another_database_deletes_none_of_its_checkpoints(
    tmp_path: Path,
) -> None:
    """One script on Monday's and on Tuesday's database, with one folder."""
    found = []
    for day in ("monday", "tuesday"):
        study = optuna.create_study(
            study_name="train", storage=f"sqlite:///{tmp_path / day}.db", direction="maximize"
        )
        result = run_until(
            saved(4), study, objectives.elastic, cpus=2, checkpoints=tmp_path / "shared"
        )
        assert result.checkpoint_ok
        found.append(study)
    for study in found:
        [row] = table_of(study).checkpoints()
        assert intact(row)


@pytest.mark.slow
@pytest.mark.parametrize("keep_all", [False, True])
def test_when_a_study_is_over_no_trial_has_a_file_without_a_row(
    keep_all: bool, sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    """Pruned ones too, and whatever a worker that was killed left behind."""
    study = sqlite_study
    engine = open_table(study)
    agreement.fix(engine, study, "100s")
    folder = storage.root_of(tmp_path, study.study_name, agreement.key(engine, study))
    assert isinstance(folder, Path)
    for number in range(3):
        (folder / f"trial-{number}").mkdir(parents=True)
        for name in (LOST, TORN, "notes.txt"):
            (folder / f"trial-{number}" / name).write_text("x")
    result = run_until(
        # A trial that never had a slot has no file of a worker: each of the three trains first.
        lambda table: sum(row.fence > 0 for row in table.trials() if row.number < 3) == 3
        and table.checkpoints(),
        study, objectives.elastic, cpus=2, checkpoints=tmp_path,
        worker=WorkerOptions(keep_all=keep_all),
    )  # fmt: skip
    assert result.checkpoint_ok and len(study.trials) >= 3
    kept = [checkpoint.path for checkpoint in table_of(study).checkpoints()]
    assert len(kept) > 1 if keep_all else kept == [result.checkpoint]
    named = {checkpoint.path for checkpoint in table_of(study).checkpoints()}
    files = {path for path in folder.rglob("*") if path.is_file()}
    assert named <= files and {one.name for one in files - named} == {
        "notes.txt",
        ".optuna-deadline-store",
    }
