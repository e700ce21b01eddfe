"""The main job as a user starts it: the demo's command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import torch
from endings import end_within
from optuna_deadline_demo.digits import Digits, Net
from tables import table_of, wait_until

from optuna_deadline.allocation.records import SegmentRow
from optuna_deadline.allocation.table import AllocationTable

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
KEYS = {
    "deadline_s", "ended_s", "overshoot_s", "trials", "complete", "pruned", "running_left",
    "pauses", "resumes", "resizes", "slot_usage", "best_value", "best_trial", "checkpoint",
    "checkpoint_ok",
}  # fmt: skip


def pause_and_grow_a_trial(url: str, demo: subprocess.Popen[str]) -> AllocationTable:
    """Ask for it, since the policy's own plans depend on the machine's speed."""

    def trained() -> list[int]:
        assert demo.poll() is None, "the demo has ended"
        return [
            saved.number
            for name in optuna.get_all_study_names(url)
            for saved in table_of(optuna.load_study(study_name=name, storage=url)).checkpoints()
        ]

    wait_until(trained, 100, every=0.5)
    [name] = optuna.get_all_study_names(url)
    table, number = table_of(optuna.load_study(study_name=name, storage=url)), trained()[0]

    def segments() -> list[SegmentRow]:
        return [row for row in table.segments() if row.number == number]

    assert table.hold(number, True)
    wait_until(lambda: segments()[-1].outcome == "pause", every=0.5)
    assert table.hold(number, False) and table.pin(number, 2)
    wait_until(lambda: segments()[-1].slots == 2 and segments()[-1].startup, every=0.5)
    return table


def test_demo(postgres_url: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-c", "from optuna_deadline.cli import app; app()", "demo",
        "--deadline", "150s", "--cpus", "2", "--workers", "2", "--json", "out.json",
        "--storage", postgres_url,
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            end_within(pause_and_grow_a_trial(postgres_url, demo), 8)
        except BaseException:
            demo.terminate()
            print(*demo.communicate())
            raise
        printed, errors = demo.communicate(timeout=300)
    assert demo.returncode == 0, errors
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert set(outcome) == KEYS
    told = (outcome, printed[-2000:])
    assert outcome["running_left"] == 0, told
    # A hang fails; how close the end is to the deadline is measured by benchmarks/live.
    assert outcome["overshoot_s"] <= 15, told
    assert outcome["checkpoint_ok"] and outcome["complete"] >= 1, told
    assert outcome["complete"] + outcome["pruned"] == outcome["trials"], told
    assert outcome["pauses"] >= 1 and outcome["resumes"] + outcome["resizes"] >= 1, told
    assert "Traceback" not in printed + errors
    when = "after" if outcome["overshoot_s"] > 0 else "before"
    for words in ("best value", "torch.load(", "optuna-dashboard", f"{when} the deadline"):
        assert words in printed
    assert _accuracy(Path(outcome["checkpoint"])) == pytest.approx(outcome["best_value"], abs=1e-6)


def _accuracy(path: Path) -> float:
    """What the saved model reads right, by hand."""
    weights = torch.load(path, weights_only=True)["state_dict"]
    width = weights["layers.0.weight"].shape[0]
    model = Net(width, 0.0, 0.1, 0.0)
    model.load_state_dict(weights)
    model.eval()
    data = Digits()
    data.setup("fit")
    images, labels = data.validation.tensors
    with torch.no_grad():
        return float((model.layers(images).argmax(1) == labels).float().mean())
