"""``optuna-deadline simulate``: a table in a pipe, figures in a file, sentences for mistakes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from optuna_deadline.cli import app

QUICK = ["simulate", "--slots", "2", "--steps", "9", "--deadline", "1x", "--seeds", "2"]


def test_policies_are_compared_in_a_plain_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    asked = ["--policy", "hypersched", "--policy", "fifo", "--json", str(figures)]
    asked += ["--family", "power-law"]
    run = CliRunner().invoke(app, [*QUICK, *asked])
    assert run.exit_code == 0, run.output
    assert "hypersched" in run.output and "fifo" in run.output
    assert "…" not in run.output and "\x1b" not in run.output
    found = json.loads(figures.read_text())
    first, second = found["rows"]
    assert first["difference"] is None
    gap = second["regret"]["mean"] - first["regret"]["mean"]
    assert second["difference"]["mean"] == pytest.approx(gap)
    assert [run["seed"] for run in found["runs"]] == [0, 0, 1, 1]


def test_recorded_families_are_compared_each_with_its_own_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("first", "second"):
        levels = rng.uniform(0.1, 1.0, (30, 1))
        losses = levels + 0.3 * np.arange(10.0, 0.0, -1.0) + rng.normal(0, 0.01, (30, 10))
        hp = {"hp": levels, "hp_names": np.array(["lr"])}
        np.savez(tmp_path / f"{name}.npz", valid_loss=losses, **hp)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "placements.csv").write_text(
        "placement,local_bsz,step_time\n1,8,1.0\n2,4,0.8\n"
    )
    figures = tmp_path / "figures.json"
    asked = ["simulate", "--data", str(tmp_path), "--slots", "2", "--deadline", "2x"]
    asked += ["--policy", "hypersched", "--policy", "fifo", "--seeds", "2", "--scaling", "net"]
    asked += ["--family", "taskset", "--family", "second", "--family", "toy", "--steps", "9"]
    run = CliRunner().invoke(app, [*asked, "--json", str(figures)])
    assert run.exit_code == 0, run.output
    assert "taskset, 2 workloads" in run.output and "second, 2 slots" in run.output
    found = json.loads(figures.read_text())
    assert [row["family"] for row in found["rows"]] == [
        *("taskset", "taskset", "second", "second", "toy", "toy"),
    ]
    regrets = {
        (run["family"], run["workload"], run["seed"], run["policy"]): run["regret"]
        for run in found["runs"]
    }
    means = [
        statistics.fmean(
            regrets["taskset", f"taskset/{name}", seed, "fifo"]
            - regrets["taskset", f"taskset/{name}", seed, "hypersched"]
            for seed in range(2)
        )
        for name in ("first", "second")
    ]
    difference = found["rows"][1]["difference"]
    assert difference["mean"] == pytest.approx(statistics.fmean(means))
    assert difference["error"] == pytest.approx(statistics.stdev(means) / 2**0.5)
    # Seeds differ in the order of the configurations, policies do not.
    assert regrets["second", "taskset/second", 0, "fifo"] == pytest.approx(
        regrets["taskset", "taskset/second", 0, "fifo"]
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--policy", "best"], "There is no policy 'best'"),
        (["--deadline", "0x"], "leaves no time"),
        (["--deadline", "2030-01-01T00:00Z"], "needs a duration"),
        (["--json", "/no/such/folder/x.json"], "There is no folder"),
        (["--family", "best"], "There is no family 'best'; there are power-law"),
        (["--data", "/no/such/folder"], "no folder /no/such/folder"),
        (["--scaling", "bert"], "There is no scaling 'bert'"),
        (["--policy", "fifo:speed=3"], "takes no 'speed'"),
        (["--policy", "nowhere.py:mine"], "no file nowhere.py"),
    ],
)
def test_mistakes_get_one_sentence(
    wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CliRunner().invoke(app, [*QUICK, *wrong])
    assert run.exit_code == 2 and says in run.output
