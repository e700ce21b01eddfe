"""The benchmarks run, and load what they say. No time is asserted: machines differ."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from benchmarks import backtest, plain, planner, prune_cost, record, sampling, simulator
from benchmarks.bulk import add_trials
from optuna_deadline import DeadlinePruner
from optuna_deadline.simulation.tables import load

pytestmark = [pytest.mark.nightly_but(r"^$"), pytest.mark.slow_names(r"^test_a_backtest")]


def test_bulk_loaded_trials_are_what_optuna_reads(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url, study_name="bulk")
    DeadlinePruner("1h").terms(study)
    add_trials(study, 5, steps=20, state=TrialState.COMPLETE, seed=1)
    add_trials(study, 3, steps=20, state=TrialState.RUNNING, seed=2)
    remembered = list(study._storage._studies[study._study_id].trials.values())  # type: ignore[attr-defined]
    read = optuna.load_study(storage=storage_url, study_name="bulk").get_trials()
    assert [trial.number for trial in read] == list(range(8))
    assert remembered == read


@pytest.mark.slow
@pytest.mark.postgres
def test_prune_cost_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    few = ["--quick", "--trials", "50", "--unfinished", "4", "--repetitions", "1"]
    prune_cost.main([*few, "--json", str(figures), "--picture", str(picture)])
    printed = capsys.readouterr()
    result = json.loads(figures.read_text())
    assert result.keys() >= {
        "max_statements",
        "speedup_vs_median",
        "growth_10k_over_100",
        "rows",
        "machine",
    }
    assert {(row["storage"], row["pruner"]) for row in result["rows"]} == {
        (storage, pruner)
        for storage in ("sqlite", "postgresql")
        for pruner in (
            "DeadlinePruner",
            "MedianPruner",
            "SuccessiveHalvingPruner",
            "HyperbandPruner",
        )
    }
    assert result["rows"][0].keys() >= {
        "trials",
        "unfinished",
        "max_statements",
        "wall_ms",
        "cpu_ms",
    }
    assert "<svg" in picture.read_text()
    assert "DeadlinePruner" in printed.out and not printed.err


@pytest.mark.slow
def test_step_cost_writes_its_figures(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from benchmarks import step_cost

    figures = tmp_path / "figures.json"
    step_cost.main(["--steps", "40", "--json", str(figures)])
    result = json.loads(figures.read_text())
    assert result.keys() >= {"step_us", "hooks_us", "mean_step_us", "target_us", "steps"}
    assert result["hooks_us"].keys() == set(step_cost.HOOKS)
    assert result["steps"] == 40


@pytest.mark.slow
def test_checkpoint_cost_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning")
    from benchmarks import checkpoint_cost

    figures = tmp_path / "figures.json"
    folder = ["--folder", str(tmp_path)]
    checkpoint_cost.main(["--quick", "--rounds", "1", "--json", str(figures), *folder])
    result = json.loads(figures.read_text())
    assert [row["way"] for row in result["rows"]] == list(checkpoint_cost.WAYS)
    assert result["ratio"] > 0 and result["megabytes"] == 64 and result["rounds"] == 1
    assert "ours by torch.save:" in capsys.readouterr().out


def test_gpu_check_says_that_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu_check import __main__ as gpu_check

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as left:
        gpu_check.main([])
    assert left.value.code == gpu_check.NO_CUDA == 3
    assert capsys.readouterr().out.count(".") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_gpu_check_runs_whole_on_cpu_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu_check import __main__ as gpu_check
    from benchmarks.gpu_check import resnet

    written = tmp_path / "figures.json"
    with pytest.raises(SystemExit):
        gpu_check.main(["--device", "cpu", "--tiny", "--json", str(written)])
    assert "best accuracy" in " ".join(capsys.readouterr().out.split())
    rows = json.loads(written.read_text())["rows"]
    figures = {row["check"]: (row["figure"], row["good"]) for row in rows}
    assert figures["ranks in the segments"][1], figures
    assert figures["gloo: seconds until 2 rank(s) have joined and reduced, median"][1]
    assert figures["segments that saw another device than their own"] == (0, True)
    assert figures["changes of the trial on the GPU"][1], figures
    gap, good = figures["relative difference of weights, in turns and alone"]
    assert good and gap == 0.0, "to the last bit, dropout included"
    assert figures["times that a trial was parked"][1], figures
    assert figures["parked: seconds from a grant to the first step, median"][1], figures
    studies = [row for row in rows if row["check"].startswith("ResNet-18")]
    assert len(studies) == len(resnet.POLICIES) == 4
    # A busy machine may give a study of so few seconds no time for a report, but hardly all four.
    assert any(not row["figure"].startswith("None") for row in studies), studies


@pytest.mark.parametrize(
    ("visible", "offered"), [(None, [0, 1]), ("1", [1]), ("GPU-aa", [0]), ("", [])]
)
def test_which_gpus_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, offered: list[int]
) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu_check import sight

    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '-L) echo "GPU 0: H (UUID: GPU-aa)"; echo "  MIG 1g.10gb Device 0: (UUID: MIG-cc)";;\n'
        '*) echo "0, GPU-aa"; echo "1, GPU-bb";;\n'
        "esac\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sight.gpu_uuids().keys() == set(offered)
    if visible is not None:
        return
    rows = {row["check"]: row for row in sight.measure()}
    assert rows["GPUs that the driver lists"]["figure"] == 2
    told = [row["good"] for check, row in rows.items() if check.startswith("CUDA_VISIBLE")]
    assert told == [True] * 3
    refused = rows["a MIG part is refused in words"]
    assert refused["good"] and "MIG-cc" in refused["figure"]
    # No device of torch's is the one that this driver has made up.
    assert not rows["a rank's only device is the GPU of its slot, by uuid"]["good"]


def test_simulator_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    simulator.main(["--quick", "--policy", "fifo", "--jobs", "1", "--json", str(figures)])
    result = json.loads(figures.read_text())
    assert result.keys() >= {"rows", "target", "machine"}
    assert result["rows"][0]["reports"] > 0


def test_a_cut_recording_goes_on_and_its_table_can_be_read(tmp_path: Path) -> None:
    settings = {"epochs": 3, "seed": 0}
    part, out = tmp_path / "t.part", tmp_path / "t.npz"
    assert record.finished(part, settings) == {}
    trainings = [
        record.Training(index, record.draw(0, index), scores, scores, seconds, seconds)
        for index, (scores, seconds) in enumerate(
            [([0.1, 0.2, 0.9], [1.0, 2.0, 3.0]), ([0.1], [4.0]), ([0.1, 0.2, 0.3], [1.0] * 3)]
        )
    ]
    with part.open("a") as file:
        for training in trainings[:2]:
            file.write(json.dumps(asdict(training)) + "\n")
        file.write('{"index": 2, "hp"')  # the end came here
    assert list(record.finished(part, settings).values()) == trainings[:2]
    assert len(record.finished(part, settings)) == 2, "the cut line is gone"
    with pytest.raises(ValueError, match="was begun with"):
        record.finished(part, {"epochs": 4, "seed": 0})
    record.write_table(out, trainings, settings)
    (tuned,) = load(out)
    assert tuned.name == "recorded/t" and tuned.step_seconds == (2.0, 4.0, 1.0)
    assert tuned.curves[0][-1] == 1.0 and math.isnan(tuned.curves[1][1])
    assert tuned.hyperparameters[2] == pytest.approx(record.draw(0, 2))


@pytest.mark.slow
def test_a_recording_is_made(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    out = tmp_path / "small.npz"
    options = ["--configurations", "3", "--epochs", "2", "--jobs", "1", "--nice", "0"]
    record.main(["--out", str(out), *options])
    assert [path.name for path in tmp_path.iterdir()] == ["small.npz"]
    (tuned,) = load(out)
    assert len(tuned.curves) == 3 and tuned.steps == 2


def test_planner_writes_its_figures_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    few = ["--policy", "fifo", "--trials", "5", "9", "--gpus", "4", "--repetitions", "1"]
    planner.main([*few, "--json", str(figures), "--picture", str(picture)])
    result = json.loads(figures.read_text())
    assert [(row["trials"], row["gpus"]) for row in result["rows"]] == [(5, 4), (9, 4)]
    assert "<svg" in picture.read_text()
    drawn = planner.draw(30, 8, 1)
    assert drawn == planner.draw(30, 8, 1) != planner.draw(30, 8, 2)
    assert sum(trial.slots for trial in drawn.trials) == 8


def test_a_backtest_judges_every_kind_of_forecast(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcomes = [
        ("recorded", one) for one in backtest.Case("recorded/digits", 0, 4, 8, None, 1).run()
    ]
    rows = backtest.figures(outcomes)
    kinds = {backtest.AGAIN, backtest.END, backtest.STUDY, backtest.LATER, backtest.MORE}
    assert {row["what"] for row in rows} == kinds
    for row in rows:
        assert row["held"] == sorted(row["held"]) and 0 <= row["within_80"] <= 1
        assert row["forecasts"] > 0 and 0 <= row["error"] <= 1
    backtest.draw_calibration(outcomes, tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("what", ["ends --studies 2", "digits --seeds 1 --seconds 1.5"])
def test_plain_tells_all_rows(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    figures = tmp_path / "figures.json"
    plain.main([*what.split(), "--json", str(figures), "--pictures", str(tmp_path)])
    rows = json.loads(figures.read_text())["rows"]
    printed = capsys.readouterr().out
    if what.startswith("ends"):
        assert len(rows) == 2 and "2 studies" in printed
    else:
        assert {row["pruner"] for row in rows} == {plain.OURS, *plain._OTHERS}
        drawn = [(tmp_path / name).stat().st_size for name in ("pruner.png", "plain.png")]
        assert min(drawn) > 0 and plain.OURS in printed


def test_sampling_pairs_studies_on_virtual_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    few = ["--samplers", "QMC", "--seeds", "2", "--trainings", "2", "--json", str(figures)]
    sampling.main(few)
    rows = json.loads(figures.read_text())["rows"]
    assert [row["helped"] for row in rows] == [False, True] * 2
    assert all(row["regret"] >= 0 for row in rows)
    assert "QMC" in capsys.readouterr().out
