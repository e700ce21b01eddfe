"""Recorded data: tiny files of each kind are read as what they say, and mistakes are named."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation import Workload
from optuna_deadline.simulation.tables import load, load_prices, load_speedups, own
from optuna_deadline.simulation.tables.curves import less_is_better, to_workload

DATA = os.environ.get("OPTUNA_DEADLINE_TEST_DATA")
HP = {"hp": np.array([[0.1, 1.0], [0.2, 2.0], [0.3, 3.0]]), "hp_names": np.array(["lr", "width"])}


def peaks(workload: Workload) -> list[float]:
    return [workload.peak(index) for index in range(len(workload.curves))]


def scaled(values: list[list[float]]) -> np.ndarray[Any, Any]:
    """Curves up to a constant and a positive factor."""
    rows = np.array(values, dtype=float)
    return (rows - np.nanmin(rows)) / (np.nanmax(rows) - np.nanmin(rows))


@given(
    st.lists(
        st.lists(st.integers(-99, 99) | st.just(math.nan), min_size=4, max_size=4),
        min_size=3,
        max_size=9,
    ),
    st.booleans(),
)
def test_curves_keep_their_shape_and_regret_its_scale(
    rows: list[list[float]], minimize: bool
) -> None:
    values = np.array(rows, dtype=float)
    given = to_workload_or_none(values, minimize)
    if given is None:
        return
    scores = np.array(given.curves)
    assert np.array_equal(np.isnan(scores), np.isnan(values))
    assert given.best == pytest.approx(1.0)
    finite = [peak for peak in peaks(given) if math.isfinite(peak)]
    if math.isfinite(median(peaks(given))):
        assert median(peaks(given)) == pytest.approx(0.0, abs=1e-6)
    else:
        assert median(finite) == pytest.approx(0.0, abs=1e-6)
    order = -values if minimize else values
    kept = ~np.isnan(values)
    ranks, wanted = np.argsort(scores[kept]), order[kept]
    assert (np.diff(wanted[ranks]) >= 0).all()


def to_workload_or_none(values: np.ndarray[Any, Any], minimize: bool) -> Workload | None:
    """None where there is nothing to choose, which is refused in words."""
    seconds, hp = np.ones(len(values)), [{}] * len(values)
    try:
        return to_workload("x", Path("x.npz"), values, seconds, hp, minimize=minimize)
    except DeadlineError as error:
        assert "end alike" in str(error)
        return None


def test_taskset_is_read_without_the_untrained_evaluation(tmp_path: Path) -> None:
    losses = np.array([[9.0, 3.0, 1.0], [9.0, 2.0, 2.0], [9.0, np.inf, 4.0]], dtype=np.float32)
    np.savez(tmp_path / "SomeTask.npz", valid_loss=losses, **HP)
    (tuned,) = load(tmp_path)
    assert tuned.name == "taskset/SomeTask"
    assert tuned.curves[0] == (-1.0, 1.0) and tuned.curves[1] == (0.0, 0.0)
    assert math.isnan(tuned.curves[2][0]) and tuned.curves[2][1] == -2.0
    assert len(set(tuned.step_seconds)) == 1
    assert tuned.hyperparameters[1] == {"lr": 0.2, "width": 2.0}


def test_lcbench_gives_a_workload_for_each_data_set_with_its_seconds(tmp_path: Path) -> None:
    accuracy = np.array([[[5.0, 50, 60], [5, 40, 80], [5, 30, 30]]] * 2)
    clock = np.array([[[4.0, 6, 8], [1, 5, 4.9], [1, 2, 3]]] * 2)  # it goes back once
    np.savez(
        tmp_path / "other_name.npz",
        openml_task_id=np.array(["31", "7"]), val_accuracy=accuracy, time_s=clock, **HP,
    )  # fmt: skip
    first, second = load(tmp_path)
    assert {first.name, second.name} == {"lcbench/31", "lcbench/7"}
    assert first.step_seconds == (2.0, 2.0, 1.0)
    assert first.curves == ((-0.5, 0.0), (-1.0, 1.0), (-1.5, -1.5))
    assert first.report_seconds[0] == (2.0, 2.0) and min(first.report_seconds[1]) > 0
    assert sum(first.report_seconds[1]) == pytest.approx(4.0)


def test_a_recorded_table_is_read_in_its_own_direction(tmp_path: Path) -> None:
    about = {"name": "mine", "metric": "error", "direction": "minimize"}
    errors = np.array([[0.5, 0.1], [0.5, 0.3], [np.nan, np.nan]])
    seconds = np.array([[1.0, 3.0], [2.0, 2.0], [np.nan, np.nan]])
    np.savez(tmp_path / "x.npz", about=json.dumps(about), error=errors, seconds=seconds, **HP)
    (tuned,) = load(tmp_path / "x.npz")
    assert tuned.name == "recorded/mine" and tuned.best == 1.0
    assert tuned.step_seconds == (2.0, 2.0, 2.0)
    assert tuned.report_seconds == ((1.0, 3.0), (2.0, 2.0), (2.0, 2.0))
    assert tuned.curves[0] == pytest.approx((-1.0, 1.0)) and tuned.peak(2) == -math.inf


def write_algoperf(folder: Path, **changes: Any) -> None:
    """Three runs of one workload: the first is censored, the second whole, the third crashed."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    runs = {
        "run_id": [7, 8, 9, 10],
        "workload": ["talk"] * 4,
        "submission": ["adam", "sgd", "adam", "own"],
        "hparams": ['{"lr": 0.1}', '{"lr": 0.2}', '{"lr": 0.3}', None],
        "target_metric": ["wer"] * 4,
        "max_runtime_s": [60, 80, 60, 60],
        "eval_period_s": [10] * 4,
    }
    times = {
        7: [1, 11, 19, 31, 39],
        8: [1, 12, 22, 32, 42, 52, 62],
        9: [1, 2],
        10: [25, 30, 40, 45, 60],
    }
    wers = {
        7: [0.9, 0.8, 0.4, 0.3, 0.2],
        8: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.1],
        9: [0.9, 0.0],
        10: [0.9, 0.8, 0.7, 0.6, 0.6],
    }
    rows = [(run, at, wer) for run in times for at, wer in zip(times[run], wers[run], strict=True)]
    rows.reverse()  # the order in the file means nothing
    curves = {
        "run_id": [run for run, _, _ in rows],
        "accumulated_submission_time": [float(at) for _, at, _ in rows],
        "validation_wer": [wer for _, _, wer in rows],
        "global_step": [100 * run for run, _, _ in rows],
    }
    for table, name in ((runs, "a.parquet"), (curves, "b.parquet")):
        kept = {key: values for key, values in table.items() if key not in changes.get("drop", ())}
        parquet.write_table(pa.table(kept), folder / name)


def test_algoperf_is_read_by_time_and_holds_what_ended_early(tmp_path: Path) -> None:
    write_algoperf(tmp_path)
    (tuned,) = load(tmp_path)
    assert tuned.name == "algoperf/talk"
    assert tuned.steps == 6, "the smallest budget of any run"
    assert set(tuned.step_seconds) == {10.0}
    assert [hp["submission"] for hp in tuned.hyperparameters] == ["adam", "sgd", "own"]
    assert tuned.hyperparameters[0]["lr"] == 0.1 and len(tuned.hyperparameters[2]) == 1
    wanted = [
        [0.9, 0.4, 0.4, 0.2, 0.2, 0.2],  # held from 39 s on
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.4],
        [0.9, 0.9, 0.8, 0.7, 0.6, 0.6],  # the first evaluation came late
    ]
    assert scaled([list(c) for c in tuned.curves]) == pytest.approx(1 - scaled(wanted))


@pytest.mark.parametrize(
    ("metric", "less"),
    [("wer", True), ("loss", True), ("ctc_loss", True), ("cross_entropy", True),
     ("accuracy", False), ("ssim", False), ("mean_average_precision", False), ("bleu", False)],
)  # fmt: skip
def test_the_direction_follows_the_metric(metric: str, less: bool) -> None:
    assert less_is_better(metric) is less


def test_speedups_are_taken_at_a_constant_batch_on_the_fewest_nodes(tmp_path: Path) -> None:
    model = tmp_path / "anything" / "net"
    model.mkdir(parents=True)
    (model / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,4,1.0,0\n1,8,2.0,0\n2,4,1.25,0\n11,4,9.0,0\n"
        "44,4,4.0,1\n"
    )
    (model / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n8,8,4,20.0,0\n16,16,4,1.0,0\n"
    )
    speedup = load_speedups(tmp_path)["net"]
    # Eight examples: 2 s alone, 1.25 s by four on each of two; then the gang is what it costs.
    assert [speedup(k) for k in (1, 2, 8, 16)] == [1.0, 1.6, 0.5, 2.0]


def test_prices_are_by_gpu_hour(tmp_path: Path) -> None:
    (tmp_path / "cloud.csv").write_text(
        "Cloud,GPU Type,GPU Arch,GPUs,On-demand,Per-GPU,Spot,Name\n"
        "AWS,V100,Volta,4,12.24,3.06,3.6,p3.8xlarge\nLambda,H100,Hopper,1,2.0,2.0,,\n"
    )
    (tmp_path / "maker.csv").write_text(
        "instance;vCPU;Memory;price;type;GPU;GPUMemory\nml.m5;2;8 GiB;0.1;x;0;0\n"
        "ml.p3;8;61 GiB;4.0;x;2;16\n"
    )
    (tmp_path / "else.csv").write_text("a,b\n1,2\n")
    found = {price.instance: price for price in load_prices(tmp_path)}
    assert found.keys() == {"p3.8xlarge", "H100", "ml.p3"}
    assert found["p3.8xlarge"].gpu_hour == pytest.approx(3.06)
    assert found["p3.8xlarge"].spot_gpu_hour == pytest.approx(0.9)
    assert found["H100"].spot is None and found["ml.p3"].gpu_hour == 2.0


def test_mistakes_name_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def says(words: str, write: Any) -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write(folder)
        with pytest.raises(DeadlineError, match=words):
            load(folder)

    losses = np.arange(9.0).reshape(3, 3)
    says("no learning curves in", lambda folder: None)
    says(r"x\.npz cannot be read", lambda folder: (folder / "x.npz").write_bytes(b"PK\x03\x04"))
    says(
        r"x\.npz has no hp_names", lambda f: np.savez(f / "x.npz", valid_loss=losses, hp=HP["hp"])
    )
    says("do not belong", lambda f: np.savez(f / "x.npz", valid_loss=losses[:2], **HP))
    says("dimensions", lambda f: np.savez(f / "x.npz", valid_loss=losses[0], **HP))
    says("about is not JSON", lambda f: np.savez(f / "x.npz", about="?", seconds=losses))
    says("end alike", lambda f: np.savez(f / "x.npz", valid_loss=np.ones((3, 3)), **HP))
    says("one of curves", lambda f: (write_algoperf(f), (f / "b.parquet").unlink()))
    says("no column eval_period_s", lambda f: write_algoperf(f, drop=["eval_period_s"]))
    says("no column validation_wer", lambda f: write_algoperf(f, drop=["validation_wer"]))
    says("cannot be read|not a parquet", lambda f: (f / "x.parquet").write_bytes(b"nothing"))
    caplog.set_level(logging.WARNING, "optuna_deadline")
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        says(r"1 \.npz of unknown kinds", lambda f: np.savez(f / "x.npz", something=losses))
    with pytest.raises(DeadlineError, match="no folder"):
        load(tmp_path / "nowhere")
    for find in (load_speedups, load_prices):
        with pytest.raises(DeadlineError, match=r"There (is|are) no"):
            find(tmp_path)


def test_speedups_and_prices_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time\n2,2,4,1\n"
    )
    with pytest.raises(DeadlineError, match="no step time on one GPU"):
        load_speedups(tmp_path)
    (tmp_path / "placements.csv").write_text("placement,local_bsz,step_time\n1,4,soon\n")
    with pytest.raises(DeadlineError, match="line 2"):
        load_speedups(tmp_path)
    (tmp_path / "p.csv").write_text("instance;GPU;price\nx;1;dear\n")
    with pytest.raises(DeadlineError, match="line 2"):
        load_prices(tmp_path)


def test_two_files_of_one_name_are_both_there(tmp_path: Path) -> None:
    for folder, factor in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        losses = factor * np.array([[9.0, 3, 1], [9, 2, 2], [9, 5, 4]])
        np.savez(tmp_path / folder / "task.npz", valid_loss=losses, **HP)
    assert [tuned.name for tuned in load(tmp_path)] == ["taskset/task", "taskset/task-2"]


def test_a_shuffle_keeps_each_configuration_together() -> None:
    curves = tuple((float(index),) for index in range(20))
    hp = tuple({"index": index} for index in range(20))
    table = Workload("w", curves, tuple(1.0 + index for index in range(20)), hp)
    once, again, other = table.shuffled(3), table.shuffled(3), table.shuffled(4)
    assert once == again != other != table
    assert sorted(once.curves) == sorted(curves)
    for curve, seconds, named in zip(
        once.curves, once.step_seconds, once.hyperparameters, strict=True
    ):
        assert curve[0] == named["index"] == seconds - 1.0


def test_our_own_table_is_there_and_worth_a_choice() -> None:
    (digits,) = own()
    assert digits.name == "recorded/digits" and digits.steps == 30
    assert len(digits.curves) >= 150 and digits.hyperparameters[0].keys() >= {"lr", "width"}
    assert max(digits.step_seconds) > 1.2 * min(digits.step_seconds)


@pytest.mark.skipif(not DATA, reason="OPTUNA_DEADLINE_TEST_DATA names no folder of recordings")
def test_real_recordings_are_whole() -> None:
    assert DATA is not None
    for tuned in load(DATA):
        assert tuned.best == pytest.approx(1.0) and tuned.steps > 10, tuned.name
        assert len(tuned.hyperparameters) == len(tuned.curves) > 50, tuned.name
        assert median(peaks(tuned)) == pytest.approx(0.0, abs=1e-9), tuned.name
        # On the whole, training helps.
        first = [curve[0] for curve in tuned.curves if not math.isnan(curve[0])]
        assert median(peaks(tuned)) > median(first), tuned.name
    assert all(speedup(1) == 1.0 for speedup in load_speedups(DATA).values())
    assert all(0.01 < price.gpu_hour < 100 for price in load_prices(DATA))
