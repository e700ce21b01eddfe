"""Every rank leaves at the same step, with a whole checkpoint or on purpose without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chains import assert_same, chain
from elastic_harness import LEFT, Plan, run_segment
from elastic_training import Net, data
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"sigterm|paused_with|stopped.*2|survives|nan"),
]


@pytest.mark.parametrize("term_rank", [0, 1])
def test_sigterm_on_one_of_two_ranks(tmp_path: Path, term_rank: int) -> None:
    seen = run_segment(Plan(str(tmp_path), ranks=2, leave_at=9, term_rank=term_rank))
    for rank in seen:
        assert rank["exitcode"] == LEFT and rank["left"][0] == "pause", rank
        assert len(rank["steps"]) == 9, "the step that the signal came in is the last"
    path = Path(seen[0]["published"][-1]["path"])
    assert torch.load(path, weights_only=True)["global_step"] == 9
    again = run_segment(Plan(str(tmp_path), fence=2, resume=str(path)))[0]
    assert again["steps"][0]["step"] == 9 and again["global_step"] == 18


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_without_a_checkpoint(tmp_path: Path, ranks: int) -> None:
    seen = run_segment(Plan(str(tmp_path), ranks=ranks, leave_at=4, kind="stop"))
    assert seen[0]["left"] == ["stop", "as scripted", 7]
    assert [(rank["exitcode"], len(rank["steps"])) for rank in seen] == [(LEFT, 4)] * ranks
    assert not list(tmp_path.glob("*.ckpt")) and not seen[0]["published"]


def test_paused_with_a_checkpoint_that_says_where(tmp_path: Path) -> None:
    seen = run_segment(Plan(str(tmp_path), leave_at=9, kind="pause", fence=5))[0]
    assert seen["left"][0] == "pause" and seen["horizon"] == 2
    best, last = seen["published"]
    assert Path(best["path"]).name == "segment-000005-step-000000006.ckpt"
    assert Path(last["path"]).name == "segment-000005-step-000000009.ckpt"
    assert (last["step"], last["value"]) == (0, None), "epoch 1 is not in it"
    assert seen["positions"][:3] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert seen["positions"][-1] == pytest.approx(1.5)
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


@pytest.mark.parametrize("ranks", [1, 2])
def test_saved_by_time(tmp_path: Path, ranks: int) -> None:
    plan = Plan(
        str(tmp_path),
        ranks=ranks,
        save_every=0.0,
        epochs=1,
        direction="maximize",
    )
    seen = run_segment(plan)
    steps = [int(Path(one["path"]).stem.split("-")[-1]) for one in seen[0]["published"]]
    # One is on its way at a time: a step that comes too early for the next is left out.
    assert steps == sorted(set(steps)) and steps[-1] == 6 and len(steps) > 1
    assert all(not rank["published"] for rank in seen[1:])


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_best_value_belongs_to_its_weights(tmp_path: Path, direction: str) -> None:
    monitor = "val_acc" if direction == "maximize" else "val_loss"
    trainer = {"val_check_interval": 0.5}
    plan = Plan(
        str(tmp_path),
        ranks=2,
        direction=direction,
        monitor=monitor,
        trainer=trainer,
    )
    seen = run_segment(plan)[0]
    published = seen["published"]
    values = [one["value"] for one in published]
    assert values and values == sorted(set(values), reverse=direction == "minimize")
    assert values[-1] == (max if direction == "maximize" else min)(v for _, v in seen["reports"])
    for one in published:
        state = torch.load(one["path"], weights_only=True)
        assert evaluate(plan, state["state_dict"], monitor) == pytest.approx(
            one["value"], abs=1e-7
        )


def evaluate(plan: Plan, weights: dict[str, Any], monitor: str) -> float:
    import lightning.pytorch as pl

    model = Net(plan, {})
    model.load_state_dict(weights)
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(data(plan.samples)[1], 20)
    return float(trainer.validate(model, loader, verbose=False)[0][monitor])


def test_the_best_so_far_survives_a_pause(tmp_path: Path) -> None:
    first = run_segment(Plan(str(tmp_path), leave_at=13, kind="pause"))[0]
    resume = first["published"][-1]["path"]
    second = run_segment(Plan(str(tmp_path), fence=2, resume=resume, epochs=8))[0]
    best = max(value for _, value in first["reports"])
    assert all(one["value"] > best for one in second["published"])
    assert [step for step, _ in second["reports"]] == [2, 3, 4, 5, 6, 7]


def test_lost_after_the_last_validation(tmp_path: Path) -> None:
    """The last checkpoint is of the very end: going on from it trains nothing, and has a value."""
    first = run_segment(Plan(str(tmp_path), epochs=1))[0]
    again = run_segment(Plan(str(tmp_path), 1, 2, first["published"][-1]["path"], epochs=1))[0]
    assert again["steps"] == [] and again["reports"] == []
    assert again["metrics"] == pytest.approx(first["metrics"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_metric_that_is_not_logged(tmp_path: Path, ranks: int) -> None:
    for rank in run_segment(Plan(str(tmp_path), ranks=ranks, monitor="val_f1")):
        assert rank["exitcode"] == 1
        assert "No metric 'val_f1' is logged" in rank["error"]
        assert "logged: val_acc, val_loss." in rank["error"]


def test_nan_is_reported_and_is_never_the_best(tmp_path: Path) -> None:
    seen = run_segment(Plan(str(tmp_path), nan=True))[0]
    assert [step for step, _ in seen["reports"]] == [0, 1, 2]
    assert all(value != value for _, value in seen["reports"])
    assert seen["published"] == []


def test_more_slots_than_samples_in_a_batch_idle_and_change_nothing(tmp_path: Path) -> None:
    plan = Plan("", batch=2, samples=9, epochs=2)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(3, 4), (1, 7), (3, None)])
    assert_same(still, moved)
    log = (tmp_path / "moved" / "rank-1-0.json.log").read_text()
    assert "A batch of 2 keeps 1 of the trial's 3 slots idle" in log


def test_trainers_defaults_leave_nothing_behind(tmp_path: Path) -> None:
    """The default ModelCheckpoint and progress bar have no use in a rank."""
    trainer = {
        "enable_checkpointing": True,
        "enable_progress_bar": True,
        "default_root_dir": str(tmp_path),
    }
    seen = run_segment(Plan(str(tmp_path), ranks=2, leave_at=9, trainer=trainer))
    files = {file.name for file in tmp_path.rglob("*.ckpt")}
    assert files == {Path(one["path"]).name for one in seen[0]["published"]}
    logs = "".join(file.read_text() for file in tmp_path.glob("*.log"))
    noise = [line for line in logs.splitlines() if "isinstance(treespec" not in line]
    [told] = [line for line in noise if line.startswith("INFO This training on 2 slots")]
    noise.remove(told)  # what differs there, which is said once
    assert [line for line in noise if line.strip()] == []
