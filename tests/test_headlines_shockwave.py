"""Shockwave's headlines: every row is there, with its data and without them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.headlines import shockwave
from benchmarks.headlines.rows import Options
from benchmarks.measuring import Progress


def options(data: Path | None, pictures: Path | None = None) -> Options:
    return Options(data, True, 1, pictures, Progress())


def write_data(folder: Path) -> None:
    """A trace of three jobs, and results of nobody's for it."""
    regime = {"batch_size": 32, "epochs": 5, "seconds_per_epoch": 60.0}
    jobs = [
        {"job": n, "arrival_s": 10.0 * n, "gpus": 1, "model": "LM", "regimes": [regime]}
        for n in range(3)
    ]
    trace = {"cluster_gpus": 2, "round_s": 120, "resume_overhead_s": 20, "jobs": jobs}
    keys = ("makespan_s", "worst_rho", "unfair_gt_1_05", "avg_jct_s")
    policies = {name: dict.fromkeys(keys, 600.0) for name in shockwave._SCHEDULERS}
    folder.mkdir(parents=True)
    (folder / shockwave._SMALL).write_text(json.dumps(trace))
    (folder / shockwave._EXPECTED).write_text(json.dumps({"policies": policies}))


def test_rows_that_lack_their_data_say_so() -> None:
    rows = list(shockwave._published(options(None), None))
    assert len(rows) == 10
    assert all(row.ours is None and not row.met and "shockwave" in row.note for row in rows)


def test_the_same_rows_with_data_hold_figures_and_make_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "shockwave"
    write_data(folder)
    given = options(tmp_path / "data", tmp_path)
    rows = list(shockwave._published(given, given.folder("shockwave")))
    lacking = shockwave._published(options(None), None)
    assert [row.name for row in rows] == [row.name for row in lacking]
    assert all(row.ours is not None for row in rows)
    assert (tmp_path / "shockwave.png").exists() and (tmp_path / "shockwave_rho.png").exists()


def test_ablations_have_the_same_rows_with_and_without_data(tmp_path: Path) -> None:
    write_data(tmp_path / "shockwave")
    rows = list(shockwave._ablations(options(tmp_path), tmp_path / "shockwave"))
    lacking = list(shockwave._ablations(options(None), None))
    assert [row.name for row in rows] == [row.name for row in lacking]
    assert [row.ours is not None for row in rows] == [True] * 5 + [False] * 5
    assert not any(row.met for row in lacking)


def test_a_folder_with_other_traces_gives_rows_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "shockwave"
    write_data(folder)
    (folder / shockwave._SMALL).rename(folder / "jobs_3_gpus_2.json")
    assert all(row.ours is None for row in shockwave._published(options(tmp_path), folder))
    rows = list(shockwave._others(options(tmp_path), folder))
    assert [row.name.partition(":")[0] for row in rows] == ["jobs_3_gpus_2"] * 2
    assert all(row.ours is not None for row in rows)
