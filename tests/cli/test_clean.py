"""``clean`` deletes what a study does not need any more, and says how much."""

from __future__ import annotations

import os
from pathlib import Path

import optuna
import pytest
from tables import table_of
from typer.testing import CliRunner

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment
from optuna_deadline.checkpoints.files import Checkpoint, checksum
from optuna_deadline.checkpoints.storage import root_of
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree
from optuna_deadline.planning.best_model import find_winner, kept_checkpoint
from optuna_deadline.study import agreement


@pytest.fixture
def study(sqlite_url: str, tmp_path: Path) -> optuna.Study:
    """Two trials with three checkpoints each; the first has ended, the second trains."""
    made = optuna.create_study(study_name="s", storage=sqlite_url)
    agree(made, "1h")
    table = table_of(made)
    table.register("me", "host", 1, [], 2)
    term = table.elect_planner("me")
    assert term is not None
    key = agreement.key(open_table(made), made)
    root = root_of(tmp_path, made.study_name, key)
    assert isinstance(root, Path)
    for number in range(2):
        trial = made.ask()
        table.open_trial("me", term, number, trial._trial_id)
        table.write_plan("me", term, [Assignment(number, "run", "me", 1, "starts")])
        grant = table.acquire("me", number, [number + 1])
        assert grant is not None
        folder = root / f"trial-{number}"
        folder.mkdir(parents=True)
        for step in range(3):
            path = folder / f"segment-{grant.fence:06}-step-{step:09}.ckpt"
            path.write_bytes(b"0" * 500)
            row = Checkpoint(number, grant.fence, step, -number + step, path, 500, checksum(path))
            table.add_checkpoint("me", grant, row)
        if number == 0:
            table.release("me", grant, "complete", ended="complete", value=0.0)
    return made


def files(tmp_path: Path) -> dict[str, int]:
    found = [path.parent.name for path in tmp_path.rglob("*.ckpt")]
    return {name: found.count(name) for name in sorted({*found})}


def test_it_keeps_the_best_model_and_what_still_trains(
    study: optuna.Study, tmp_path: Path
) -> None:
    url, folder = str(study._storage._backend.url), str(tmp_path)  # type: ignore[attr-defined]
    words = ["clean", study.study_name, "--storage", url, "--checkpoints", folder]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    # To minimize: the best is of the trial that trains, so nothing of the other is needed.
    assert "deleted 3 files (1.5 kB)" in done.output
    assert files(tmp_path) == {"trial-1": 3}
    assert "deleted 0 files" in CliRunner().invoke(app, words).output


def test_nothing_is_deleted_where_the_best_model_cannot_be_read(
    study: optuna.Study, tmp_path: Path
) -> None:
    table = table_of(study)
    assert kept_checkpoint(find_winner(table, "minimize")) is not None
    for path in tmp_path.rglob("*.ckpt"):
        os.truncate(path, 3)
    assert kept_checkpoint(find_winner(table, "minimize")) is None
