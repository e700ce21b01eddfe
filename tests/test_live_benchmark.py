"""The live benchmark in small: real contenders, and what is made of their outcomes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.live.__main__ import Outcome, earlier, figures, main
from benchmarks.live.contender import missing
from benchmarks.live.reports import Report, append, read
from optuna_deadline.errors import DeadlineError

pytestmark = [pytest.mark.nightly_but(r"^$"), pytest.mark.timeout(400)]


def _outcome(contender: str, seed: int, value: float | None) -> Outcome:
    return Outcome(contender, 30.0, seed, value, 0.5 + seed, gone=2.0, trials=4, epochs=20)


def test_differences_are_paired_by_seed_and_no_value_counts_as_none() -> None:
    ours, theirs = figures(
        [
            *(_outcome("elastic", seed, value) for seed, value in enumerate((0.9, 0.8))),
            *(_outcome("plain", seed, value) for seed, value in enumerate((0.8, None))),
        ]
    )
    assert ours["difference_to_elastic"]["mean"] == 0.0
    assert theirs["difference_to_elastic"]["mean"] == pytest.approx((-0.1 - 0.8) / 2)
    assert theirs["overshoot"] == 1.5  # the latest


@pytest.mark.slow
def test_who_knows_the_deadline_has_a_model_by_then(tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    main(
        [
            *("--deadline", "12", "--seeds", "1", "--slots", "1"),
            *("--contender", "plain", "--json", str(file)),
        ]
    )
    [outcome] = json.loads(file.read_text())["outcomes"]
    assert outcome["trials"] > 0 and outcome["epochs"] >= outcome["trials"]
    assert 0 < outcome["value"] <= 1 and outcome["share"] > 0
    assert -12 < outcome["overshoot"] < outcome["gone"]


def test_a_run_goes_on_where_it_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.json"
    kept = [asdict(_outcome("plain", seed, 0.9)) for seed in range(2)]
    file.write_text(
        json.dumps({"outcomes": kept, "slots": 2, "epoch_seconds": {"16": 0.2}, "rows": []})
    )
    main(["--deadline", "30", "--seeds", "2", "--contender", "plain", "--json", str(file)])
    assert "0.9000" in capsys.readouterr().out  # both seeds were there, and nothing trained
    with pytest.raises(DeadlineError, match="2 slots, not 1"):
        earlier(file, slots=1)


@pytest.mark.skipif(missing("ray_asha") is None, reason="Ray Tune is installed")
def test_who_is_not_installed_is_left_out_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.json"
    written = {"outcomes": [], "slots": 2, "epoch_seconds": {"16": 0.2}, "rows": []}
    file.write_text(json.dumps(written))
    main(["--deadline", "30", "--contender", "ray_asha", "--json", str(file)])
    said = capsys.readouterr().out
    assert "ray_asha is left out" in said and 'pip install "ray[tune]"' in said


def test_reports_count_by_trial_until_the_deadline(tmp_path: Path) -> None:
    assert read(tmp_path, until=10.0) == []  # nobody has reported
    for at, trial, step, value in ((1.0, "a", 1, 0.2), (2.0, "b", 1, 0.3), (3.0, "a", 2, 0.4)):
        append(tmp_path, Report(at, trial, step, 16, value))
    append(tmp_path, Report(11.0, "b", 2, 16, 0.9))
    assert read(tmp_path, until=10.0) == [(16, {1: 0.2, 2: 0.4}), (16, {1: 0.3})]
