"""``optuna-deadline simulate``: a table in a pipe, figures in a file, sentences for mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optuna_deadline.cli import app

QUICK = ["simulate", "--slots", "2", "--steps", "9", "--deadline", "1x", "--seeds", "2"]


def test_policies_are_compared_in_a_plain_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    asked = ["--policy", "hypersched", "--policy", "fifo", "--json", str(figures)]
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


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--policy", "best"], "There is no policy 'best'"),
        (["--deadline", "0x"], "leaves no time"),
        (["--deadline", "2030-01-01T00:00Z"], "needs a duration"),
        (["--json", "/no/such/folder/x.json"], "There is no folder"),
    ],
)
def test_mistakes_get_one_sentence(
    wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CliRunner().invoke(app, [*QUICK, *wrong])
    assert run.exit_code == 2 and says in run.output
