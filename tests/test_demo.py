"""The main job as a user starts it: the demo's command, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optuna_deadline_demo.digits import Digits, Net

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.nightly_but(r"postgres")]
KEYS = {
    "deadline_s", "ended_s", "overshoot_s", "trials", "complete", "pruned", "running_left",
    "pauses", "resumes", "resizes", "overhead_s", "best_value", "best_trial", "checkpoint",
    "checkpoint_ok",
}  # fmt: skip


@pytest.mark.parametrize(
    ("database", "workers"),
    [("sqlite", 1), pytest.param("postgres", 2, marks=pytest.mark.postgres)],
)
def test_demo(database: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgres" else None
    options = ["--storage", url] if url else []
    done = subprocess.run(
        [
            sys.executable, "-c", "from optuna_deadline.cli import app; app()", "demo",
            "--deadline", "40s", "--cpus", "2", "--workers", str(workers), "--json", "out.json",
            *options,
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert set(outcome) == KEYS
    told = (outcome, done.stdout[-2000:])
    assert outcome["running_left"] == 0, told
    # A hang fails; how close the end is to the deadline is measured by benchmarks/live.
    assert outcome["overshoot_s"] <= 15, told
    assert outcome["checkpoint_ok"] and outcome["complete"] >= 1, told
    assert outcome["complete"] + outcome["pruned"] == outcome["trials"], told
    assert outcome["pauses"] >= 1 and outcome["resumes"] + outcome["resizes"] >= 1, told
    assert "Traceback" not in done.stdout + done.stderr
    when = "after" if outcome["overshoot_s"] > 0 else "before"
    for words in ("best value", "torch.load(", "optuna-dashboard", f"{when} the deadline"):
        assert words in done.stdout
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
