"""The command on real objectives: real ranks train, are paused and are moved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

_PLACE = Path(__file__).with_name("checked_objectives.py")
_PROGRAM = "from optuna_deadline.cli import app; app()"


def _check(name: str, folder: Path, *options: str) -> tuple[int, str, str]:
    temporary = folder / "temporary"
    temporary.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "check", f"{_PLACE}:{name}", "--gpus", "none", *options],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    left = [one.name for one in temporary.iterdir() if one.name.startswith("optuna-deadline")]
    assert left == []
    assert sorted(one.name for one in folder.iterdir()) == ["temporary"]
    return run.returncode, run.stdout, run.stderr


def _rows(name: str, folder: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    code, out, words = _check(name, folder, "--json", *options)
    assert out, words
    return code, json.loads(out)


def test_an_exact_training_is_said_to_be_exact(tmp_path: Path) -> None:
    code, rows = _rows("exact", tmp_path)
    assert [row["result"] for row in rows] == ["exact"] * 5, rows
    assert [row["figure"] for row in rows[:3]] == [0.0] * 3  # to the last bit
    assert "report" in rows[2]["name"] and "2 slots" in rows[3]["name"]
    assert code == 0


def test_what_no_checkpoint_holds_is_found(tmp_path: Path) -> None:
    code, rows = _rows("forgetful", tmp_path)
    twice, paused, *_ = rows
    assert twice["result"] == "exact"
    assert paused["result"] == "differs" and paused["figure"] > 1e-3 and paused["bad"]
    assert "on_save_checkpoint" in paused["advice"]
    assert code == 1


def test_a_refusal_at_two_slots_is_shown_and_is_no_fault(tmp_path: Path) -> None:
    code, out, _ = _check("streamed", tmp_path)
    assert "refused: The training data (DataLoader) cannot be dealt to 2 slots" in out
    assert "not tried" in out
    assert code == 0


def test_dropout_is_told_from_a_fault(tmp_path: Path) -> None:
    code, rows = _rows("dropout", tmp_path)
    moved = rows[3]
    assert moved["result"] == "differs" and moved["excused"]
    assert "other random numbers" in moved["words"]
    assert code == 0


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plain", (), "never looks at its segment"),
        ("failing", (), "KeyError: 'lr' (checked_objectives.py, line "),
        ("unsaved", (), "has saved no checkpoint"),
        ("exact", ("--steps", "30"), "ends by itself after 12 steps, where 30 were asked for"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    name: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    code, out, said = _check(name, tmp_path, *options)
    assert code == 2 and out == ""
    assert words in said and said.count("\n") == 1, said
