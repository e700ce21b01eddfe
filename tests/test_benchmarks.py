"""Parts of benchmarks whose defects a run would not show."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from benchmarks import record
from benchmarks.bulk import add_trials
from optuna_deadline import DeadlinePruner
from optuna_deadline.simulation.tables import load

pytestmark = [pytest.mark.nightly_but(r"^$")]


def test_bulk_loaded_trials_are_what_optuna_reads(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url, study_name="bulk")
    DeadlinePruner("1h")._terms(study)
    add_trials(study, 5, steps=20, state=TrialState.COMPLETE, seed=1)
    add_trials(study, 3, steps=20, state=TrialState.RUNNING, seed=2)
    remembered = list(study._storage._studies[study._study_id].trials.values())  # type: ignore[attr-defined]
    read = optuna.load_study(storage=storage_url, study_name="bulk").get_trials()
    assert [trial.number for trial in read] == list(range(8))
    assert remembered == read


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
    assert figures["times that a trial was warm"][1], figures
    assert figures["warm: seconds from a grant to the first step, median"][1], figures
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


def test_a_cut_recording_goes_on_and_its_table_can_be_read(tmp_path: Path) -> None:
    settings = {"task": "digits", "epochs": 3, "seed": 0}
    part, out = tmp_path / "t.part", tmp_path / "t.npz"
    assert record.finished(part, settings) == {}
    trainings = [
        record.Training(index, record.draw(0, index), scores, seconds, seconds)
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
        record.finished(part, {**settings, "epochs": 4})
    record.write_table(out, trainings, settings)
    read = record.in_table(out, settings)[1]
    assert (read.hp, read.seconds) == (trainings[1].hp, trainings[1].seconds)
    assert read.values == pytest.approx(trainings[1].values)
    with pytest.raises(ValueError, match="recorded with other settings"):
        record.in_table(out, {**settings, "seed": 1})
    (tuned,) = load(out)
    assert tuned.name == "recorded/t" and tuned.step_seconds == (2.0, 4.0, 1.0)
    assert tuned.curves[0][-1] == 1.0 and math.isnan(tuned.curves[1][1])
    assert tuned.hyperparameters[2] == pytest.approx(record.draw(0, 2))
