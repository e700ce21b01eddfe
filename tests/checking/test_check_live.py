"""The command on real objectives: real ranks train, are paused and are moved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"counts_outside"),
]

_HERE = Path(__file__).parent
_LOOPS, _FITS = "checked_objectives.py", "checked_fits.py"
_PROGRAM = "from optuna_deadline.cli import app; app()"


def _command(name: str, *options: str, file: str = _LOOPS) -> list[str]:
    place = f"{_HERE / file}:{name}"
    return [sys.executable, "-c", _PROGRAM, "check", place, "--gpus", "none", *options]


def _check(name: str, folder: Path, *options: str, file: str = _LOOPS) -> tuple[int, str, str]:
    temporary = folder / "temporary"
    temporary.mkdir()
    run = subprocess.run(
        _command(name, *options, file=file),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    left = [one.name for one in temporary.iterdir() if one.name.startswith("optuna-deadline")]
    assert left == []
    # CatBoost writes its notes where it runs.
    assert {one.name for one in folder.iterdir()} - {"catboost_info"} == {"temporary"}
    return run.returncode, run.stdout, run.stderr


def _rows(
    name: str, folder: Path, *options: str, file: str = _LOOPS
) -> tuple[int, list[dict[str, Any]]]:
    code, out, words = _check(name, folder, "--json", *options, file=file)
    assert out, words
    return code, json.loads(out)


@pytest.mark.parametrize("framework", ["huggingface", "keras", "lightgbm", "catboost", "sklearn"])
def test_folders_that_frameworks_write_are_compared_by_their_numbers(
    framework: str, tmp_path: Path
) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(framework, framework))
    folder = {"sklearn": "scikit_learn"}.get(framework, framework)
    example = f"../../examples/{folder}/elastic.py"
    code, rows = _rows("objective", tmp_path, file=example)
    assert code == 0, str(rows)
    assert [row["result"] for row in rows[:3]] == ["exact"] * 3, str(rows)
    assert [row["figure"] for row in rows[:3]] == [0.0] * 3


def test_a_loop_without_a_framework_is_compared_by_its_state(tmp_path: Path) -> None:
    code, rows = _rows("of_arrays", tmp_path)
    assert code == 0, rows
    assert [row["result"] for row in rows[:3]] == ["exact"] * 3, rows


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
    assert "refused: The training data (DataLoader) cannot be distributed to 2 slots" in out
    assert "not tried" in out
    assert code == 0


def test_dropout_is_told_from_a_fault(tmp_path: Path) -> None:
    code, rows = _rows("dropout", tmp_path)
    moved = rows[3]
    assert moved["result"] == "differs" and moved["excused"]
    assert "other random numbers" in moved["words"]
    assert code == 0


def test_a_fit_that_is_exact_is_said_to_be_exact(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    code, rows = _rows("exact", tmp_path, file=_FITS)
    assert [row["result"] for row in rows] == ["exact"] * 5, rows
    assert [row["figure"] for row in rows[:3]] == [0.0] * 3
    assert code == 0


def test_what_a_module_counts_outside_of_its_state_is_found(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    code, rows = _rows("forgetful", tmp_path, file=_FITS)
    assert rows[0]["result"] == "exact"
    assert rows[1]["result"] == "differs" and rows[1]["figure"] > 1e-3 and rows[1]["bad"]
    assert code == 1


def test_a_second_fit_is_paused_too(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    code, rows = _rows("second_forgetful", tmp_path, file=_FITS)
    twice, paused, *_ = rows
    assert twice["result"] == "exact"
    assert paused["result"] == "differs" and paused["bad"] and code == 1


@pytest.mark.parametrize("file", [_LOOPS, _FITS])
def test_a_batch_that_is_to_grow_is_not_said_to_differ(file: str, tmp_path: Path) -> None:
    if file == _FITS:
        pytest.importorskip("lightning")
    code, rows = _rows("scaled", tmp_path, file=file)
    assert [row["result"] for row in rows] == ["exact"] * 3 + ["not tried"], rows
    assert "the batch grows with the slots by your wish" in rows[-1]["words"]
    assert code == 0


@pytest.mark.parametrize(
    ("name", "file"), [("halved", _LOOPS), ("mixed", _LOOPS), ("mixed", _FITS)]
)
def test_a_move_may_change_the_last_digit_of_what_is_computed_with(
    name: str, file: str, tmp_path: Path
) -> None:
    if file == _FITS:
        pytest.importorskip("lightning")
    code, rows = _rows(name, tmp_path, file=file)
    assert [row["result"] for row in rows] == ["exact"] * 5, rows
    assert rows[3]["figure"] > 1e-5  # no rounding of single precision
    assert code == 0


def test_few_digits_hide_no_fault(tmp_path: Path) -> None:
    code, rows = _rows("mixed_forgetful", tmp_path)
    assert "2 slots" in rows[3]["name"]
    assert rows[3]["result"] == "differs" and rows[3]["bad"], rows
    assert code == 1


def _runs(pid: int) -> bool:
    """Whether a process is there that has not ended; one that has may wait to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_interrupted_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    mark = tmp_path / "training"
    run = subprocess.Popen(
        _command("endless", "--steps", "1000000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "MARK": str(mark)},
    )
    try:
        until = time.monotonic() + 120
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.05)
        ranks = [int(line) for line in mark.read_text().split()]
        assert len(ranks) == 2  # a rank, and what it has started
        run.send_signal(number)
        out, words = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 128 + number
    assert out == "" and "Traceback" not in words, words
    assert not list(tmp_path.glob("optuna-deadline*"))
    assert not [pid for pid in ranks if _runs(pid)]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("plain", (), "never uses its segment"),
        ("failing", (), "KeyError: 'lr' (checked_objectives.py, line "),
        ("unsaved", (), "saved no checkpoint"),
        ("exact", ("--steps", "30"), "ends by itself after 12 steps, and 30 were requested"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    name: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    code, out, errors = _check(name, tmp_path, *options)
    assert code == 2 and out == ""
    assert words in errors and errors.count("\n") == 1, errors
